"""From a study to the runs and evaluations it needs: rows x models x seeds, each trained once however many tables ask for it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from tepo.config.compose import compose
from tepo.config.schema import RunConfig
from tepo.files import content_hash
from tepo.studies.study import Row, Study
from tepo.training.run_folder import RunFolder, base_folder, identity, run_id


@dataclass(frozen=True)
class Unit:
    """One row at one model and seed: a run to train (or the untrained base) and the benchmarks to measure it on."""

    row: Row
    model: str
    seed: int
    config: RunConfig
    overrides: tuple[str, ...]
    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    def trained(self) -> bool:
        return self.row.objective is None or RunFolder(self.folder).finished()

    def missing_benchmarks(self) -> list[str]:
        return [name for name in self.config.data.benchmarks if not (self.folder / "eval" / name / "result.json").exists()]

    def done(self) -> bool:
        return self.trained() and not self.missing_benchmarks()


@lru_cache(maxsize=4096)
def _composed(overrides: tuple[str, ...]) -> tuple[RunConfig, str]:
    """The configuration and the hash of its identity, both the same for every seed."""
    config = compose(overrides)
    return config, content_hash(identity(config))


def make_plan(study: Study, scale: str, *, store: Path, seeds: Sequence[int] | None = None, overrides: Iterable[str] = ()) -> list[Unit]:
    """All units of a study at a scale, in the order of rows, models and seeds.

    `overrides` come last and apply to every row. The untrained base is measured once, whatever the seed.
    """
    chosen, extra = study.scale(scale), tuple(overrides)
    units = []
    for model in chosen.models:
        for row in study.rows:
            words = (f"scale={scale}", f"model={model}", *chosen.overrides, *row.overrides, *row.scale_overrides[scale], *row.model_overrides.get(model, ()), *extra)
            if row.objective is not None:
                words = (f"objective={row.objective}", *words)
            composed, recipe = _composed(words)
            config = replace(composed, store=str(store))
            for seed in (seeds or chosen.seeds) if row.objective is not None else (0,):
                seeded = replace(config, seed=seed)
                folder = store / run_id(seeded, recipe) if row.objective is not None else base_folder(seeded)
                units.append(Unit(row, model, seed, seeded, (*words, f"seed={seed}"), folder))
    return units


def unique(units: Iterable[Unit]) -> list[Unit]:
    """Units with distinct folders, first come first."""
    return list({unit.folder: unit for unit in units}.values())
