"""The runs of the page: their settings, of each only what is not usual, and what became of every seed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tepo.config.differences import NOT_A_SETTING, flat, typed
from tepo.reporting.colours import Look
from tepo.reporting.page.packed import packed
from tepo.reporting.tables.renderers.html_table import swatch
from tepo.store.stored_tokens import TokenDump


@dataclass(frozen=True)
class PageRun:
    """One run. config: nested mapping. facts: short things to know (steps, status, CPU seconds). tokens: dumps in step
    order. sessions: those that trained and measured it, as `provenance.sessions` gives them. recorded: it is read
    from a record, without responses. command: what trains it."""

    id: str
    label: str
    method: str
    seed: int
    config: Mapping[str, Any]
    facts: Mapping[str, Any]
    tokens: Sequence[TokenDump] = ()
    sessions: Sequence[Mapping[str, Any]] = ()
    look: Look | None = None
    recorded: bool = False
    command: str = ""


@dataclass(frozen=True)
class RunData:
    """text: of `packed`. runs, rows: how many. recorded: runs that are read from records."""

    text: str
    runs: int
    rows: int
    recorded: int


def run_data(runs: Sequence[PageRun]) -> RunData:
    """Runs of one label and the same settings but the seed are a row. usual: of each setting the most frequent value.
    A row has the settings that are not usual, "" for one that it lacks."""
    rows: dict[tuple[Any, ...], list[PageRun]] = {}
    settings: dict[tuple[Any, ...], dict[str, str]] = {}
    for run in runs:
        own = {typed(key): value for key, value in flat(run.config).items() if not key.startswith(NOT_A_SETTING)}
        row = (run.label, *own.items())
        rows.setdefault(row, []).append(run)
        settings[row] = own
    counts: dict[str, Counter[str]] = {}
    for own in settings.values():
        for key, value in own.items():
            counts.setdefault(key, Counter())[value] += 1
    usual = {key: values.most_common(1)[0][0] for key, values in counts.items()}
    packed_rows = [
        {
            "label": members[0].label,
            "method": members[0].method,
            "swatch": swatch(members[0].look, members[0].method),
            "settings": {name: settings[key].get(name, "") for name in usual if settings[key].get(name) != usual[name]},
            "command": members[0].command,
            "seeds": [[run.seed, run.id, dict(run.facts), run.recorded] for run in members],
        }
        for key, members in rows.items()
    ]
    text = packed({"usual": usual, "rows": packed_rows})
    return RunData(text, len(runs), len(rows), sum(run.recorded for run in runs))
