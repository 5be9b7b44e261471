"""Explanation of an objective: its formula, what is detached, the coefficient of grad log pi, its constants with their
sources, and how it differs from another one. The library part of `tepo explain`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from textwrap import wrap
from typing import Any, NamedTuple

import yaml

from tepo.common.paths import departure
from tepo.common.schema import in_force
from tepo.objectives.axes.importance_ratio import Carried
from tepo.objectives.axis import Line
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


class Coefficient(NamedTuple):
    """The coefficient in plain text, where no clip acts, and where the policy term's part of it is 0."""

    text: str
    zero: str


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
    first = text(objective.name).partition("\n")[0] if objective.name in names() else ""
    needs = [meaning for name, meaning in NEEDS.items() if getattr(objective.needs, name)]
    return Explanation(
        name=objective.name,
        title=first.lstrip("# ") if first.startswith("#") else "",
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

    def place(key: str) -> tuple[int, bool, str]:
        axis, _, setting = key.partition(".")
        return list(AXES).index(axis.rstrip("0123456789")), setting not in ("kind", "level"), key

    keys = [key for key in sorted({*left, *right}, key=place) if left.get(key) != right.get(key)]
    return [Difference(key, left.get(key, "-"), right.get(key, "-")) for key in keys]


def _constants(objective: Objective) -> list[Constant]:
    # Axis -> the comment beside it in the objective's file: where its explicit values come from.
    shipped = text(objective.name) if objective.name in names() else ""
    comments = dict(re.findall(r"^(\w+):.*?#\s*(.+)$", shipped, re.MULTILINE))
    written: Mapping[str, Any] = yaml.safe_load(shipped) if comments else {}
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


def coefficient(objective: Objective) -> Coefficient:
    """The coefficient of grad log pi_t of one token, all that is detached taken as constant."""
    carried = carried_by(objective)
    policy = objective.surrogate.explained(carried)
    correction = objective.correction
    weighed = "" if carried.over else objective.weight.explained.zero
    corrected = "" if carried.over and correction.drops else correction.explained.zero
    terms = [f"{carried.before}{policy.coefficient}", *(part.explained.coefficient for part in objective.penalties)]
    return Coefficient("  ".join(terms), policy.zero + weighed + corrected)


def carried_by(objective: Objective) -> Carried:
    """The factor of a token's log pi in the policy term. Where the gradient flows through a ratio of several tokens, it
    carries the terms of all of them: of the response (index s), or, with a prefix ratio, of the tokens u >= t."""
    ratio, varies = objective.ratio, objective.advantage.varies
    drops = tuple(name for name, axis in (("lambda", objective.weight), ("v", objective.correction)) if axis.drops)
    before = objective.weight.explained.formula.text + objective.correction.explained.formula.text
    index = ratio.spread if objective.surrogate.through_ratio else ""
    differ = bool(before) or varies  # among the terms, beside the ratio
    if not index or (ratio.per_response and not differ):
        return Carried(ratio, "", before, "A", varies, drops)
    amount = f"{before.replace('_t', f'_{index}')}A_{index}" if differ else "A"
    return Carried(ratio, index, "", amount, varies, drops)


_wrap = partial(wrap, break_long_words=False, break_on_hyphens=False)


def to_text(explanation: Explanation, width: int = 110) -> str:
    """Plain text of at most `width` columns where words allow."""
    title = f"{explanation.name}: {explanation.title}" if explanation.title else explanation.name
    lines = [*_wrap(title, width), ""]
    if explanation.departure:
        lines += ["Departs from its paper", *_block(explanation.departure, width), ""]
    lines += ["To maximise", *_block(explanation.formula.text, width), ""]
    lines += ["where", *(part for line in explanation.definitions for part in _block(line.text, width)), ""]
    lines += ["Coefficient of ∇log π_t in J, before the weights of the sums"]
    lines += _block(explanation.coefficient.text, width)
    lines += [*_block(f"zero when {explanation.coefficient.zero}", width), ""]
    lines += ["Detached", *_block("; ".join(explanation.detached), width), ""]
    lines += ["Constants", *_constant_lines(explanation, width), ""]
    needs = ", ".join(explanation.needs) or "log-probs and old log-probs alone"
    lines += ["The trainer must compute", *_block(needs, width), ""]
    return "\n".join(lines + _difference_lines(explanation, width))


def to_latex(explanation: Explanation) -> str:
    """An `align*` environment (needs amsmath and amssymb)."""
    lines = [explanation.formula.latex, *(line.latex for line in explanation.definitions)]
    body = " \\\\\n".join("  & " + line for line in lines)
    return f"% {explanation.name}: {explanation.title}\n\\begin{{align*}}\n{body}\n\\end{{align*}}\n"


SYMBOLS = {
    r"\bsum_": "Σ_",
    r"\bpi(?=\b|_)": "π",
    r"\blambda_": "λ_",
    r"\bOmega(?=\b|_)": "Ω",
    r"\btau\b": "τ",
    r"\brho_": "ρ_",
    r"\bgrad ": "∇",
    r"\bdH\b": "ΔH",
    r"\beps\b": "ε",
    r"\+-": "±",
}


def _block(text: str, width: int) -> list[str]:
    for word, letter in SYMBOLS.items():
        text = re.sub(word, letter, text)
    return _wrap(text, width, initial_indent="  ", subsequent_indent="      ")


def _constant_lines(explanation: Explanation, width: int) -> list[str]:
    rows = [(part.key, part.value, part.source or "a choice, see docs/paper.md") for part in explanation.constants]
    if not rows:
        return ["  none"]
    first, second = max(len(row[0]) for row in rows), min(max(len(row[1]) for row in rows), 36)
    result = []
    for key, value, source in rows:
        head = f"  {key:{first}}  {value:{second}}  "
        result += _wrap(head + source, width, subsequent_indent=" " * min(len(head), width // 2))
    return result


def _difference_lines(explanation: Explanation, width: int) -> list[str]:
    if not explanation.differences:
        return [f"No difference from {explanation.other}."]
    other = f"{explanation.other} as shipped" if explanation.other == explanation.name else explanation.other
    rows = [("", explanation.name, other), *explanation.differences]
    first, second, third = (max(len(row[index]) for row in rows) for index in range(3))
    result = [f"Differs from {other}"]
    if first + second + third + 6 <= width:
        result += [f"  {key:{first}}  {this:{second}}  {that}" for key, this, that in rows]
    else:
        names = max(len(explanation.name), len(other))
        for key, this, that in rows[1:]:
            result += [f"  {key}", f"      {explanation.name:{names}}  {this}", f"      {other:{names}}  {that}"]
    if explanation.coefficient != explanation.other_coefficient:
        there = explanation.other_coefficient
        result += _block(f"coefficient there: {there.text}; zero when {there.zero}", width)
    return result
