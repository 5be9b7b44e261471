"""Explanation of a formula: its lines by stage, constants with their sources, a picture of the coefficient of grad log
pi, the changes to another row. The library part of `tepo explain`."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from math import isfinite
from textwrap import wrap
from typing import Any

import torch
from torch import Tensor

from tepo.formula.formula import CURRENT, NEEDED, Formula
from tepo.formula.graph import Node, below, given_names
from tepo.formula.language import GIVEN, GROUPS, WORDS
from tepo.formula.row import BASELINE, Row, changed_lines, load_row
from tepo.formula.typeset import called, equation, read_constants, words
from tepo.objectives.batch import Groups, TokenBatch
from tepo.objectives.objective import Objective

STAGES = {  # where a line is computed
    "rollout": "once a rollout",
    "mini-batch": "once a mini-batch, over all ranks, before the first backward pass",
    "loss": "in the loss of each micro-batch",
}
_PLAIN = ("min", "max", "abs", "sqrt", "log", "tokens", "responses")  # said by their names
_ROWS, _OLD = 14, -1.6  # of the picture: lines, and the old log-prob of its tokens
_HELD = (
    "at: a response of one token; π_old = 0.2, as of all other policies; H_old = 1, H = 0.5 for ● and 1.5 for ○; exact "
    "KL = 0.1; values over the mini-batch as of this response alone at d = 0"
)
_EQUAL = 9  # groups of equal rewards behind the mixed ones in a made-up rollout


@dataclass(frozen=True)
class Coefficients:
    """The coefficient of grad log pi of a token in J over the log-ratio, before the weight of its average."""

    log_ratio: tuple[float, ...]
    high: tuple[float, ...]  # where what the rollout hands over has the first value of `at`
    low: tuple[float, ...]  # where it has the second one
    handed: str  # the name of that
    at: tuple[float, float]
    beside: tuple[str, ...]  # gradients that go into H or the exact KL instead


# what follows from the graph ------------------------------------------------------------------------------------------
def stages(formula: Formula) -> dict[str, tuple[str, ...]]:
    """Names of lines, and parts of lines, by where they are computed."""
    root, handed, planned = formula.nodes["J"], formula.handed.number, _planned(formula)
    parts = below([root], planned | {handed})
    of_rollout = {node.number for node in formula.handed.below()}
    in_loss = {node.number for node in parts} - planned - {handed}
    names_by_stage: dict[str, list[str]] = {stage: [] for stage in STAGES}
    for name, node in formula.nodes.items():
        at = "rollout" if node.number in of_rollout else "loss" if node.number in in_loss else "mini-batch"
        names_by_stage["loss" if node.op == "number" else at] += [name] * (name != "J")
    for node in parts:  # of lines, which have no name
        if node.number in planned | {handed} and _said(formula, node) not in (*formula.nodes, *GIVEN):
            names_by_stage["mini-batch" if node.number in planned else "rollout"].append(_said(formula, node))
    return {stage: tuple(names) for stage, names in names_by_stage.items() if names}


def _planned(formula: Formula) -> set[int]:
    """Numbers of the nodes that are made over a mini-batch."""
    return {node.number for node in formula.nodes["J"].below() if node.stage == "mini-batch"}


def _said(formula: Formula, node: Node) -> str:
    """The name of a line, or the text of a part of one."""
    lines = (name for name, line in formula.nodes.items() if line.number == node.number)
    return next(lines, node.place.text[node.place.start : node.place.end])


def detached(formula: Formula) -> tuple[str, ...]:
    """The rollout's value, parts that the current policy makes and that carry no gradient, and other policies."""
    parts, others = [f"{_said(formula, formula.handed)} (handed over by the rollout)"], list[str]()
    lines, planned = {node.number for node in formula.nodes.values()}, _planned(formula)
    waiting, visited_numbers = [formula.nodes["J"]], {formula.handed.number}
    while waiting:
        node = waiting.pop(0)
        stops = node.number in lines | planned or node.op == "sg" or (node.condition and node.op not in "~&|")
        if node.number in visited_numbers:
            continue
        visited_numbers.add(node.number)
        if node.op == "given":
            of_others = "logp_old" if node.value == "d" else str(node.value)
            others += [of_others] * (of_others.startswith("logp_") or of_others == "H_old")
        elif stops and not node.gradient and any(part.value in CURRENT for part in node.below()):
            parts.append(_said(formula, node))
        else:
            waiting += node.args
    return (*parts, *dict.fromkeys(others))


# the picture ----------------------------------------------------------------------------------------------------------
def coefficients(formula: Objective) -> Coefficients:
    """The coefficient over log-ratios from -1.5 to 1.5, by autograd through `Objective.loss`.

    Each point is a response of one token: for a row of the response's ratio that stands for all tokens at one d. Values
    over a mini-batch are those of this response alone at d = 0. What the rollout hands over is 1 and -1; 0 in place of
    one of them whose sign it has in no mixed group."""
    mixed, _ = _made_up(formula)
    at = (float((mixed > 0).any()), 0.0 - float((mixed < 0).any()))
    at = at if any(at) else (1.0, -1.0)
    d = torch.linspace(-1.5, 1.5, 61, dtype=torch.float64).round(decimals=2)
    curves, beside = [], dict[str, list[str]]()
    for value in at:
        plan = formula.prepare(_responses(d[:1] * 0, value)).select([0] * len(d))
        batch = _responses(d, value)
        leaves: dict[str, Any] = {"log π": batch.logprobs, "H": batch.entropies, "KL": batch.full_kl}
        gradients = torch.autograd.grad(formula.loss(batch, plan).loss, [*leaves.values()], allow_unused=True)
        by_name = {
            name: 0.0 - gradient / plan.scale
            for name, gradient in zip(leaves, gradients, strict=True)
            if gradient is not None
        }
        curves.append(tuple(by_name.pop("log π", torch.zeros_like(d)).tolist()))
        for name, values in by_name.items():
            ends = [f"{end:.6g}" for end in (float(values.min()), float(values.max()))]
            beside.setdefault(name, []).append(" to ".join(dict.fromkeys(ends)))
    sentences = [
        f"the coefficient of ∇{name} is {' for ●, '.join(dict.fromkeys(ends))}" for name, ends in beside.items()
    ]
    sentences = [f"{text} for ○" if " for ●" in text else text for text in sentences]
    high, low = curves
    return Coefficients(tuple(d.tolist()), high, low, _said(formula, formula.handed), at, tuple(sentences))


def _made_up(formula: Objective) -> tuple[Tensor, Tensor]:
    """What the rollout hands over in made-up mixed groups, and in groups of equal rewards, one per token. Lengths,
    entropies and rewards by name differ within a group, tracked success rates between groups."""
    draws = torch.Generator().manual_seed(0)
    mixed, size, limit = 60, 6, 8
    shape = (mixed + _EQUAL, size)
    rewards = torch.rand(shape, generator=draws, dtype=torch.float64)
    rewards[:40] = (rewards[:40] < torch.linspace(0.1, 0.9, 40)[:, None]).double()
    rewards[:mixed, 0], rewards[:mixed, 1] = 0, 1
    rewards[mixed:] = torch.tensor([0.0, 1.0, 0.5], dtype=torch.float64).repeat(_EQUAL // 3)[:, None]
    lengths = torch.randint(1, limit + 1, shape, generator=draws).flatten()
    apart = torch.rand(shape, generator=draws, dtype=torch.float64).flatten() - 0.5
    groups = torch.arange(len(rewards)).repeat_interleave(size)
    rollout = Groups(
        rewards.flatten(),
        groups,
        lengths,
        old_entropies=3 * torch.rand(int(lengths.sum()), generator=draws, dtype=torch.float64),
        finished=lengths < limit,
        max_new_tokens=limit,
        named=torch.stack([rewards.flatten() + apart, rewards.flatten() - apart], 1),
        weights=(1.0, 1.0),
        values=torch.linspace(0, 1, len(rewards), dtype=torch.float64)[groups],
    )
    advantages = formula.advantages(rollout)
    of_mixed = (groups < mixed)[rollout.sequence]
    return advantages[of_mixed], advantages[~of_mixed]


def dropped(formula: Objective) -> str:
    """What the row says of groups that are never trained: a sentence where rewards are all equal and what the rollout
    hands over would not be 0; empty elsewhere."""
    if formula.every_group or not (_made_up(formula)[1].abs() > 1e-6).any():
        return ""
    name = _said(formula, formula.handed)
    reads = ", ".join(sorted(given_names([formula.handed]) - {"R", "G", "L", "weight_k"}))
    also = f"{name} reads {reads} too and would not be 0 in them" if reads else f"{name} would not be 0 in them"
    return (
        f"groups whose rewards are all equal: they are dropped before {name} is computed, though {also}. TRL keeps "
        "them. What is to act in them as well, such as a length penalty, belongs into the reward (data.reward)"
    )


def _responses(d: Tensor, handed: float) -> TokenBatch:
    """Responses of one token each at these log-ratios."""
    old, whole = torch.full_like(d, _OLD), torch.arange(len(d))
    return TokenBatch(
        old_logprobs=old,
        advantages=torch.full_like(d, handed),
        lengths=torch.ones_like(whole),
        logprobs=(old + d).requires_grad_(),
        entropies=torch.full_like(d, 0.5 if handed > 0 else 1.5).requires_grad_(),
        old_entropies=torch.ones_like(d),
        initial_logprobs=old,
        teacher_logprobs=old,
        sampler_logprobs=old,
        full_kl=torch.full_like(d, 0.1).requires_grad_(),
        uid=whole,
        group_ids=torch.zeros_like(whole),
        finished=torch.ones_like(whole, dtype=torch.bool),
        max_new_tokens=1,
    )


def _picture(c: Coefficients, width: int) -> list[str]:
    """A chart of dots, and a few of its numbers."""
    high, low = (f"{c.handed} = {value:g}" for value in c.at)
    lines = _wrap(f"Coefficient of ∇log π of a token whose log-ratio is d: ● {high}, ○ {low}", width)
    if all(max(values) - min(values) < 1e-9 for values in (c.high, c.low)):
        lines.append(f"  {c.high[0]:g} where {high}, {c.low[0]:g} where {low}, whatever d is")
    else:
        every = [value for value in (0.0, *c.high, *c.low) if isfinite(value)]
        step = (max(every) - min(every)) / _ROWS or 1.0
        grid = [[" "] * len(c.log_ratio) for _ in range(_ROWS + 1)]
        zero, middle = round(max(every) / step), len(c.log_ratio) // 2
        grid[zero] = ["─"] * len(c.log_ratio)
        for n, line in enumerate(grid):
            line[middle] = "┼" if n == zero else "│"
        for dot, values in (("●", c.high), ("○", c.low)):
            for column, value in enumerate(values):
                if isfinite(value):
                    line = grid[round((max(every) - value) / step)]
                    line[column] = "◐" if line[column] == "●" else dot
        names = {_ROWS: f"{min(every):.3g}", 0: f"{max(every):.3g}", zero: "0"}
        lines += [f"  {names.get(n, ''):>7} {''.join(line)}".rstrip() for n, line in enumerate(grid)]
        for name, values in (("d", c.log_ratio), ("●", c.high), ("○", c.low)):
            lines.append(f"  {name}   " + " ".join(f"{f'{value + 0.0:.3g}':^9}" for value in values[::10]).rstrip())
    lines += _block(_HELD, width)
    return [*lines, *(line for way in c.beside for line in _block(f"beside it, {way}", width))]


# printed --------------------------------------------------------------------------------------------------------------
_wrap = partial(wrap, break_long_words=False, break_on_hyphens=False)


def _block(text: str, width: int, hang: int = 6) -> list[str]:
    return _wrap(text, width, initial_indent="  ", subsequent_indent=" " * hang)


def _columns(rows: Iterable[tuple[str, str]], width: int, between: str = "  ") -> list[str]:
    """Two columns, of which the second one is wrapped."""
    rows = list(rows)
    first = max((len(name) for name, _ in rows), default=0)
    return [line for name, text in rows for line in _block(f"{name:{first}}{between}{text}", width, min(first + 4, 30))]


def names_of(row: Row, formula: Formula) -> dict[str, str]:
    """The given names and the functions that the row reads, each with its meaning."""
    read, functions = words(row), called(formula.nodes.values())
    entries = {name: GIVEN[name] for name in read if name in GIVEN}
    names = {name: entry.doc + f", {WORDS[entry.per]}" * bool(entry.per) for name, entry in entries.items()}
    names |= {f"{name}(…)": functions[name].doc for name in read if name in functions and name not in _PLAIN}
    return names | ({"N_g": "tokens of the group in the mini-batch"} if row.average == GROUPS else {})


def to_text(row: Row, vs: Row | None = None, width: int = 110) -> str:
    """A row beside another one (the one that it is like unless given, else GRPO/DAPO), in at most `width` columns where
    words allow; the picture takes 72.

    Raises UserError, with a caret under the word, for what is wrong in a line."""
    formula, other = Objective(**row.parts), vs or row.base or load_row(BASELINE)
    maximised, *rest = equation(row)
    lines = dict(line.split(" = ", 1) for line in rest)
    about = f": {' '.join(row.about.split())}" if row.about else ""
    parts = [_wrap(row.name + about, width)]
    if row.departs:
        set_ = any(place == f"objective.{name}" for name, place in row.where.items() if name in row.lines)
        title = "Departs from its paper" + " as shipped, before it was changed" * set_
        parts.append([title, *(line for text in row.departs for line in _block(text, width))])
    parts.append(["To maximise", *_block(maximised, width)])
    for stage, names in stages(formula).items():
        equations = _columns(((name, f"= {lines[name]}") for name in names if name in lines), width, " ")
        others = [line for name in names if name not in lines for line in _block(name, width)]
        parts.append([f"Computed {STAGES[stage]}", *equations, *others])
    if row.keep:
        parts.append(["Left out of the sums, N and B", "  responses that were cut at the limit"])
    if constants := read_constants(row):
        constant_rows = (
            (f"{name} = {constant.value:g}", constant.source or "no source is given")
            for name, constant in constants.items()
        )
        parts.append(["Constants", *_columns(constant_rows, width)])
    parts.append(["Names", *_columns(names_of(row, formula).items(), width)])
    curves, changed = coefficients(formula), changed_lines(row, other)
    parts.append(_picture(curves, width))
    if changed and curves == coefficients(Objective(**other.parts)):
        parts[-1] += _block(f"{other.name} has the same picture: the two differ in {', '.join(changed)}", width)
    if sentence := dropped(formula):
        parts.append(["Never trained", *_block(sentence, width)])
    parts.append(["Detached", *_block("; ".join(detached(formula)), width)])
    needs = ", ".join(text for need, text in NEEDED.items() if getattr(formula.needs, need))
    parts.append(["The trainer must compute", *_block(needs or "log-probs and old log-probs alone", width)])
    name = f"{other.name} as shipped" if other.name == row.name else other.name
    signs = [
        f"{sign} {text}" for ours, theirs in changed.values() for sign, text in (("-", theirs), ("+", ours)) if text
    ]
    title = f"Differs from {name} (- there, + here)" if signs else f"No difference from {name}"
    parts.append([title, *(line for text in signs for line in _block(text, width))])
    return "\n\n".join("\n".join(part) for part in parts)
