"""The command that runs what a table lacks."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from tepo.studies.plan import Unit, recipe_words
from tepo.studies.study import Study

_STORE = Path("runs")  # of the command line


def fill_command(study: Study, scale: str, units: Sequence[Unit]) -> str:
    """`tepo ablate …` with what the units were planned with: scale, seeds, store and overrides."""
    first, store = units[0], units[0].folder.parent
    words = ["tepo", "ablate", study.name.replace("_", "-"), "--scale", scale]
    seeds = tuple(dict.fromkeys(unit.seed for unit in units if unit.row.objective is not None and not unit.tuning))
    if seeds and set(seeds) != set(study.scale(scale).seeds):
        words += ["--seeds", ",".join(map(str, seeds))]
    if store != _STORE:
        words += ["--store", str(store)]
    for word in _given(study, scale, first):
        words += ["--set", word]
    return shlex.join(words)


def _given(study: Study, scale: str, unit: Unit) -> tuple[str, ...]:
    """The overrides that the plan was made with: what follows the study's own words and stands before the seed."""
    given = () if unit.model in study.scale(scale).models else (f"model={unit.model}",)
    known = recipe_words(study, scale, given)
    named = known.get((unit.model, unit.row.name))  # a row that reports its tuned setting does not name it
    begins = [words for words in known.values() if words == unit.overrides[: len(words)]]
    own = named or max(begins, key=len)
    return (*given, *unit.overrides[len(own) : -1])
