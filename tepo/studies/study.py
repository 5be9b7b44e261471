"""A study: one table or figure of a paper as a YAML file in `experiments/` or `ablations/`.

    title: what the table shows
    reference: {table: table3, panel: E, model: Qwen2.5-7B}   # where the paper's figures for it are
    baseline: GRPO/DAPO                                    # the label that Δ columns compare with
    rows:
      - label: TEPO
        objective: tepo                                    # or `base: true` for the untrained model
        overrides: [objective.penalty.coefficient=1]       # any scale
        laptop: [train.epochs=1]                           # one scale only
        by_model: {qwen3-14b: [train.epochs=1]}            # one model only
        reference: tepo                                    # the paper's method key, or a mapping over `reference:` above
    scales:
      laptop: {models: [laptop], seeds: [0], overrides: []}
      paper: {models: [qwen2.5-7b], seeds: [1, 2], overrides: []}

A row is one objective with overrides; the plan crosses it with the scale's models and seeds.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tepo import paths
from tepo.errors import UserError, unknown_name
from tepo.reporting.reference import PaperRow, reference_row

SCALES = ("laptop", "paper")
_STUDY_KEYS = ("title", "reference", "baseline", "rows", "scales", "panels", "figures", "models")
_ROW_KEYS = ("label", "objective", "base", "overrides", "reference", "by_model", *SCALES)
_SCALE_KEYS = ("models", "seeds", "overrides")


@dataclass(frozen=True)
class Row:
    """One line of a table. `objective` is None for the untrained base."""

    label: str
    objective: str | None
    overrides: tuple[str, ...]
    scale_overrides: dict[str, tuple[str, ...]]
    model_overrides: dict[str, tuple[str, ...]]
    reference: dict[str, Any] | None


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
    """Read and check a study by name (`panel-e`, `panel_e`, `table1`, `1` …). Raises UserError naming file, line and key."""
    name = f"table{name}" if name.isdigit() else name.replace("-", "_")
    kind = next((kind for kind in ("experiments", "ablations") if name in paths.names(kind)), None)
    if kind is None:
        raise unknown_name("study", name, study_names())
    return parse_study(paths.find(kind, name))


def parse_study(path: Path) -> Study:
    """The study in a file, checked."""
    try:
        tree = yaml.compose(path.read_text())
        data = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise UserError(f"not valid YAML: {getattr(error, 'problem', error)}", where=f"{path}:{mark.line + 1 if mark else '?'}", fix="check indentation, colons and brackets") from None
    if not isinstance(data, dict):
        raise UserError("a study is a mapping with title, rows and scales", where=str(path), fix="see ablations/panel_e.yaml")
    where = _Where(path, tree)
    where.keys(data, _STUDY_KEYS, "title", "scales")
    panels = tuple(data.get("panels") or ())
    rows = tuple(_row(entry, data.get("reference") or {}, where.at("rows", number)) for number, entry in enumerate(data.get("rows") or []))
    labels = [row.label for row in rows]
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(f"two rows are labelled {label!r}", where=where.text("rows"), fix="labels name rows; make them different")
    if data.get("baseline") is not None and rows and data["baseline"] not in labels:
        raise unknown_name("baseline", str(data["baseline"]), labels, where=where.text("baseline"))
    scales = {name: _scale(entry or {}, where.at("scales", name)) for name, entry in (data["scales"] or {}).items()}
    for name in scales:
        if name not in SCALES:
            raise unknown_name("scale", name, SCALES, where=where.text("scales"))
    study = Study(path.stem, str(data["title"]), rows, data.get("baseline"), data.get("reference") or {}, scales, panels, data.get("models") or {}, tuple(data.get("figures") or ()))
    for number, row in enumerate(rows):
        for model in dict.fromkeys(model for scale in scales.values() for model in scale.models):
            _check_reference(study, model, row, where.at("rows", number))
    return study


def _check_reference(study: Study, model: str, row: Row, where: "_Where") -> None:
    """The paper must have the row now, not when the table is rendered after hours of training."""
    try:
        printed(study, model, row)
    except UserError as error:
        raise UserError(error.what, where=where.text("reference"), fix=error.fix) from None


def printed(study: Study, model: str, row: Row) -> PaperRow | None:
    """The paper's row for a row of the study, None where the study names none. Raises UserError when the paper has no such row."""
    if row.reference is None:
        return None
    where = {key: value for key, value in {"model": study.models.get(model), **row.reference}.items() if value is not None}
    if "table" not in where or "method" not in where:
        raise UserError("a reference names `table:` and `method:`", fix="see ablations/panel_e.yaml")
    try:
        return reference_row(**where)
    except TypeError:
        known = ("table", "method", "model", "panel", "steps", "seed", "kind")
        raise unknown_name("key of a reference", next(key for key in where if key not in known), known) from None


@dataclass(frozen=True)
class _Where:
    """A place in a YAML file, for messages with line numbers."""

    path: Path
    node: Any

    def at(self, *keys: str | int) -> "_Where":
        node = self.node
        for key in keys:
            child = _child(node, key)
            if child is None:
                break
            node = child
        return _Where(self.path, node)

    def text(self, *keys: str | int) -> str:
        place = self.at(*keys)
        return f"{self.path}:{place.node.start_mark.line + 1}" + (f" ({'.'.join(map(str, keys))})" if keys else "")

    def keys(self, data: Any, known: tuple[str, ...], *required: str) -> None:
        if not isinstance(data, dict):
            raise UserError(f"expected a mapping with the keys {', '.join(known)}", where=self.text(), fix="see ablations/panel_e.yaml")
        for key in data:
            if key not in known:
                raise unknown_name("key", str(key), known, where=self.text(str(key)))
        for key in required:
            if key not in data:
                raise UserError(f"the key {key!r} is missing", where=self.text(), fix="see ablations/panel_e.yaml")


def _child(node: Any, key: str | int) -> Any:
    if isinstance(node, yaml.MappingNode):
        return next((value for name, value in node.value if name.value == str(key)), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        return node.value[key]
    return None


def _row(entry: Any, study_reference: dict[str, Any], where: _Where) -> Row:
    where.keys(entry, _ROW_KEYS, "label")
    if bool(entry.get("base")) == ("objective" in entry):
        raise UserError("a row has either `objective: NAME` or `base: true`", where=where.text())
    reference = entry.get("reference")
    if isinstance(reference, str):
        reference = {"method": reference}
    return Row(
        label=str(entry["label"]),
        objective=entry.get("objective"),
        overrides=_overrides(entry.get("overrides"), where, "overrides"),
        scale_overrides={scale: _overrides(entry.get(scale), where, scale) for scale in SCALES},
        model_overrides={model: _overrides(words, where, "by_model") for model, words in (entry.get("by_model") or {}).items()},
        reference=None if reference is None else {**study_reference, **reference},
    )


def _scale(entry: Any, where: _Where) -> Scale:
    where.keys(entry, _SCALE_KEYS, "models", "seeds")
    seeds = entry["seeds"]
    if not isinstance(seeds, list) or not all(isinstance(seed, int) for seed in seeds) or not seeds:
        raise UserError("seeds is a list of integers", where=where.text("seeds"))
    return Scale(tuple(entry["models"]), tuple(seeds), _overrides(entry.get("overrides"), where, "overrides"))


def _overrides(value: Any, where: _Where, key: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) and "=" in item for item in value):
        raise UserError("expected a list of overrides like train.epochs=1", where=where.text(key))
    return tuple(value)
