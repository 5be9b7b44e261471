"""What must hold for every objective, a user's own among them: the library part of `tepo check-objective`.

Each check takes an objective and returns what is wrong, an empty text where nothing is. They work on one mini-batch of
36 responses of a tabular policy (`tepo.objectives.case`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from tepo.errors import UserError
from tepo.objectives.batch import TokenBatch
from tepo.objectives.case import Case, make_case, shuffled
from tepo.objectives.coefficient import carried_by
from tepo.objectives.explain import detached, explain
from tepo.objectives.explain_text import to_latex, to_text
from tepo.objectives.finite_differences import slopes
from tepo.objectives.kind import Needs
from tepo.objectives.metric_sums import Metrics
from tepo.objectives.objective import Objective
from tepo.objectives.own_kinds import located
from tepo.objectives.plan import Plan
from tepo.objectives.simulated_ranks import SimulatedRank, on_ranks

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}
SLOPE_TOLERANCE = 1e-6  # of differences, relative to the gradient
ALWAYS_DETACHED = 2  # the advantage and the old log-probs, which every objective names
_SALT, _SEED = 3, 21


@dataclass(frozen=True)
class Check:
    """The outcome of one check; wrong: empty where it holds."""

    name: str
    what: str
    wrong: str


def prepared_case(objective: Objective, dtype: torch.dtype = torch.float64) -> tuple[Case, TokenBatch]:
    """The case and its mini-batch, whose log-probs and entropies have a graph down to the logits."""
    case = make_case(_SEED, repeat=4, dtype=dtype)
    return case, case.batch(objective)


def gradient_of_part(objective: Objective, case: Case, batch: TokenBatch, plan: Plan) -> tuple[Tensor, Metrics]:
    """Gradient of one (micro-)batch's loss by the logits of the full case [N, V], and its metrics."""
    out = objective.loss(batch, plan)
    (gradient,) = torch.autograd.grad(out.loss, case.logits, retain_graph=True)
    return gradient, out.metrics


def unsplit(objective: Objective, case: Case, batch: TokenBatch) -> tuple[Tensor, Metrics]:
    """Gradient and metrics of the mini-batch in one piece."""
    return gradient_of_part(objective, case, batch, objective.prepare(batch, salt=_SALT))


def split(objective: Objective, case: Case, batch: TokenBatch, parts: list[list[int]]) -> tuple[Tensor, Metrics]:
    """The sum over micro-batches, with one plan, made without log-probs where the row says it needs none."""
    plan = objective.prepare(_before_log_probs(objective, batch), salt=_SALT)
    done = [gradient_of_part(objective, case, batch.select(part), plan.select(part)) for part in parts]
    metrics = done[0][1]
    for _, more in done[1:]:
        metrics = metrics + more
    return torch.stack([gradient for gradient, _ in done]).sum(0), metrics


def _before_log_probs(objective: Objective, batch: TokenBatch) -> TokenBatch:
    """What `prepare` is given: without what the policy has to be run for, unless the objective asks for it."""
    return batch if objective.needs.prepass else replace(batch, logprobs=None, entropies=None, full_kl=None)


def partitions(count: int) -> list[list[list[int]]]:
    """Micro-batches of 1, of 5, one and a rest, interleaved backwards, and with an empty one."""
    every = list(range(count))
    return [
        [[i] for i in every],
        [every[i : i + 5] for i in range(0, count, 5)],
        [every[:1], every[1:]],
        [every[::-2], every[-2::-2]],
        [every[7:], [], every[:7]],
    ]


def distance(one: Tensor, other: Tensor) -> float:
    """|one - other| / |other|; 0 where both are 0."""
    gap, size = float((one - other).norm()), float(other.norm())
    return gap / size if size else gap


def _differs(what: str, one: Tensor, other: Tensor, allowed: float) -> str:
    gap = distance(one, other)
    return "" if gap <= allowed else f"{what}: the gradient differs by {gap:.1e} of its norm (allowed: {allowed:.0e})"


def _unequal(what: str, one: Mapping[str, float], other: Mapping[str, float]) -> str:
    """The first metric that is not the same to 1e-5."""
    for name, value in other.items():
        if abs(one[name] - value) > max(1e-5 * abs(value), 1e-7):
            return f"{what}: {name} is {one[name]:g}, not {value:g}"
    return ""


# the checks -----------------------------------------------------------------------------------------------------------
def micro_batches(objective: Objective, dtype: torch.dtype = torch.float64) -> str:
    """The gradient and the metrics do not depend on micro-batches."""
    case, batch = prepared_case(objective, dtype)
    expected, metrics = unsplit(objective, case, batch)
    if not expected.norm() > 0:
        return f"the gradient's norm is {float(expected.norm()):g}"
    for parts in partitions(len(batch.lengths)):
        gradient, added = split(objective, case, batch, parts)
        what = f"{len(parts)} micro-batches"
        wrong = _differs(what, gradient, expected, TOLERANCE[dtype])
        if wrong := wrong or _unequal(what, added.means(), metrics.means()):
            return wrong
    return ""


def order(objective: Objective) -> str:
    """The gradient does not depend on the order of the responses."""
    case, batch = prepared_case(objective)
    expected, _ = unsplit(objective, case, batch)
    other, moved = shuffled(case, torch.randperm(len(batch.lengths), generator=torch.Generator().manual_seed(0)))
    gradient, _ = unsplit(objective, other, other.batch(objective))
    return _differs("responses in another order", gradient, expected[moved], TOLERANCE[torch.float64])


def padding(objective: Objective) -> str:
    """Padded tensors through a mask give the same gradient, with 3 or 40 columns of rubbish beside them."""
    case, batch = prepared_case(objective)
    expected, _ = unsplit(objective, case, batch)
    size = len(batch.advantages)
    for extra in (3, 40):
        mask = torch.arange(int(case.lengths.max()) + extra) < case.lengths[:, None]
        values: dict[str, Any] = {}
        for part in fields(batch):
            value = getattr(batch, part.name)
            if isinstance(value, Tensor) and value.shape == (size,) and value.is_floating_point():
                padded = torch.full(mask.shape, torch.nan, dtype=value.dtype)
                values[part.name] = padded.masked_scatter(mask, value)[mask]
        gradient, _ = unsplit(objective, case, replace(batch, lengths=mask.sum(1), **values))
        if not torch.equal(gradient, expected):
            return _differs(f"{extra} columns of padding", gradient, expected, 0.0)
    return ""


def ranks(objective: Objective) -> str:
    """Two ranks give the gradient, the metrics and the advantages of one process, also where one has no response."""
    case, batch = prepared_case(objective)
    expected, metrics = unsplit(objective, case, batch)
    every, groups = range(len(batch.lengths)), case.group_ids.unique(return_inverse=True)[1].tolist()
    dealt = {
        "two ranks": [[i for i in every if i % 2 == rank] for rank in (0, 1)],
        "two ranks, one without a response": [list(every), []],
    }
    for what, shares in dealt.items():

        def gradient(comm: SimulatedRank, shares: list[list[int]] = shares) -> tuple[Tensor, dict[str, float]]:
            mine, all_of_it = prepared_case(objective)
            own = all_of_it.select(shares[comm.rank])
            plan = objective.prepare(own, comm=comm, salt=_SALT)
            part, found = gradient_of_part(objective, mine, own, plan)
            return comm.all_sum(part), found.means(comm)

        total, found = on_ranks(gradient)[0]
        wrong = _differs(what, total, expected, TOLERANCE[torch.float64])
        if wrong := wrong or _unequal(what, found, metrics.means()):
            return wrong

    def advantages(comm: SimulatedRank) -> tuple[Tensor, Tensor]:
        own, moved = shuffled(case, torch.tensor([i for i in every if groups[i] % 2 == comm.rank]))
        return objective.advantages(own.groups(), comm), moved

    for found_here, moved in on_ranks(advantages):
        if distance(found_here, batch.advantages[moved]) > TOLERANCE[torch.float64]:
            return "two ranks: the advantages differ from those of one process"
    return ""


def gradient(objective: Objective) -> str:
    """The gradient is that of finite differences in float64, with what is detached held."""
    case, batch = prepared_case(objective)
    if not objective.needs.entropy_gradient and batch.entropies is not None:
        batch = replace(batch, entropies=batch.entropies.detach())
    plan = objective.prepare(batch, salt=_SALT)
    analytic, _ = gradient_of_part(objective, case, batch, plan)
    base = case.logits.detach()
    draws = torch.Generator().manual_seed(0)
    directions = torch.randn((6, *base.shape), generator=draws, dtype=base.dtype)
    wanted = (directions * analytic).sum((1, 2))

    def loss(logits: Tensor, *, held: bool = True) -> Tensor:
        moved = replace(case, logits=logits)
        there = moved.batch(objective, batch.advantages)
        if not objective.needs.entropy_gradient and held:
            there = replace(there, entropies=batch.entropies)
        return objective.loss(there, plan if held else objective.prepare(there, salt=_SALT)).loss

    gap = distance(slopes(loss, base, directions, hold=True), wanted)
    if not gap <= SLOPE_TOLERANCE:
        allowed = f"{SLOPE_TOLERANCE:.0e}"
        return f"{gap:.1e} from finite differences (allowed: {allowed}); item() or a new tensor leaves the graph unseen"
    free = slopes(lambda logits: loss(logits, held=False), base, directions, hold=False)
    if distance(free, wanted) > SLOPE_TOLERANCE and len(detached(objective)) <= ALWAYS_DETACHED:
        return "something is detached that `explained` does not name"
    return ""


def edge_cases() -> dict[str, Case]:
    """Rollouts at the edge of what a trainer meets."""
    case = make_case(_SEED, repeat=4)
    ones = torch.ones_like(case.rewards)
    singles, _ = shuffled(case, torch.tensor([1, 7, 10, 16]))
    return {
        "all right": replace(case, rewards=ones),
        "all wrong": replace(case, rewards=0 * ones),
        "a failed response without a token": shuffled(case, torch.tensor([3, 4, 5]))[0],
        "nothing but a response without a token": shuffled(case, torch.tensor([3]))[0],
        "responses of one token": replace(
            singles, rewards=ones[:4] - torch.tensor([0.0, 1, 0, 1]), group_ids=0 * singles.group_ids
        ),
        "a group of one": shuffled(case, torch.tensor([2]))[0],
        "the policy that sampled": make_case(_SEED, drift=0.0),
        "a policy far away": make_case(_SEED, drift=30.0),
    }


def finite(objective: Objective) -> str:
    """Loss and gradient are numbers where rewards are alike and responses are empty or of one token."""
    for what, case in edge_cases().items():
        batch = case.batch(objective)
        out = objective.loss(batch, objective.prepare(batch, salt=_SALT)).loss
        if not out.requires_grad:
            return f"{what}: the loss has no graph"
        if not out.isfinite():
            return f"{what}: the loss is {out.item():g}"
        (slope,) = torch.autograd.grad(out, case.logits, allow_unused=True)
        if slope is not None and not slope.isfinite().all():
            return f"{what}: the gradient is not finite"
    return ""


def needs(objective: Objective) -> str:
    """It reads nothing that its `needs` do not name."""
    case, batch = prepared_case(objective)
    expected, _ = unsplit(objective, case, batch)
    given = _without(batch, objective.needs)
    try:
        advantages = objective.advantages(_without(case.groups(), objective.needs))
    except Exception as error:
        return f"the advantages read what `needs` does not name: {_first_line(error)}"
    if not torch.equal(advantages, batch.advantages):
        return "the advantages depend on what `needs` does not name"
    try:
        plan = objective.prepare(_before_log_probs(objective, given), salt=_SALT)
        found, _ = gradient_of_part(objective, case, given, plan)
    except Exception as error:
        return f"it reads what `needs` does not name: {_first_line(error)}"
    wrong = _differs("without what `needs` does not name", found, expected, TOLERANCE[torch.float64])
    if wrong or objective.needs.entropy_gradient or given.entropies is None:
        return wrong
    found, _ = unsplit(objective, case, replace(given, entropies=given.entropies.detach()))
    return _differs("entropies without `entropy_gradient`", found, expected, TOLERANCE[torch.float64])


def _without(batch: Any, needs: Needs) -> Any:
    """Without the optional tensors that are not named."""
    optional = {part.name for part in fields(batch) if part.default is None} & {part.name for part in fields(Needs)}
    return replace(batch, **{name: None for name in optional if not getattr(needs, name)})


def _first_line(error: Exception) -> str:
    what = error.what if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return what.splitlines()[0]


def explained(objective: Objective) -> str:
    """Formula and coefficient are there, in plain text and in LaTeX."""
    surrogate = objective.surrogate.explained(carried_by(objective))
    for name, value in (("formula.text", surrogate.formula.text), ("formula.latex", surrogate.formula.latex)):
        if not value:
            return f"the surrogate's `explained` has no {name}"
    if not surrogate.coefficient or not surrogate.zero:
        return "the surrogate's `explained` says no coefficient, or not where it is 0"
    for penalty in objective.penalties:
        if not penalty.explained.formula.text or not penalty.explained.coefficient:
            return "a penalty's `explained` says no formula, or no coefficient"
    explanation = explain(objective)
    return "" if to_text(explanation) and to_latex(explanation) else "nothing is explained"


CHECKS: dict[str, Callable[[Objective], str]] = {
    "micro-batches": micro_batches,
    "order": order,
    "padding": padding,
    "ranks": ranks,
    "gradient": gradient,
    "finite": finite,
    "needs": needs,
    "explained": explained,
}


def check_objective(objective: Objective) -> list[Check]:
    """All checks of an objective. Raises UserError where a file of its own cannot be run at all."""
    check_runs(objective)
    said = {name: (check.__doc__ or "").splitlines()[0] for name, check in CHECKS.items()}
    return [Check(name, said[name], _outcome(check, objective)) for name, check in CHECKS.items()]


def _outcome(check: Callable[[Objective], str], objective: Objective) -> str:
    """What is wrong; an error is."""
    try:
        with located(dict(objective.files)):
            return check(objective)
    except UserError as error:
        return f"{error.what} ({error.where})" if error.where else error.what
    except Exception as error:
        return _first_line(error)


def check_runs(objective: Objective) -> None:
    """Raises UserError, with its line, where an objective with Python files of a user's own cannot be computed."""
    if not objective.files:
        return
    case = make_case(_SEED)
    try:
        with located(dict(objective.files)):
            batch = case.batch(objective)
            unsplit(objective, case, batch)
    except UserError:
        raise
    except Exception as error:  # a wrong type that our own code stumbles over
        where = ", ".join(name for name, _ in objective.files)
        what = f"the loss cannot be computed: {_first_line(error)}"
        fix = "return what the Protocol of the axis says: docs/own-methods.md"
        raise UserError(what, where=where, fix=fix) from error
