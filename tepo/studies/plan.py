"""From a study to the runs and evaluations it needs: rows x models x seeds, each trained once however many tables ask
for it."""

import gc
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tepo.config.compose import check_override, compose
from tepo.config.schema import RunConfig
from tepo.errors import UserError
from tepo.files import content_hash
from tepo.studies.cost import Cost
from tepo.studies.record import Record
from tepo.studies.stored import Stored
from tepo.studies.study import Row, Study, check_row_overrides, check_seeds
from tepo.studies.vary import key_of, varied_keys
from tepo.training.ending import Ending
from tepo.training.run_folder import RunFolder
from tepo.training.run_id import identity, run_id

if TYPE_CHECKING:
    from tepo.evaluation.right_answers import RightAnswers


@dataclass(frozen=True)
class Unit:
    """One row at one model and seed: a run to train (or the untrained base) and the benchmarks to measure it on.

    record: what it is read from in place of its folder. stale: a record of its name is there, but of another run or
    other problems."""

    row: Row
    model: str
    seed: int
    config: RunConfig
    overrides: tuple[str, ...]
    folder: Path
    record: Record | None = None
    stale: bool = False

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.folder)

    @property
    def label(self) -> str:
        """The row's label and setting as shown."""
        return self._shown(self.row.name)

    @property
    def row_label(self) -> str:
        """The row's label as shown, the same at every setting."""
        return self._shown(self.row.label)

    def _shown(self, text: str) -> str:
        """`{steps}` is what this unit trains."""
        return text.replace("{steps}", str(self.config.train.steps))

    # what was trained and measured: readers ask here, and need not know whether it is a folder or a record -----------
    @property
    def source(self) -> Stored | Record:
        return self.record or Stored(self.run, self.config.data.benchmarks)

    def metrics(self) -> list[dict[str, Any]]:
        """A mapping a step, verl's names; of a record those that are drawn or summed."""
        return self.source.metrics()

    def ending(self) -> Ending | None:
        """Where training ended before its last step."""
        return self.source.ending()

    def outcome(self) -> str:
        """The status in words, with the ending."""
        return self.source.outcome()

    def sessions(self) -> list[dict[str, Any]]:
        """The processes that trained and measured the unit, as far as they are known."""
        return self.source.sessions()

    def costs(self) -> list[Cost]:
        """What those processes have cost."""
        return self.source.costs()

    def right_answers(self, benchmark: str) -> "RightAnswers | None":
        """None where the benchmark was not measured."""
        return self.source.right_answers(benchmark)

    def timeouts(self, benchmark: str) -> int:
        """Answers that ran out of the grader's budget."""
        return self.source.timeouts(benchmark)

    def trained(self) -> bool:
        return self.row.objective is None or self.source.trained()

    def missing_benchmarks(self) -> list[str]:
        return [name for name in self.config.data.benchmarks if not self.source.measured(name)]

    def done(self) -> bool:
        return self.trained() and not self.missing_benchmarks()


Recipe = tuple[RunConfig, str]  # a configuration and the hash of its identity, both the same for every seed
_COMPOSED: dict[tuple[str, ...], Recipe] = {}
_FEW = 6


def _compose(words: tuple[str, ...]) -> Recipe:
    config = compose(words)
    return config, content_hash(identity(config))


def prime(recipes: Iterable[tuple[str, ...]]) -> None:
    """Compose what is not known yet; many of them on two processes, as Hydra takes a tenth of a second for each."""
    missing = list(dict.fromkeys(words for words in recipes if words not in _COMPOSED))
    if len(missing) <= _FEW:
        _COMPOSED.update((words, _compose(words)) for words in missing)
        return
    with ProcessPoolExecutor(
        2, mp_context=get_context("fork"), initializer=gc.disable
    ) as pool:  # short-lived: nothing to collect
        _COMPOSED.update(zip(missing, pool.map(_compose, missing, chunksize=4), strict=True))


def recipe_words(study: Study, scale: str, overrides: Iterable[str] = ()) -> dict[tuple[str, str], tuple[str, ...]]:
    """The overrides behind each (model, row name) of a study; `overrides` come last and apply to every row.

    `model=…` among them replaces the study's models. Raises UserError where they set what the study varies.
    """
    given = list(overrides)
    own = [text.removeprefix("model=") for text in given if text.startswith("model=")][-1:]
    for name in own:
        check_override(f"model={name}")
    extra = check_row_overrides([text for text in given if not text.startswith("model=")])
    varied = varied_keys(study.vary_at(scale))
    for text in extra:
        if key_of(text) in varied:
            fix = "leave it out, or change `vary:` in a study of your own (docs/tables.md)"
            raise UserError(f"{key_of(text)} is what the study {study.name} varies", where=text, fix=fix)
    chosen, recipes = study.scale(scale), {}
    for model in own or chosen.models:
        for row in study.rows_at(scale):
            words = (
                f"scale={scale}",
                f"model={model}",
                *chosen.overrides,
                *row.words(scale, model),
                *extra,
            )
            recipes[model, row.name] = words if row.objective is None else (f"objective={row.objective}", *words)
    return recipes


def make_plan(
    study: Study, scale: str, *, store: Path, seeds: Sequence[int] | None = None, overrides: Iterable[str] = ()
) -> list[Unit]:
    """All units of a study at a scale, in the order of models, settings, rows and seeds.

    `overrides` come last and apply to every row. The untrained base is measured once, whatever the seed.
    """
    chosen, words_of = study.scale(scale), recipe_words(study, scale, overrides)
    prime(words_of.values())
    units = []
    for model in dict.fromkeys(model for model, _ in words_of):
        for row in study.rows_at(scale):
            words = words_of[model, row.name]
            composed, recipe = _COMPOSED[words]
            config = replace(composed, store=str(store))
            for seed in (
                (chosen.seeds if seeds is None else check_seeds(list(seeds))) if row.objective is not None else (0,)
            ):
                seeded = replace(config, seed=seed)
                run = RunFolder.of_base(seeded) if row.objective is None else RunFolder(store / run_id(seeded, recipe))
                units.append(Unit(row, model, seed, seeded, (*words, f"seed={seed}"), run.path))
    return units


def unique(units: Iterable[Unit]) -> list[Unit]:
    """Units with distinct folders, first come first."""
    return list({unit.folder: unit for unit in units}.values())


def check_measurable(config: RunConfig) -> None:
    """Raise UserError for data that name no benchmarks: there would be nothing to measure, and no table."""
    if not config.data.benchmarks:
        fix = (
            "data.benchmarks=[NAME,…] (behind --set, for a study); docs/benchmarks.md says how to write one of your own"
        )
        raise UserError(f"nothing to measure on: data={config.data.name} names no benchmarks", fix=fix)


def check_rows(todo: Sequence[Unit]) -> None:
    """Raises UserError naming the row whose objective or tasks have a setting that does not exist: one message, not one
    failed run after another."""
    from tepo.training.checks import check_settings

    for label, config in {unit.label: unit.config for unit in todo if unit.row.objective is not None}.items():
        try:
            check_settings(config)
        except UserError as error:
            raise UserError(
                error.what, where=f"row {label!r}" + (f", {error.where}" if error.where else ""), fix=error.fix
            ) from None
