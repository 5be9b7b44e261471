"""A study: one table or figure of a paper as a YAML file in `experiments/` or `ablations/` (docs/studies.md has its
keys), and what a scale's own file says of studies under `studies:`.

A row is one objective with overrides; the plan crosses it with the settings, and the scale's models and seeds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tepo.common import paths
from tepo.common.errors import UserError, unknown_name
from tepo.common.schema import REQUIRED, Location, derived, option, read
from tepo.common.schema.document import load
from tepo.common.text import listed, with_setting
from tepo.config.compose import check_override, options
from tepo.config.own_files import is_own
from tepo.formula.row import load_row
from tepo.reporting.colours import UNTRAINED, Look, looks
from tepo.reporting.printed import PaperRow, load_table, printed_row
from tepo.studies.tune import Tune, check_tune
from tepo.studies.vary import Setting, Vary, Words, check_values, key_of, settings, values_of, varied_keys

SCALES = ("laptop", "single_gpu", "paper")  # those with overrides of their own in a row
USUAL = "laptop"  # the scale of studies that are taken at several, where none is asked for
CLAIMS = "claims"  # beside the studies, of another form: tepo.studies.claims
Reference = dict[Literal["table", "method", "model", "panel", "steps", "seed", "kind"], str | int | None]
_TWO = "write two studies"
_PRINTED = {"vary": "sweep", "tune": "row that was tuned like this"}
_ROWS = "rows: [{label: Untrained, base: true}, {label: GSPO, objective: gspo}]"
_SET_BY_STUDY = {
    "seed": "--seeds, or `seeds:` of the study",
    "store": "--store",
    "scale": "--scale",
    "model": "`models:` of the study; model.path=… for another copy of the weights",
    "objective": "`objective:` of the row; objective.KEY=… for a setting of it",
}


@dataclass(frozen=True)
class StudyRow:
    """One line of a table."""

    label: str = option(REQUIRED, "names the row; `{steps}` in it is what the row trains")
    objective: str | None = option(None, "what the row trains with; None for the untrained base")
    base: bool = option(False, "the untrained model")
    overrides: Words = option((), "overrides at any scale, such as train.epochs=1")
    laptop: Words = option((), "overrides at this scale alone")
    single_gpu: Words = option((), "overrides at this scale alone")
    paper: Words = option((), "overrides at this scale alone")
    by_model: dict[str, Words] = option({}, "model: overrides with it alone")
    reference: str | Reference | None = option(None, "the paper's method, or a mapping over `reference:` of the study")
    look: Look | None = derived(None, "given when the study is read: the row's own among all rows of it")
    setting: Setting = derived(Setting(), "`vary:` and `tune:` of the study give the row one at a time")

    @property
    def name(self) -> str:
        """The label and the setting: no other row of the study has it."""
        return with_setting(self.label, self.setting.point)

    def words(self, scale: str, model: str) -> Words:
        """The overrides of the row at a scale, with a model and at its setting, the later ones win. Where the row says
        nothing of the scale, it is taken as at the one that the scale is `like`."""
        written = {key: getattr(self, key) for key in SCALES}
        at_scale = written.get(scale) or written.get(scale_studies(scale).like or "", ())
        return (*self.overrides, *at_scale, *self.by_model.get(model, ()), *self.setting.overrides)


@dataclass(frozen=True)
class Scale:
    """Models, seeds and overrides that a study crosses its rows with at one scale."""

    models: tuple[str, ...] = option(REQUIRED, "names of models")
    seeds: tuple[int, ...] = option(REQUIRED, "whole numbers from 0 up", low=0)
    overrides: Words = option((), "overrides of all rows")
    vary: Vary = option({}, "axes at this scale, in place of the study's of the same name")
    tune: Tune | None = option(None, "at this scale, in place of the study's")
    drawn: str = option("", "axis whose values are draws of a population, as bases are: rows are compared over it too")
    same_as: dict[str, str] = option({}, "label: that of the row that it trains as at this scale, but for rounding")


@dataclass(frozen=True)
class ScaleStudies:
    """Settings of studies at a scale."""

    like: str | None = option(None, "the scale that a study is taken at which does not name this one")
    one_core: bool = option(False, "a run takes one core of a CPU: plans are of its seconds, and of no GPU's")
    stand_ins: dict[str, str] = option({}, "model there: the model here")
    objectives: dict[str, Words] = option({}, "objective: overrides of every row that trains with it")


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


@dataclass(frozen=True)
class Figure:
    """One figure of the paper."""

    name: str = option(REQUIRED, "what it is asked for by")
    rows: tuple[str, ...] = option(REQUIRED, "labels of the rows it shows")
    of: str = option("", "the paper and its number for it")
    says: str = option("", "what the paper reads off it")
    curves: tuple[str, ...] = option((), "reward, entropy, clip_ratio, gradient_norm, response_length, step_time")
    best: int | None = option(
        None, "in place of curves the best reward of k samples: 0 the largest k, 1 the next", low=0
    )


@dataclass(frozen=True)
class Study:
    """A checked study file: it has either rows or panels."""

    title: str = option(REQUIRED, "what the table shows")
    reference: Reference = option({}, "where the paper's figures for it are")
    baseline: str | None = option(None, "the label that Δ columns compare with")
    rows: tuple[StudyRow, ...] = option((), "the lines of the table")
    scales: dict[str, Scale] = option({}, "models and seeds at each scale")
    panels: tuple[str, ...] = option((), "studies that are the parts of this table")
    models: dict[str, str] = option({}, "model: the paper's name for it")
    figures: tuple[Figure, ...] = option((), "the paper's figures, and the rows in each")
    vary: Vary = option({}, "settings that the rows are crossed with")
    tune: Tune | None = option(None, "settings drawn for each row, to report it at its best")
    realised_kl: bool = option(False, "a sweep shows the realised KL of each cell beside its accuracy")
    author: str = option("", "who made it, named on its page")
    notes: tuple[str, ...] = option((), "sentences that stand below the table and at the head of its page")
    name: str = derived("", "the file's name names the study")
    batch: str = derived("", "of a registered claim, with its own seeds and settings: name of the batch's records")

    @property
    def registered(self) -> bool:
        """Tell whether it decides a registered claim."""
        return bool(self.batch)

    def own_scale(self, asked: str | None) -> str:
        """The scale that is asked for, without one the usual or the only one of the study; a registered claim has one.
        Raises UserError where a study has several others."""
        if self.registered or (asked is None and len(self.scales) == 1):
            return next(iter(self.scales))
        if asked is None and USUAL not in self.scales:
            fix = " or ".join(f"--scale {name}" for name in self.scales)
            raise UserError(f"{self.name} is taken at several scales", where=f"study {self.name}", fix=fix)
        return asked or USUAL

    def scale(self, name: str) -> Scale:
        """The settings written for a scale, else those that its file makes of another (`scale_studies`). Raises
        UserError for a scale that is not there, and for one that the study cannot be taken at. A registered claim has
        one scale."""
        if name in self.scales or self.registered:
            return self.scales[self.own_scale(name)]
        scale_settings, file = scale_studies(name), str(paths.find("scale", name))
        ships = paths.shipped("scale") == Path(file).parent
        if scale_settings.like not in self.scales:
            if ships:
                raise unknown_name("scale", name, self.scales, where=f"study {self.name}")
            like = USUAL if USUAL in self.scales else next(iter(self.scales))
            said = f"is like {scale_settings.like}" if scale_settings.like else "does not say which scale it is like"
            what = f"scale {name} {said}, and {self.name} is written for {listed(self.scales)}"
            raise UserError(what, where=file, fix=_stand_ins(like, self.scales[like].models))
        like_scale = self.scales[scale_settings.like]
        if missing := [model for model in like_scale.models if model not in scale_settings.stand_ins]:
            what = f"scale {name} names no model in place of {listed(missing)}, which {self.name} trains at scale "
            fix = _stand_ins(scale_settings.like, like_scale.models)
            if ships:  # its file is not the user's to change
                model = next(iter(scale_settings.stand_ins.values()))
                fix = f"`scales: {{{name}: {{models: [{model}], seeds: {[*like_scale.seeds]}}}}}` in the study"
            raise UserError(what + scale_settings.like, where=f"study {self.name}" if ships else file, fix=fix)
        return replace(like_scale, models=tuple(scale_settings.stand_ins[model] for model in like_scale.models))

    def vary_at(self, scale: str) -> Vary:
        """Settings that vary at a scale."""
        return {**self.vary, **self.scale(scale).vary}

    def tune_at(self, scale: str) -> Tune | None:
        """Settings by which the rows are tuned at a scale."""
        return self.scale(scale).tune or self.tune

    def rows_at(self, scale: str) -> list[StudyRow]:
        """The rows crossed with the settings of a scale, setting after setting; the base is not tuned."""
        tune = self.tune_at(scale)
        if tune is None:
            return [replace(row, setting=setting) for setting in settings(self.vary_at(scale)) for row in self.rows]
        base = [row for row in self.rows if row.base]
        return base + [replace(row, setting=setting) for setting in tune.settings for row in self.rows if not row.base]

    def keys_set_at(self, scale: str) -> set[str]:
        """The configuration keys that `vary:` or `tune:` sets."""
        tune = self.tune_at(scale)
        return varied_keys(self.vary_at(scale)) | (tune.keys if tune else set())


def _stand_ins(like: str, models: Sequence[str]) -> str:
    """What the file of a scale has to say for studies that are written for another scale."""
    pairs = ", ".join(f"{model}: {model}" for model in models)
    return f"`studies: {{like: {like}, stand_ins: {{{pairs}}}}}` in it, with the model to train behind each colon"


def study_names() -> list[str]:
    """Every study that can be asked for."""
    return sorted({name for kind in paths.STUDIES for name in paths.names(kind)} - {CLAIMS})


def file_stem(name: str) -> str:
    """The file's name of a study as it is asked for."""
    return f"table{name}" if name.isdigit() else name.replace("-", "_")


def load_study(name: str) -> Study:
    """Read and check a study by name (`panel-e`, `panel_e`, `table1`, `1` …). Raises UserError naming file, line and
    key."""
    name = file_stem(name)
    path = study_file(name)
    if path is None:
        raise unknown_name("study", name, study_names())
    return parse_study(path)


def study_file(name: str) -> Path | None:
    """The file of a study; None where there is none of that name."""
    files = (paths.files(kind).get(name) for kind in paths.STUDIES)
    return None if name == CLAIMS else next(filter(None, files), None)


def parse_study(path: Path) -> Study:
    """The study in a file, checked."""
    document = load(path)
    at = document.at
    study = read(Study, document.data, at)
    rows = [
        replace(row, objective=str(path.parent.absolute() / row.objective))  # a file, from the folder of the study
        if row.objective and is_own("objective", row.objective)
        else row
        for row in study.rows
    ]
    rows = [replace(row, reference=_placed(row.reference, path.parent)) for row in rows]
    of_paper = path.stem == "study"  # in a folder that is named for it, beside the figures as printed
    reference = _placed({**({"table": "printed.csv"} if of_paper else {}), **study.reference}, path.parent)
    name = path.parent.name if of_paper else path.stem
    study = replace(study, name=name, rows=tuple(rows), reference=reference)
    if bool(study.rows) == bool(study.panels):
        raise at.error("a study has either `rows:` or `panels:`", fix=f"{_ROWS}, or panels: [panel_a, panel_b]")
    if not study.scales:
        raise at.at("scales").error("a study names at least one scale", fix="laptop: {models: [laptop], seeds: [0]}")
    _check_rows(study, at)
    _check_settings(study, at)
    if study.realised_kl and not any(study.vary_at(name) for name in study.scales):
        fix = "vary: {train.learning_rate: [1e-4, 4e-4]}"
        raise at.at("realised_kl").error("realised_kl is of the cells of a sweep", fix=fix)
    for name in study.scales:
        _check_scale(study, name, at)
    for number, panel in enumerate(study.panels):
        if panel in study.panels[:number]:
            raise at.at("panels", number).error(f"the panel {panel} is listed twice", fix="name it once")
        if file_stem(panel) not in study_names():
            raise at.at("panels", number).unknown("panel", panel, study_names())
    # models that stand in for others at another scale are compared with the same figures
    pairs = [pair for scale in options("scale") for pair in scale_studies(scale).stand_ins.items()]
    models = {stand_in: study.models[model] for model, stand_in in pairs if model in study.models} | study.models
    row_looks = looks({row.label: row.objective or UNTRAINED for row in study.rows})
    return replace(study, models=models, rows=tuple(replace(row, look=row_looks[row.label]) for row in study.rows))


def _placed(reference: Any, folder: Path) -> Any:
    """A reference with the place of its table: in the folder of the study, or of a paper that ships
    (`papers/tepo/table1.csv`)."""
    if not isinstance(reference, dict) or "table" not in reference:
        return reference
    table = str(reference["table"])
    shipped = paths.shipped(paths.EXPERIMENTS) / table
    own = folder / table
    return {**reference, "table": str(shipped if shipped.is_file() and not own.is_file() else own)}


def _check_rows(study: Study, at: Location) -> None:
    """Check each row by itself, that labels differ, and that the baseline and the figures name some of them."""
    labels = [row.label for row in study.rows]
    for number, row in enumerate(study.rows):
        here = at.at("rows", number)
        if row.label in labels[:number]:
            fix = "labels name rows; make them different"
            raise here.at("label").error(f"two rows are labelled {row.label!r}", fix=fix)
        if row.base == (row.objective is not None):
            raise here.error("a row has either `objective: NAME` or `base: true`", fix=_ROWS)
        if row.objective is not None and is_own("objective", row.objective):
            load_row(row.objective)
        elif row.objective is not None and row.objective not in options("objective"):
            raise here.at("objective").unknown("objective", row.objective, options("objective"))
        for key in ("overrides", *SCALES):
            check_words(getattr(row, key), here.at(key))
        for model, words in row.by_model.items():
            _check_model(model, here.at("by_model", model))
            check_words(words, here.at("by_model", model))
    if study.baseline is not None and labels and study.baseline not in labels:
        raise at.at("baseline").unknown("baseline", study.baseline, labels)
    for number, figure in enumerate(study.figures):
        for index, label in enumerate(figure.rows):
            if label not in labels:
                raise at.at("figures", number, "rows", index).unknown("row", label, labels)


def _check_settings(of: Study | Scale, at: Location) -> None:
    """Check `vary:` and `tune:`: ranges and keys that exist, each set by one axis, and seeds that differ."""
    axes = [(of.vary, at.at("vary"))]
    if of.tune is not None:
        with at.at("tune", "seeds").named():
            check_seeds(of.tune.seeds)
        check_tune(of.tune, at.at("tune"))
        axes.append((of.tune.ends, at.at("tune", "space")))
    for vary, here in axes:
        check_values(vary, here)
        for axis, values in vary.items():
            for words in values_of(axis, values).values():
                with here.at(axis).named():
                    check_row_overrides(words)


def _check_scale(study: Study, name: str, at: Location) -> None:
    """Check what a study says of a scale, and its rows there."""
    scale, here = study.scales[name], at.at("scales", name)
    if name not in options("scale"):
        raise here.unknown("scale", name, options("scale"))
    if not scale.models:
        raise here.at("models").error("models is a list of at least one name", fix="models: [laptop]")
    for number, model in enumerate(scale.models):
        _check_model(model, here.at("models", number))
    with here.at("seeds").named():
        check_seeds(scale.seeds)
    check_words(scale.overrides, here.at("overrides"))
    _check_settings(scale, here)
    for number, row in enumerate(study.rows):  # the paper must have each row now, not after hours of training
        for model in dict.fromkeys(scale.models):
            with at.at("rows", number, "reference").named():
                printed(study, model, row)
    vary, tune, drawn_axis = study.vary_at(name), study.tune_at(name), scale.drawn
    check_values(vary, here.at("vary"))
    if vary or tune:
        _check_sweep(study, name, at)
    if drawn_axis and drawn_axis not in vary:
        raise here.at("drawn").unknown("axis of `vary:`", drawn_axis, vary)
    if drawn_axis and study.baseline is None:
        raise here.at("drawn").error("`drawn:` compares rows with a baseline", fix="baseline: LABEL of one row")
    trained = [row.label for row in study.rows if not row.base]
    for label, other in scale.same_as.items():  # from trained rows to trained rows that it does not lead from
        place = here.at("same_as", label)
        for row_label in (label, other):
            if row_label not in trained:
                raise place.unknown("row", row_label, trained)
        if other in scale.same_as:
            raise place.error(f"{other!r} is itself the same as another row", fix=f"{label}: {scale.same_as[other]}")


def _check_sweep(study: Study, scale: str, at: Location) -> None:
    """Check that nothing else sets what varies or is tuned, and that the paper's numbers of one setting stay out."""
    tune, keys = study.tune_at(scale), study.keys_set_at(scale)
    word = "tune" if tune else "vary"
    if tune and study.vary_at(scale):
        raise at.at("tune").error("`tune:` chooses one setting a row; it cannot stand beside `vary:`", fix=_TWO)
    for key in ("panels", "figures"):
        if getattr(study, key):
            what = {"vary": "crosses rows", "tune": "chooses settings of rows"}[word]
            raise at.at(key).error(f"`{word}:` {what}; it cannot stand beside `{key}:`", fix=_TWO)
    if tune:
        with at.at("scales", scale, "seeds").named():
            check_apart(study.scale(scale).seeds, tune)
    rows = {(row.label, row.name) for row in study.rows_at(scale)}
    if len({name for _, name in rows}) < len(rows):
        raise at.at(word).error("two rows would be labelled alike at their settings", fix="give a row another label")
    written = [(study.scale(scale).overrides, at.at("scales", scale, "overrides"))]
    for number, row in enumerate(study.rows):
        here = at.at("rows", number)
        if row.reference is not None:
            raise here.at("reference").error(f"the paper printed no {_PRINTED[word]}", fix="leave `reference:` out")
        if "{steps}" in row.label and "train.steps" in keys:
            raise here.at("label").error("train.steps varies, so the setting names the steps", fix="leave {steps} out")
        written += [
            (getattr(row, part), here.at(part)) for part in ("overrides", *SCALES) if part in ("overrides", scale)
        ]
        written += [(words, here.at("by_model", model)) for model, words in row.by_model.items()]
    for words, here in written:
        for text in words:
            if key_of(text) in keys:
                raise here.error(f"{text!r} sets what `{word}:` sets", fix="leave one of the two out")


def check_apart(seeds: Iterable[int], tune: Tune) -> None:
    """Raises UserError for a reporting seed that has chosen: its score would be too good."""
    both = sorted(set(seeds) & set(tune.seeds))
    if both:
        what = f"seed {', '.join(map(str, both))} chooses the settings (`seeds:` of `tune:`), so it cannot report them"
        raise UserError(what, fix="take other seeds in one of the two")


def _check_model(name: str, at: Location) -> None:
    """An option of the group, or a model of the user's own."""
    if name not in options("model") and not is_own("model", name):
        raise at.unknown("model", name, options("model"))


def check_words(words: Words, at: Location) -> None:
    """`check_row_overrides`, naming the place of the word that is wrong."""
    for number, word in enumerate(words):
        with at.at(number).named():
            check_row_overrides([word])


def printed(study: Study, model: str, row: StudyRow) -> PaperRow | None:
    """The paper's row for a row of the study, None where the study names none and where the paper prints the method
    for other models alone. Raises UserError when the paper has no such row."""
    if row.reference is None:
        return None
    own_reference: dict[Any, Any] = {"method": row.reference} if isinstance(row.reference, str) else {**row.reference}
    of_model = {"model": study.models[model]} if model in study.models else {}
    merged: dict[Any, Any] = {**study.reference, **of_model, **own_reference}
    where = {key: value for key, value in merged.items() if value is not None}
    if "table" not in where or "method" not in where:
        fix = "reference: {table: printed.csv, method: gspo}"
        raise UserError("a reference names `table:` and `method:`", fix=fix)
    table = Path(where.pop("table"))
    models = {row.model for row in load_table(table)}
    models_of_method = {row.model for row in load_table(table) if row.method == where["method"]}
    if "model" not in own_reference and models_of_method and where.get("model") in models - models_of_method:
        return None
    return printed_row(table, **where)


def check_seeds(seeds: Sequence[int]) -> Sequence[int]:
    """Seeds as given. Raises UserError unless they are different whole numbers from 0 up: a seed that counts twice
    would narrow every interval."""
    if not seeds or not all(type(seed) is int and 0 <= seed < 2**63 for seed in seeds):
        raise UserError("seeds are whole numbers from 0 up, and below 2^63", fix="for example 0, 1, 2")
    if len(set(seeds)) < len(seeds):
        raise UserError("a seed is listed twice", fix="name each once")
    return seeds


def check_row_overrides(words: Iterable[str]) -> tuple[str, ...]:
    """Overrides of rows: their keys must exist, and must not be what the study itself sets. Raises UserError."""
    for text in words:
        check_override(text)
        key = key_of(text)
        if key in _SET_BY_STUDY:
            raise UserError(f"{key} cannot be an override of a study's rows: {text!r}", fix=_SET_BY_STUDY[key])
    return tuple(words)
