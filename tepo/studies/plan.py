"""From a study to the runs and evaluations it needs: rows x models x seeds, each trained once however many tables ask
for it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import ClassVar

from tepo.common import paths, trust
from tepo.common.errors import UserError
from tepo.common.files import content_hash
from tepo.common.plugin_files import FOLDER, foreign_files
from tepo.config.compose import check_override, compose
from tepo.config.own_files import is_own
from tepo.config.own_reward import foreign_rewards
from tepo.config.run_config import RunConfig
from tepo.jobs.validate import final_validation, validation_share
from tepo.policy.model.model_location import differs_from_record
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import identity, run_id
from tepo.studies.study import Study, StudyRow, check_apart, check_row_overrides, check_seeds, scale_studies
from tepo.studies.vary import Words, key_of


@dataclass(frozen=True)
class Unit:
    """One row at one model and seed: a run to train, and the benchmarks to measure it on. `Base` and `Trial` are the
    other kinds.

    recorded: nothing of it is left to do, as a record of today holds it. recorded_base: it starts from the base on
    record, and this machine has another one of that name.
    """

    trains: ClassVar[bool] = True
    tuning: ClassVar[bool] = False  # it helps to choose a setting, and is not reported
    measured_by: ClassVar[str] = "--evaluate"  # the option of its `tepo train`

    row: StudyRow
    model: str
    seed: int
    config: RunConfig
    overrides: Words
    folder: RunFolder  # in the store, whether it is there or not
    recorded: bool = False
    recorded_base: bool = False

    @property
    def id(self) -> str:
        return self.folder.path.name

    @property
    def key(self) -> tuple[str, bool]:
        """Its own among the facts: one study may tune with a run that another measures."""
        return self.id, self.tuning

    @property
    def store(self) -> Path:
        return self.folder.path.parent

    @property
    def label(self) -> str:
        """The row's label and setting as shown."""
        return self._shown(self.row.name)

    @property
    def row_label(self) -> str:
        """The row's label as shown, the same at every setting."""
        return self._shown(self.row.label)

    @property
    def title(self) -> str:
        """The label with the seed."""
        return f"{self.label} seed {self.seed}"

    @property
    def outcome(self) -> str:
        """How far the run is."""
        return self.folder.outcome()

    def _shown(self, text: str) -> str:
        """`{steps}` is what this unit trains."""
        return text.replace("{steps}", str(self.config.train.steps))

    def as_typed(self) -> Words:
        """The overrides as words of a command line, where they count as its caller's own. Raises UserError where the
        study has code executed by them, or sends to other machines, and the caller of this command neither wrote nor
        trusts that."""
        last, code = {key_of(word): word for word in self.overrides}, "names code that is not yours"
        by_path = is_own("objective", last.get("objective", "").partition("=")[2])  # a name is in the caller's folders
        config, tracking = self.config, self.config.tracking
        wandb = "wandb" in tracking.to and not tracking.offline  # where trackio sends to only the environment says
        for key, asks, does in (
            ("model.trust_remote_code", config.model.trust_remote_code, code),
            ("objective.functions", foreign_files(config.objective), code),
            ("objective", by_path and foreign_files(config.objective), code),
            ("data.reward", foreign_rewards(config.data), code),
            ("sampler.servers", config.sampler.servers, "sends prompts to servers that you did not name"),
            ("tracking.to", wandb, "sends settings and metrics to wandb"),
        ):
            if asks and key in last and not trust.wrote(last[key]):
                fix = f"{'read it' if does == code else 'if that is meant'}; --set {last[key]} names it yourself"
                fix = f"read its functions; a copy of them in {FOLDER} is yours" if key == "objective" else fix
                trust.ask(f"the study {does}: {last[key]}", f"row {self.label!r}", fix, sends=does != code)
        return self.overrides

    @property
    def other_bases(self) -> list[str]:
        """Models that it starts from which are on record, and other ones of their names here."""
        return [model.path for model in self.config.model.loaded if differs_from_record(model.path)]

    @property
    def one_core(self) -> bool:
        """Its scale's runs take a core of a CPU."""
        return scale_studies(self.config.scale).one_core

    @property
    def takes_gpu(self) -> bool:
        """It runs on a GPU where there is one. At a scale whose runs take a core of a CPU only what asks for it does:
        there a GPU has too little to do, and results are those of the plan and of the records."""
        device = self.config.engine.device
        return device != "cpu" and (not self.one_core or device == "cuda" or self.config.sampler.kind == "vllm")

    @property
    def needs_gpu(self) -> bool:
        """It is not meant for a CPU: bfloat16, or vLLM's build for CUDA."""
        config = self.config
        large = not self.one_core and (config.model.dtype == "bfloat16" or config.sampler.kind == "vllm")
        return config.engine.device == "cuda" or (config.engine.device == "auto" and large)

    @property
    def steps(self) -> int:
        """Steps that it trains."""
        return self.config.train.steps

    def trained(self) -> bool:
        return self.recorded or self.folder.finished()

    @property
    def benchmarks(self) -> list[str]:
        """Benchmarks that it is measured on."""
        return self.config.data.benchmarks

    def missing_benchmarks(self) -> list[str]:
        return [] if self.recorded else [name for name in self.benchmarks if not self.folder.has(name)]

    def validation(self) -> float | None:
        """The share of validation problems that the finished run's last weights answer, by the store; None where it is
        missing, or of other problems."""
        return final_validation(self.folder, self.config)

    def to_measure(self) -> float:
        """Benchmarks that are missing."""
        return len(self.missing_benchmarks())

    def done(self) -> bool:
        return self.trained() and self.to_measure() == 0


class Base(Unit):
    """The untrained model: there is nothing to train, and one seed stands for all."""

    trains = False

    @property
    def title(self) -> str:
        return self.label

    @property
    def outcome(self) -> str:
        return "not measured" if self.missing_benchmarks() else "measured"

    @property
    def steps(self) -> int:
        return 0

    def trained(self) -> bool:
        return True


class Trial(Unit):
    """A run that helps to choose a setting. It is validated in place of being measured, by which no benchmark's problem
    can enter the choice."""

    tuning = True
    measured_by = "--validate"

    @property
    def benchmarks(self) -> list[str]:
        return []

    def to_measure(self) -> float:
        """A validation counts by its share of the benchmarks' responses."""
        has_validation = self.recorded or self.validation() is not None
        return 0 if has_validation else validation_share(self.config)


@cache
def composed(words: Words, on_record: bool = False) -> tuple[RunConfig, str]:
    """A configuration and the hash of its identity, the same for every seed. Composed once, until `cache_clear`: in a
    notebook that plans a study twice its files may have changed in between. on_record: as for `identity`."""
    config = composed(words)[0] if on_record else compose(words)
    return config, content_hash(identity(config, on_record))


def recipe_words(study: Study, scale: str, overrides: Iterable[str] = ()) -> dict[tuple[str, str], Words]:
    """The overrides behind each (model, row name) of a study; `overrides` come last and apply to every row. `model=…`
    among them replaces the study's models. Raises UserError where they set what the study varies or tunes."""
    texts = list(overrides)
    override_models = [text.removeprefix("model=") for text in texts if text.startswith("model=")][-1:]
    for name in override_models:
        check_override(f"model={name}")
    extra = check_row_overrides([text for text in texts if not text.startswith("model=")])
    varied, key, verb = study.keys_set_at(scale), *(("tune", "tunes") if study.tune_at(scale) else ("vary", "varies"))
    for text in extra:
        if key_of(text) in varied:
            fix = f"leave it out, or change `{key}:` in a study of your own"
            raise UserError(f"{key_of(text)} is what the study {study.name} {verb}", where=text, fix=fix)
    chosen, usual, recipes = study.scale(scale), scale_studies(scale).objectives, {}
    for model in override_models or chosen.models:
        for row in study.rows_at(scale):
            words = (
                f"scale={scale}",
                f"model={model}",
                *usual.get(row.objective or "", ()),
                *chosen.overrides,
                *row.words(scale, model),
                *extra,
            )
            recipes[model, row.name] = words if row.base else (f"objective={row.objective}", *words)
    return recipes


@paths.one_look()
def make_plan(
    study: Study, scale: str, *, store: Path, seeds: Sequence[int] | None = None, overrides: Iterable[str] = ()
) -> list[Unit]:
    """All units of a study at a scale, in the order of models, settings, rows and seeds; of a study that tunes, those
    with which choosing begins (`tepo.studies.tuning_result` gives the others) and the base. `overrides` come last and
    apply to every row. The untrained base is measured once, whatever the seed."""
    words_of, tune = recipe_words(study, scale, overrides), study.tune_at(scale)
    report_seeds = () if tune else reporting_seeds(study, scale, seeds)
    for (_, label), words in words_of.items():
        try:
            composed(words)
        except UserError as error:
            where = f"{study.name}, row {label!r}: {error.where or ' '.join(words)}"
            raise UserError(error.what, where=where, fix=error.fix) from None

    def seeds_of(row: StudyRow) -> Sequence[int]:
        if row.base:
            return (0,)
        return tune.seeds_of(row.setting) if tune else report_seeds

    return [
        unit_of(row, model, words_of[model, row.name], seed, store, kind=Trial if tune else Unit)
        for model in dict.fromkeys(model for model, _ in words_of)
        for row in study.rows_at(scale)
        for seed in seeds_of(row)
    ]


def reporting_seeds(study: Study, scale: str, seeds: Sequence[int] | None) -> Sequence[int]:
    """The given seeds or else the study's. Raises UserError for one that the study tunes with."""
    if seeds is None:
        return study.scale(scale).seeds
    tune = study.tune_at(scale)
    if tune:
        check_apart(seeds, tune)
    return check_seeds(seeds)


def unit_of(
    row: StudyRow, model: str, words: Words, seed: int, store: Path, on_record: bool = False, kind: type[Unit] = Unit
) -> Unit:
    """A unit of a row, of a kind unless the row is the base. on_record: from the base on record, whatever lies here
    under its name."""
    recipe_config, recipe = composed(words, on_record)
    config = replace(recipe_config, store=str(store), seed=seed)
    folder = RunFolder.of_base(config, on_record) if row.base else RunFolder(store / run_id(config, recipe))
    kind = Base if row.base else kind
    return kind(row, model, seed, config, (*words, f"seed={seed}"), folder, recorded_base=on_record)


def on_record(unit: Unit) -> Unit:
    """The unit as records know it. What lies here under the name of its base is part of no record."""
    if unit.recorded_base or not unit.other_bases:
        return unit
    return unit_of(unit.row, unit.model, unit.overrides[:-1], unit.seed, unit.store, True, type(unit))


def scale_of(units: Sequence[Unit]) -> str:
    """The scale that the units of a study were planned at; a scale's file of one's own may call it otherwise."""
    words = {key_of(word): word.partition("=")[2] for word in units[0].overrides}
    return words.get("scale", units[0].config.scale)


def row_key(unit: Unit) -> str:
    """Name of a row of a model in the samples."""
    return f"{unit.model}/{unit.label}"


def reported(units: Iterable[Unit]) -> list[Unit]:
    """All but trials."""
    return [unit for unit in units if not unit.tuning]


def family_of(study: Study, units: Sequence[Unit]) -> int:
    """Number of comparisons that a verdict of the study is corrected over: every row but the baseline, at each setting
    of `vary:` and with each model of the plan, measured or not. 0 without a baseline."""
    if study.baseline is None:
        return 0
    settings = 1 if any(unit.tuning for unit in units) else len({unit.row.setting.overrides for unit in units})
    return len({unit.model for unit in units}) * settings * (len(study.rows) - 1)


def unique(units: Iterable[Unit]) -> list[Unit]:
    """Units with distinct keys, first come first."""
    return list({unit.key: unit for unit in units}.values())
