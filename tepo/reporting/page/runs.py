"""The runs of the page: their settings, of each only what is not usual, and what became of every seed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    rows: dict[tuple[Any, ...], list[PageRun]] = {}
    settings: dict[tuple[Any, ...], dict[str, str]] = {}
    counts: dict[str, Counter[str]] = {}
    for run in runs:
        run_settings = {
            typed(key): value for key, value in flat(run.config).items() if not key.startswith(NOT_A_SETTING)
        }
        row = (run.label, *run_settings.items())
        rows.setdefault(row, []).append(run)
        settings[row] = run_settings
    for run_settings in settings.values():
        for key, value in run_settings.items():
            counts.setdefault(key, Counter())[value] += 1
    usual = {key: values.most_common(1)[0][0] for key, values in counts.items()}
    table_rows = []
    for row, members in rows.items():
        unusual = [
            f"{name}={value}" for name in usual if (value := settings[row].get(name, usual[name])) != usual[name]
        ]
        table_rows.append(
            {
                "label": members[0].label,
                "settings": ", ".join(unusual),
                "command": members[0].command,
                "seeds": [(run.seed, run.id, run.facts) for run in members],
            }
        )
    return table_rows
