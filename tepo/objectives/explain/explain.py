"""Explanation of an objective: its formula, what is detached, the coefficient of grad log pi, its constants with their
sources, and how it differs from another one. The library part of `tepo explain`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import yaml

from tepo.common.paths import departure
from tepo.common.schema import in_force
from tepo.objectives.axis import Line
from tepo.objectives.explain.coefficient import Coefficient, carried_by, coefficient
from tepo.objectives.loading import AXES, load_objective, names, objective_mapping, parts_of, text
from tepo.objectives.objective import Objective

NEEDS = {
    "entropies": "current entropies",
    "entropy_gradient": "their gradient",
    "old_entropies": "the old policy's entropies",
    "initial_logprobs": "the initial policy's log-probs",
    "sampler_logprobs": "the sampler's log-probs",
    "full_kl": "the exact KL at each token",
    "prepass": "current log-probs of the whole mini-batch before its first backward pass",
}
BASELINE = "grpo_dapo"  # TEPO's baseline: Table 1, row GRPO/DAPO


class Constant(NamedTuple):
    """A setting in force, what it means and where its value comes from."""

    key: str
    value: str
    meaning: str
    source: str


class Difference(NamedTuple):
    """A setting in which two objectives differ; `-` where one does not have it."""

    key: str
    this: str
    other: str


@dataclass(frozen=True)
class Explanation:
    """Everything that `tepo explain` prints."""

    name: str
    title: str
    departure: str
    formula: Line
    definitions: tuple[Line, ...]
    coefficient: Coefficient
    detached: tuple[str, ...]
    constants: tuple[Constant, ...]
    needs: tuple[str, ...]
    other: str
    other_coefficient: Coefficient
    differences: tuple[Difference, ...]


def explain(objective: Objective, vs: Objective | None = None) -> Explanation:
    """Explain an objective beside another one (GRPO/DAPO unless given)."""
    other = vs or load_objective(BASELINE)
    needs = [meaning for name, meaning in NEEDS.items() if getattr(objective.needs, name)]
    return Explanation(
        name=objective.name,
        title=_title(objective.name),
        departure=departure(objective.name),
        formula=formula(objective),
        definitions=definitions(objective),
        coefficient=coefficient(objective),
        detached=detached(objective),
        constants=tuple(_constants(objective)),
        needs=tuple(needs),
        other=other.name,
        other_coefficient=coefficient(other),
        differences=tuple(differences(objective, other)),
    )


def formula(objective: Objective) -> Line:
    """J, to be maximised."""
    sums = objective.aggregation.explained.formula
    bracket = objective.surrogate.explained(carried_by(objective)).formula
    factors = objective.weight.explained.formula, objective.correction.explained.formula
    terms = [part.explained.formula for part in objective.penalties]
    text = " ".join(["".join(part.text for part in (*factors, bracket)), *(part.text for part in terms)])
    latex = " ".join(["".join(part.latex for part in (*factors, bracket)), *(part.latex for part in terms)])
    return Line(f"J = {sums.text} [ {text} ]", rf"J(\theta) = {sums.latex} \Big[ {latex} \Big]")


def definitions(objective: Objective) -> tuple[Line, ...]:
    """Definitions of the formula's symbols. A surrogate with one ratio alone defines its ratio itself."""
    own = objective.surrogate.explained(carried_by(objective)).definitions
    first, then = (objective.ratio.explained.definitions, own) if objective.surrogate.only_ratio is None else (own, ())
    before = objective.overlong.explained, objective.advantage.explained
    after = objective.weight.explained, objective.correction.explained
    last = (*(part.explained for part in objective.penalties), objective.aggregation.explained)
    return (
        Line(
            "d_t = log pi_t - log pi_old,t (clamped to +-20)",
            r"d_{i,t} = \log\pi_\theta(y_{i,t}) - \log\pi_{\mathrm{old}}(y_{i,t})",
        ),
        *first,
        *(line for part in before for line in part.definitions),
        *then,
        *(line for part in (*after, *last) for line in part.definitions),
    )


def detached(objective: Objective) -> tuple[str, ...]:
    """Names of the parts that carry no gradient."""
    parts = (
        objective.advantage.explained,
        objective.ratio.explained,
        objective.surrogate.explained(carried_by(objective)),
        objective.weight.explained,
        objective.correction.explained,
        *(part.explained for part in objective.penalties),
    )
    return ("A", "log pi_old", *(name for part in parts for name in part.detached))


def differences(this: Objective, other: Objective) -> list[Difference]:
    """Settings in which two objectives differ, axis by axis."""
    left, right = _settings(this), _settings(other)
    keys = sorted(
        {*left, *right},
        key=lambda key: (
            list(AXES).index(key.split(".")[0].rstrip("0123456789")),
            key.split(".")[1] not in ("kind", "level"),
            key,
        ),
    )
    return [Difference(key, left.get(key, "-"), right.get(key, "-")) for key in keys if left.get(key) != right.get(key)]


def _title(name: str) -> str:
    """The first line of an objective's file, where it is a comment."""
    first = text(name).partition("\n")[0] if name in names() else ""
    return first.lstrip("# ") if first.startswith("#") else ""


def _sources(name: str) -> dict[str, str]:
    """Axis -> the comment beside it in the objective's file: where its explicit values come from."""
    if name not in names():
        return {}
    return dict(re.findall(r"^(\w+):.*?#\s*(.+)$", text(name), re.MULTILINE))


def _constants(objective: Objective) -> list[Constant]:
    """Every setting in force beside the kinds, with its source."""
    comments = _sources(objective.name)
    written: Mapping[str, Any] = yaml.safe_load(text(objective.name)) if comments else {}
    result = []
    for axis, options in parts_of(objective):
        row = written.get(axis, {})
        row = row if isinstance(row, Mapping) else {}
        for part in fields(options):
            value = getattr(options, part.name)
            if not in_force(options, part.name):
                continue
            if part.name in row and row[part.name] == value:
                source = comments.get(axis, "")
            else:
                source = part.metadata["source"] if value == part.default else "set here"
            result.append(Constant(f"{axis}.{part.name}", _shown(value), part.metadata["meaning"], source))
    return result


def _settings(objective: Objective) -> dict[str, str]:
    """Flat settings in force, kinds included: `surrogate.low` -> '0.2'."""
    mapping = objective_mapping(objective)
    result: dict[str, str] = {}
    for axis, (tag, _, _) in AXES.items():
        several = mapping[axis] if axis == "penalty" else [mapping[axis]]
        options = objective.penalties if axis == "penalty" else [getattr(objective, axis)]
        for index, (part, typed) in enumerate(zip(several, options, strict=True)):
            label = f"{axis}{index + 1 if len(several) > 1 else ''}"
            result |= {
                f"{label}.{key}": _shown(value) for key, value in part.items() if key == tag or in_force(typed, key)
            }
    return result


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
