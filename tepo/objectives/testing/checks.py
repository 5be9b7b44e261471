"""Checks that every objective passes, a user's own among them: the library part of `tepo check-objective`.

Each check takes an objective and returns what is wrong, an empty text where nothing is. They work on one mini-batch of
36 responses of a tabular policy (`tepo.objectives.testing.case`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tepo.common.errors import UserError
from tepo.objectives.axes.aggregation import TokenMean
from tepo.objectives.axes.correction import NoCorrection
from tepo.objectives.axes.group_advantage import GroupNormalized
from tepo.objectives.axes.importance_ratio import Token
from tepo.objectives.axes.overlong import Keep
from tepo.objectives.axes.surrogate import Unclipped
from tepo.objectives.axes.weight import Uniform
from tepo.objectives.axis import Needs
from tepo.objectives.batch import Groups, TokenBatch
from tepo.objectives.explain import detached, explain, to_latex, to_text
from tepo.objectives.loading import parts_of
from tepo.objectives.metric_sums import Metrics
from tepo.objectives.objective import Objective, Plan
from tepo.objectives.plugins import located, place_of
from tepo.objectives.terms import LOG_RATIO_BOUND
from tepo.objectives.testing.case import LIMIT, TabularCase, make_case, shuffled
from tepo.objectives.testing.printed import UnreadableError
from tepo.objectives.testing.simulated_ranks import SimulatedRank, on_ranks
from tepo.objectives.testing.statements import at, wrong_coefficients, wrong_explanations, wrong_members

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


def prepared_case(objective: Objective, dtype: torch.dtype = torch.float64) -> tuple[TabularCase, TokenBatch]:
    """The case and its mini-batch, whose log-probs and entropies have a graph down to the logits."""
    case = make_case(_SEED, repeat=4, dtype=dtype)
    return case, case.batch(objective)


def gradient_of_part(objective: Objective, case: TabularCase, batch: TokenBatch, plan: Plan) -> tuple[Tensor, Metrics]:
    """Gradient of one (micro-)batch's loss by the logits of the full case [N, V], and its metrics."""
    out = objective.loss(batch, plan)
    (gradient,) = torch.autograd.grad(out.loss, case.logits, retain_graph=True)
    return gradient, out.metrics


def unsplit(objective: Objective, case: TabularCase, batch: TokenBatch) -> tuple[Tensor, Metrics]:
    """Gradient and metrics of the mini-batch in one piece."""
    return gradient_of_part(objective, case, batch, objective.prepare(batch, salt=_SALT))


def split(objective: Objective, case: TabularCase, batch: TokenBatch, parts: list[list[int]]) -> tuple[Tensor, Metrics]:
    """The sum over micro-batches, with one plan, made without log-probs where the row says it needs none."""
    plan = objective.prepare(_before_log_probs(objective, batch), salt=_SALT)
    done = [gradient_of_part(objective, case, batch.select(part), plan.select(part)) for part in parts]
    metrics = done[0][1]
    for _, more in done[1:]:
        metrics = metrics + more
    return torch.stack([gradient for gradient, _ in done]).sum(0), metrics


def _before_log_probs(objective: Objective, batch: TokenBatch) -> TokenBatch:
    """The batch that `prepare` is given: without the tensors that the policy has to be run for, unless the objective
    reads them."""
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
    every = range(len(batch.lengths))
    dealt = {
        "two ranks": [[i for i in every if (i % 3 == 0) == (rank == 0)] for rank in (0, 1)],
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

    places = case.group_ids.unique(return_inverse=True)[1]  # groups are whole on one rank
    for what, few in (("two ranks", places < 2), ("two ranks, one without a response", places < 0)):

        def advantages(comm: SimulatedRank, few: Tensor = few) -> tuple[Tensor, Tensor]:
            own, moved = shuffled(case, torch.nonzero(few if comm.rank else ~few)[:, 0])
            return objective.advantages(own.groups(), comm), moved

        for found_here, moved in on_ranks(advantages):
            if distance(found_here, batch.advantages[moved]) > TOLERANCE[torch.float64]:
                where = at(objective, "advantage", objective.advantage, "advantages")
                return f"{what}: other advantages than in one process; sums over the rollout go through `comm`: {where}"
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


def edge_cases() -> dict[str, TabularCase]:
    """Rollouts at the edge of what a trainer meets."""
    case = make_case(_SEED, repeat=4, dtype=torch.float32)
    ones = torch.ones_like(case.rewards)
    singles, _ = shuffled(case, torch.tensor([1, 7, 10, 16]))
    return {
        "all right": replace(case, rewards=ones),
        "all wrong": replace(case, rewards=0 * ones),
        "a failed response without a token": shuffled(case, torch.tensor([3, 4, 5]))[0],
        "nothing but a response without a token": shuffled(case, torch.tensor([3]))[0],
        "responses of one token": replace(singles, rewards=torch.tensor([1.0, 0, 1, 0]), group_ids=0 * singles.uid),
        "a group of one": shuffled(case, torch.tensor([2]))[0],
        "the policy that sampled": make_case(_SEED, drift=0.0, dtype=torch.float32),
        "a policy far away": make_case(_SEED, drift=30.0, dtype=torch.float32),
        f"log-ratios of {LOG_RATIO_BOUND:g}": _off_policy(case, 1),
        f"log-ratios of -{LOG_RATIO_BOUND:g}": _off_policy(case, -1),
    }


def _off_policy(case: TabularCase, sign: int) -> TabularCase:
    """The case with log-ratios at the bound that they are clamped to, as after a step that went wrong."""
    rare = torch.zeros_like(case.old_logits)
    rare[torch.arange(len(case.tokens)), case.tokens] = LOG_RATIO_BOUND
    old, new = (rare, 0.0) if sign > 0 else (0.0, rare)
    logits = (case.logits.detach() - new).requires_grad_()
    return replace(case, logits=logits, old_logits=case.old_logits - old)


def finite(objective: Objective) -> str:
    """Loss and gradient are numbers, in float32, where rewards are alike, responses empty, and the policy far away."""
    for what, case in edge_cases().items():
        batch = case.batch(objective)
        out = objective.loss(batch, objective.prepare(batch, salt=_SALT)).loss
        if not out.requires_grad:
            return f"{what}: the loss has no graph"
        if not out.isfinite():
            return f"{what}: the loss is {out.item():g} in float32"
        (slope,) = torch.autograd.grad(out, case.logits, allow_unused=True)
        if slope is not None and not slope.isfinite().all():
            return f"{what}: the gradient is not finite in float32"
    return ""


class _Unguarded(Objective):
    """An objective whose loss is what its kinds make of a NaN: the guard that makes it one for every kind is off."""

    def _intact(self, batch: TokenBatch) -> Tensor:
        return torch.ones(())


@torch.no_grad()
def nan(objective: Objective) -> str:
    """NaN in what it reads reaches the loss, where training stops: a reward, a log-prob, an advantage."""
    case = make_case(_SEED)
    objective = _Unguarded(**{part.name: getattr(objective, part.name) for part in fields(objective)})
    batch, groups = case.batch(objective), case.groups()

    def loss(**changes: Any) -> Tensor:
        given = replace(batch, **changes)
        return objective.loss(given, objective.prepare(given, salt=_SALT)).loss

    for place in (0, 1, -1):  # a success, a failure of its group, and one of a group without a success
        made = objective.advantages(replace(groups, rewards=_with_nan(groups.rewards, place)))
        if not made[groups.sequence == torch.arange(len(case.lengths))[place]].isnan().all():
            where = at(objective, "advantage", objective.advantage, "advantages")
            return f"a NaN reward makes an advantage that is a number: {where}"
    old = batch.old_logprobs
    read = ["logprobs", "advantages", *(["old_logprobs"] if loss(old_logprobs=old - 0.1) != loss() else [])]
    for name in read:
        for token in (0, -1):
            if not loss(**{name: _with_nan(getattr(batch, name), token)}).isnan():
                return f"a NaN in `{name}` makes a loss that is a number"
    return ""


def _with_nan(values: Tensor, place: int) -> Tensor:
    values = values.detach().clone()
    values[place] = torch.nan
    return values


def baseline(objective: Objective) -> str:
    """A group of like responses gets an advantage of 0, unless the advantage declares `baseline = False`."""
    if not getattr(objective.advantage, "baseline", True):
        return ""
    lengths = torch.full((9,), 3)
    ids, rewards = torch.tensor([0, 0, 0, 1, 1, 2, 2, 3, 4]), torch.tensor([1.0, 0, 1, 1, 1, 0, 0, 1, 0]).double()
    groups = Groups(rewards, ids, lengths, torch.ones(27).double(), lengths > 0, 2 * LIMIT)
    found = objective.advantages(groups)[groups.sequence > 2]
    if found.abs().max() <= SLOPE_TOLERANCE:
        return ""
    where = at(objective, "advantage", objective.advantage, "advantages")
    fix = "take a baseline off, or declare `baseline = False`"
    largest = float(found[found.abs().argmax()])
    return f"equal rewards of a group give an advantage of {largest:.3g}, not 0; {fix}: {where}"


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
    optional = {part.name for part in fields(batch) if part.default is None} & {part.name for part in fields(Needs)}
    return replace(batch, **{name: None for name in optional if not getattr(needs, name)})


def _first_line(error: Exception) -> str:
    what = error.what if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return what.splitlines()[0]


def members(objective: Objective) -> str:
    """Its kinds do what their members say (varies, drops, scope), and no gradient flows but into the policy."""
    return wrong_members(objective)


def explained(objective: Objective) -> str:
    """Formulas stand where they are read, and the coefficient is autograd's.

    Raises UnreadableError where the coefficient is not a formula that can be compared."""
    if wrong := wrong_explanations(objective) or wrong_coefficients(objective):
        return wrong
    explanation = explain(objective)
    return "" if to_text(explanation) and to_latex(explanation) else "nothing is explained"


CHECKS: dict[str, Callable[[Objective], str]] = {
    "micro-batches": micro_batches,
    "order": order,
    "padding": padding,
    "ranks": ranks,
    "gradient": gradient,
    "finite": finite,
    "nan": nan,
    "baseline": baseline,
    "needs": needs,
    "members": members,
    "explained": explained,
}


def check_objective(objective: Objective) -> list[Check]:
    """All checks of an objective. Raises UserError where a file of its own cannot be run at all."""
    check_runs(objective)
    checks = []
    for name, check in CHECKS.items():
        said, wrong = (check.__doc__ or "").splitlines()[0], ""
        try:
            wrong = _outcome(check, objective)
        except UnreadableError as unread:
            said = f"formulas stand where they are read; the coefficient is not compared: {unread}"
        if (
            wrong
            and not any(f"{file}:" in wrong for file, _ in objective.files)
            and (kind := _blamed(check, objective))
        ):
            wrong = f"{wrong}: {kind}"  # the own kind to blame, where the check itself names no place
        checks.append(Check(name, said, wrong))
    return checks


def _outcome(check: Callable[[Objective], str], objective: Objective) -> str:
    """Run a check and return the fault that it found, in words, or the empty text. An exception is a fault."""
    try:
        with located(dict(objective.files)):
            return check(objective)
    except UnreadableError:
        raise
    except UserError as error:
        return f"{error.what} ({error.where})" if error.where else error.what
    except Exception as error:
        return _first_line(error)


NEUTRAL: dict[str, Any] = {
    "overlong": Keep(),
    "advantage": GroupNormalized(),
    "ratio": Token(),
    "surrogate": Unclipped(),
    "weight": Uniform(),
    "correction": NoCorrection(),
    "aggregation": TokenMean(),
}


def _blamed(check: Callable[[Objective], str], objective: Objective) -> str:
    """The own kinds without which the check holds, each by itself; all of them where that tells nothing."""
    own = [(axis, part) for axis, part in parts_of(objective) if place_of(part, dict(objective.files))]

    def holds_without(axis: str, part: Any) -> bool:
        penalties = tuple(other for other in objective.penalties if other is not part)
        changed: dict[str, Any] = {"penalties": penalties} if axis == "penalty" else {axis: NEUTRAL[axis]}
        try:
            return not _outcome(check, replace(objective, **changed))
        except UnreadableError:
            return True

    found = [one for one in own if holds_without(*one)] if len(own) > 1 else own
    return ", ".join(at(objective, axis, part) for axis, part in found or own)


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
        fix = "return what the Protocol of the axis says: docs/library.md"
        raise UserError(what, where=where, fix=fix) from error


STEP = 1e-6  # of a logit, in float64: the rounding of a loss near 1 leaves ten digits of the slope


class _Detached(TorchFunctionMode):
    """Keeps the results of `detach` and of everything under `no_grad`; with `kept`, gives those back in their order.

    Whether a `no_grad` is open is noted as it is entered: torch also has no gradient inside a `Function`'s own forward,
    whose result does have one."""

    def __init__(self, kept: list[Tensor] | None = None):
        super().__init__()
        self.kept: list[Tensor] = [] if kept is None else kept
        self._replay = None if kept is None else iter(kept)
        self._open = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch._C._set_grad_enabled:
            self._open = not args[0]
        if not isinstance(result, Tensor) or not (self._open or func is Tensor.detach):
            return result
        if self._replay is None:
            self.kept.append(result.detach().clone())
            return result
        return next(self._replay).clone()


def slopes(loss: Callable[[Tensor], Tensor], at: Tensor, directions: Tensor, *, hold: bool) -> Tensor:
    """Central differences of `loss` at `at` [N, V] along directions [K, N, V], float64 [K].

    hold: what the loss detaches stays at its value at `at`, so that autograd's gradient has the same slopes."""
    with _Detached() as detached:
        loss(at)

    def value(point: Tensor) -> float:
        if not hold:
            return float(loss(point))
        with _Detached(detached.kept):
            return float(loss(point))

    found = [(value(at + STEP * one) - value(at - STEP * one)) / (2 * STEP) for one in directions]
    return torch.tensor(found, dtype=torch.float64)
