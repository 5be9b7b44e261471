"""The runs of the page: their settings, of each only what is not usual, and what became of every seed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tepo.common.grouping import grouped
from tepo.config.differences import NOT_A_SETTING, flat, typed
from tepo.store.stored_tokens import TokenDump


@dataclass(frozen=True)
class PageRun:
    """One run. config: nested mapping. facts: what became of it, in words. tokens: dumps in step order. sessions: those
    that trained and measured it, as `provenance.sessions` gives them. command: what trains it."""

    id: str
    label: str
    method: str
    seed: int
    config: Mapping[str, Any]
    facts: str
    tokens: Sequence[TokenDump] = ()
    sessions: Sequence[Mapping[str, Any]] = ()
    command: str = ""


def run_rows(runs: Sequence[PageRun]) -> list[dict[str, Any]]:
    """Runs that differ in their seeds alone are a row: label, the settings that are not as in most runs, command, and
    (seed, id, facts) of each."""
    rows = grouped(((run.label, tuple(_settings(run).items())), run) for run in runs)
    values_of = grouped(setting for _, settings in rows for setting in settings)
    usual = {name: Counter(values).most_common(1)[0][0] for name, values in values_of.items()}
    table_rows = []
    for (_, settings), members in rows.items():
        row = usual | dict(settings)
        unusual = [f"{name}={row[name]}" for name in usual if row[name] != usual[name]]
        table_rows.append(
            {
                "label": members[0].label,
                "settings": ", ".join(unusual),
                "command": members[0].command,
                "seeds": [(run.seed, run.id, run.facts) for run in members],
            }
        )
    return table_rows


def _settings(run: PageRun) -> dict[str, str]:
    return {typed(key): value for key, value in flat(run.config).items() if not key.startswith(NOT_A_SETTING)}
