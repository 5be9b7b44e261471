"""`studies:` of a scale's file: how the studies are taken there, so that no study needs to name the scale.

studies:
  like: paper                                           # whose seeds, settings and row overrides are taken
  stand_ins: {qwen2.5-7b: qwen2.5-0.5b}                 # model there: the model here
  objectives: {tepo: [objective.beta=1]} # for every row that trains with one, before its own overrides
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tepo.common import paths
from tepo.common.errors import UserError
from tepo.common.schema import option, read
from tepo.common.schema.document import load
from tepo.config.compose import options
from tepo.studies.vary import Words


@dataclass(frozen=True)
class ScaleStudies:
    """Settings of studies at a scale."""

    like: str | None = option(None, "the scale that a study is taken at which does not name this one")
    stand_ins: dict[str, str] = option({}, "model there: the model here")
    objectives: dict[str, Words] = option({}, "objective: overrides of every row that trains with it")

    def models(self, there: tuple[str, ...], study: str) -> tuple[str, ...]:
        """The models in place of those of the other scale. Raises UserError for one that nothing stands in for."""
        for model in there:
            if model not in self.stand_ins:
                fix = f"name it under `studies: stand_ins:` of the scale, or the scale under `scales:` of {study}"
                raise UserError(f"no model stands in for {model} at this scale", where=f"study {study}", fix=fix)
        return tuple(self.stand_ins[model] for model in there)


def scale_studies(scale: str) -> ScaleStudies:
    """Settings of studies in the file of a scale. Raises UserError for an unknown scale and a broken file."""
    path = paths.find("scale", scale)
    return _read(path, path.stat().st_mtime_ns)


@cache
def _read(path: Path, _changed: int) -> ScaleStudies:
    document = load(path)
    at = document.at.at("studies")
    studies = read(ScaleStudies, document.data.get("studies", {}), at)
    if studies.like is not None and studies.like not in options("scale"):
        raise at.at("like").unknown("scale", studies.like, options("scale"))
    for model in studies.stand_ins.values():
        if model not in options("model"):
            raise at.at("stand_ins").unknown("model", model, options("model"))
    for objective in studies.objectives:
        if objective not in options("objective"):
            raise at.at("objectives").unknown("objective", objective, options("objective"))
    return studies
