"""How much of a GPU a run took, phase by phase, from its metrics: to be held against the plan."""

from collections.abc import Mapping, Sequence
from typing import Any

from tepo.training.resources.memory import TAKEN

_SECTIONS = {"sampling": "gen", "updating": "update_actor"}  # a phase of the plan, a section of a step


def measured_peaks(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """GiB by phase, the most of all steps. Empty for a run that no GPU has trained."""
    keys = {phase: f"{TAKEN}{section}" for phase, section in _SECTIONS.items()}
    known = [row for row in rows if all(key in row for key in keys.values())]
    return {phase: max(row[key] for row in known) for phase, key in keys.items()} if known else {}
