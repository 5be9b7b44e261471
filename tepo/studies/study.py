"""A study: one table or figure of a paper as a YAML file in `experiments/` or `ablations/`.

    title: what the table shows
    reference: {table: table3, panel: E, model: Qwen2.5-7B}   # where the paper's figures for it are
    baseline: GRPO/DAPO                                  # the label that Δ columns compare with
    rows:
      - label: TEPO                                      # all different; `{steps}` in one is what the row trains
        objective: tepo                                  # or `base: true` for the untrained model
        overrides: [objective.penalty.coefficient=1]     # any scale
        laptop: [train.epochs=1]                         # one scale only
        by_model: {qwen3-14b: [train.epochs=1]}          # one model only
        reference: tepo                                  # the paper's method key, or a mapping over `reference:` above
    scales:
      laptop: {models: [laptop], seeds: [0], overrides: []}
      paper: {models: [qwen2.5-7b], seeds: [1, 2], overrides: []}

A row is one objective with overrides; the plan crosses it with the scale's models and seeds.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from tepo import paths
from tepo.config.compose import check_override
from tepo.errors import UserError, unknown_name
from tepo.reporting.colours import UNTRAINED, Look, looks
from tepo.reporting.reference import PaperRow, RowKey, reference_row
from tepo.studies.place import Place

SCALES = ("laptop", "paper")
_STUDY_KEYS = ("title", "reference", "baseline", "rows", "scales", "panels", "figures", "models")
_ROW_KEYS = ("label", "objective", "base", "overrides", "reference", "by_model", *SCALES)
_SCALE_KEYS = ("models", "seeds", "overrides")
_SET_BY_STUDY = {
    "seed": "--seeds, or `seeds:` of the study",
    "store": "--store",
    "scale": "--scale",
    "model": "`models:` of the study; model.path=… for another copy of the weights",
    "objective": "`objective:` of the row; objective.KEY=… for a setting of it",
}


@dataclass(frozen=True)
class Row:
    """One line of a table. `objective` is None for the untrained base."""

    label: str
    objective: str | None
    overrides: tuple[str, ...]
    scale_overrides: dict[str, tuple[str, ...]]
    model_overrides: dict[str, tuple[str, ...]]
    reference: dict[str, Any] | None
    look: Look | None = None  # given when the study is read: the row's own among all rows of it


@dataclass(frozen=True)
class Scale:
    """What a study crosses its rows with at one scale."""

    models: tuple[str, ...]
    seeds: tuple[int, ...]
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Study:
    """A checked study file."""

    name: str
    title: str
    rows: tuple[Row, ...]
    baseline: str | None
    reference: dict[str, Any]
    scales: dict[str, Scale]
    panels: tuple[str, ...] = ()
    models: dict[str, str] = field(default_factory=dict)  # model option -> the paper's name for it
    figures: tuple[dict[str, Any], ...] = ()

    def scale(self, name: str) -> Scale:
        """Raises UserError for a scale the study does not describe."""
        if name not in self.scales:
            raise unknown_name("scale", name, self.scales, where=f"study {self.name}")
        return self.scales[name]


def study_names() -> list[str]:
    """Every study that can be asked for."""
    return sorted({*paths.names("experiments"), *paths.names("ablations")})


def load_study(name: str) -> Study:
    """Read and check a study by name (`panel-e`, `panel_e`, `table1`, `1` …).

    Raises UserError naming file, line and key.
    """
    name = f"table{name}" if name.isdigit() else name.replace("-", "_")
    kind = next((kind for kind in ("experiments", "ablations") if name in paths.names(kind)), None)
    if kind is None:
        raise unknown_name("study", name, study_names())
    return parse_study(paths.find(kind, name))


def parse_study(path: Path) -> Study:
    """The study in a file, checked."""
    try:
        text = path.read_text(encoding="utf-8")
        tree, data = yaml.compose(text), yaml.safe_load(text)
    except UnicodeDecodeError:
        raise UserError("not a text file in UTF-8", where=str(path), fix="save it as UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise UserError(
            f"not valid YAML: {getattr(error, 'problem', error)}",
            where=f"{path}:{mark.line + 1 if mark else '?'}",
            fix="check indentation, colons and brackets",
        ) from None
    if not isinstance(data, dict):
        raise UserError(
            "a study is a mapping with title, rows and scales", where=str(path), fix="see ablations/panel_e.yaml"
        )
    where = Place(path, tree)
    where.keys(data, _STUDY_KEYS, "title", "scales")
    for key, kind in {
        "rows": list,
        "panels": list,
        "figures": list,
        "reference": dict,
        "models": dict,
        "scales": dict,
    }.items():
        where.kind(data, key, kind)
    panels = tuple(map(str, data.get("panels") or ()))
    rows = tuple(
        _row(entry, data.get("reference") or {}, where.at("rows", number))
        for number, entry in enumerate(data.get("rows") or [])
    )
    if bool(rows) == bool(panels):
        raise UserError(
            "a study has either `rows:` or `panels:`",
            where=where.text(),
            fix="see ablations/panel_e.yaml, experiments/table3.yaml",
        )
    labels = [row.label for row in rows]
    own = looks({row.label: row.objective or UNTRAINED for row in rows})
    rows = tuple(replace(row, look=own[row.label]) for row in rows)
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(
                f"two rows are labelled {label!r}",
                where=where.text("rows"),
                fix="labels name rows; make them different",
            )
    if data.get("baseline") is not None and rows and data["baseline"] not in labels:
        raise unknown_name("baseline", str(data["baseline"]), labels, where=where.text("baseline"))
    scales = {name: _scale(entry or {}, where.at("scales", name)) for name, entry in (data["scales"] or {}).items()}
    for name in scales:
        if name not in SCALES:
            raise unknown_name("scale", name, SCALES, where=where.text("scales"))
    if not scales:
        raise UserError(
            "a study names at least one scale", where=where.text("scales"), fix="laptop: {models: [laptop], seeds: [0]}"
        )
    _check_figures(data.get("figures") or [], labels, where)
    study = Study(
        path.stem,
        str(data["title"]),
        rows,
        data.get("baseline"),
        data.get("reference") or {},
        scales,
        panels,
        data.get("models") or {},
        tuple(data.get("figures") or ()),
    )
    for number, row in enumerate(rows):
        for model in dict.fromkeys(model for scale in scales.values() for model in scale.models):
            _check_reference(study, model, row, where.at("rows", number))
    return study


def _check_figures(figures: list[Any], labels: list[str], where: Place) -> None:
    for number, entry in enumerate(figures):
        place = where.at("figures", number)
        place.keys(entry, ("name", "rows"), "name", "rows")
        place.kind(entry, "rows", list)
        for label in entry["rows"] or []:
            if label not in labels:
                raise unknown_name("row", str(label), labels, where=place.text("rows"))


def _check_reference(study: Study, model: str, row: Row, where: Place) -> None:
    """The paper must have the row now, not when the table is rendered after hours of training."""
    try:
        printed(study, model, row)
    except UserError as error:
        raise UserError(error.what, where=where.text("reference"), fix=error.fix) from None


def printed(study: Study, model: str, row: Row) -> PaperRow | None:
    """The paper's row for a row of the study, None where the study names none.

    Raises UserError when the paper has no such row.
    """
    if row.reference is None:
        return None
    where = {
        key: value for key, value in {"model": study.models.get(model), **row.reference}.items() if value is not None
    }
    if "table" not in where or "method" not in where:
        raise UserError("a reference names `table:` and `method:`", fix="see ablations/panel_e.yaml")
    try:
        return reference_row(RowKey(**where))
    except TypeError:
        known = ("table", "method", "model", "panel", "steps", "seed", "kind")
        raise unknown_name("key of a reference", next(key for key in where if key not in known), known) from None


def _row(entry: Any, study_reference: dict[str, Any], where: Place) -> Row:
    where.keys(entry, _ROW_KEYS, "label")
    if bool(entry.get("base")) == ("objective" in entry):
        raise UserError("a row has either `objective: NAME` or `base: true`", where=where.text())
    if "objective" in entry:
        where.name("objective", entry["objective"], "objective")
    reference = entry.get("reference")
    if isinstance(reference, str):
        reference = {"method": reference}
    elif reference is not None and not isinstance(reference, dict):
        raise UserError(
            f"a reference is a method of the paper or a mapping, not {reference!r}",
            where=where.text("reference"),
            fix="see ablations/panel_e.yaml",
        )
    where.kind(entry, "by_model", dict)
    by_model = {where.name("model", model, "by_model"): words for model, words in (entry.get("by_model") or {}).items()}
    return Row(
        label=str(entry["label"]),
        objective=entry.get("objective"),
        overrides=_overrides(entry.get("overrides"), where, "overrides"),
        scale_overrides={scale: _overrides(entry.get(scale), where, scale) for scale in SCALES},
        model_overrides={model: _overrides(words, where, "by_model") for model, words in by_model.items()},
        reference=None if reference is None else {**study_reference, **reference},
    )


def _scale(entry: Any, where: Place) -> Scale:
    where.keys(entry, _SCALE_KEYS, "models", "seeds")
    models = entry["models"]
    if not isinstance(models, list) or not models:
        raise UserError("models is a list of names", where=where.text("models"), fix="models: [laptop]")
    for number, model in enumerate(models):
        where.name("model", model, "models", number)
    try:
        seeds = check_seeds(entry["seeds"])
    except UserError as error:
        raise UserError(error.what, where=where.text("seeds"), fix=error.fix) from None
    return Scale(tuple(models), tuple(seeds), _overrides(entry.get("overrides"), where, "overrides"))


def check_seeds(seeds: Any) -> list[int]:
    """Seeds as given.

    Raises UserError unless they are different whole numbers from 0 up: a seed that counts twice would narrow every
    interval.
    """
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise UserError("seeds are whole numbers from 0 up", fix="for example 0, 1, 2")
    if len(set(seeds)) < len(seeds):
        raise UserError("a seed is listed twice", fix="name each once")
    return seeds


def _overrides(value: Any, where: Place, key: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) and "=" in item for item in value):
        raise UserError("expected a list of overrides like train.epochs=1", where=where.text(key))
    try:
        return check_row_overrides(value)
    except UserError as error:
        raise UserError(error.what, where=where.text(key), fix=error.fix) from None


def check_row_overrides(words: Iterable[str]) -> tuple[str, ...]:
    """Overrides of rows: their keys must exist, and must not be what the study itself sets. Raises UserError."""
    for text in words:
        check_override(text)
        key = text.partition("=")[0].lstrip("+").strip()
        if key in _SET_BY_STUDY:
            raise UserError(f"{key} cannot be an override of a study's rows: {text!r}", fix=_SET_BY_STUDY[key])
    return tuple(words)
