"""Statements of an objective's kinds about themselves, against what they do: members, explanations, the coefficient."""

from dataclasses import fields, replace

import torch
from torch import Tensor

from tepo.objectives.axes.aggregation import TokenMean
from tepo.objectives.axes.correction import NoCorrection
from tepo.objectives.axes.overlong import Keep
from tepo.objectives.axes.penalty import Kl, Penalty
from tepo.objectives.axes.selection import SCOPES
from tepo.objectives.axes.weight import Uniform, Weight
from tepo.objectives.axis import Line, Part
from tepo.objectives.batch import TokenBatch
from tepo.objectives.explain import carried_by, definitions
from tepo.objectives.inputs import PER_TOKEN
from tepo.objectives.loading import parts_of
from tepo.objectives.objective import Loss, Objective, Plan
from tepo.objectives.plugins import place_of
from tepo.objectives.testing.case import make_case
from tepo.objectives.testing.printed import Reader, UnreadableError

NEAR = 0.02  # drift of the logits: ratios so near 1 that no usual clip acts, so far that formulas differ
AGREEMENT = 1e-6  # of a coefficient with autograd, relative to the largest
THROUGH_LOGITS = "all logits"  # in the coefficient of what has no gradient through log pi of the token
_SALT = 3
UNREAD = {  # fields of an explanation that no page and no formula takes from an axis
    "overlong": ("formula", "detached", "coefficient", "zero"),
    "advantage": ("formula", "coefficient", "zero"),
    "ratio": ("coefficient", "zero"),
    "surrogate": (),
    "weight": ("coefficient",),
    "correction": ("coefficient",),
    "penalty": ("zero",),
    "aggregation": ("detached", "coefficient", "zero"),
}


def at(objective: Objective, axis: str, part: object, member: str = "") -> str:
    """A kind, or a member of it, with its axis; with file and line where it is a user's own."""
    where = place_of(part, dict(objective.files), member)
    name = f"{axis} {type(part).__name__}{f'.{member}' if member else ''}"
    return f"{name} ({where})" if where else name


# members --------------------------------------------------------------------------------------------------------------
def wrong_members(objective: Objective) -> str:
    """Name a plain member of a kind that states something the kind does not do, or return the empty text."""
    objective = replace(objective, overlong=Keep())  # the tokens of a response that it leaves out weigh 0
    case = make_case(21, repeat=4)
    batch = case.batch(objective)
    plan = objective.prepare(batch, salt=_SALT)
    out = objective.loss(batch, plan)
    if wrong := _never_asked(objective, batch):
        return wrong
    advantage, ratio, tokens = objective.advantage, objective.ratio, out.tokens
    if advantage.current(batch.advantages, batch).requires_grad:
        return f"{at(objective, 'advantage', advantage, 'current')} carries a gradient: detach it"
    if not advantage.varies and _differs(tokens["advantage"], batch.sequence):
        return f"{at(objective, 'advantage', advantage, 'varies')} is False, and the advantages of one response differ"
    if ratio.per_response and _differs(tokens["ratio"], batch.sequence):
        return f"{at(objective, 'ratio', ratio, 'per_response')} is True, and the ratios of one response differ"
    for axis in ("weight", "correction"):
        part = getattr(objective, axis)
        if axis in tokens and not part.drops and bool((tokens[axis] == 0).any()):
            return f"{at(objective, axis, part, 'drops')} is False, and some of its factors are 0"
    nodes, seen = [out.loss.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and leaf is not case.logits:  # old log-probs for example
            return f"a gradient flows into a tensor {list(leaf.shape)} that is not the policy's: detach it"
        nodes += [parent for parent, _ in node.next_functions]
    return ""


def _never_asked(objective: Objective, batch: TokenBatch) -> str:
    """A weight or a penalty that would choose tokens, and says that it looks at no set of them."""
    weight, terms = objective.weight, objective._terms(batch)
    asked: list[tuple[str, Weight | Penalty, str, str | None]] = [("weight", weight, "scope", weight.scope)]
    asked += [("penalty", part, "selects", part.selects) for part in objective.penalties]
    for axis, part, member, scope in asked:
        if scope is not None and scope not in SCOPES:
            return f"{at(objective, axis, part, member)} is {scope!r}: {' or '.join(SCOPES)}, or None"
        if scope is not None:
            continue
        method = "token_weights" if axis == "weight" else "select"
        try:
            with torch.no_grad():
                given = (terms, objective.surrogate.gain(terms).clipped, None, _SALT)
                chosen = getattr(part, method)(*(given if axis == "weight" else (terms, None, _SALT)))
        except Exception as error:  # nobody else would run it
            chosen = error
        if chosen is not None:
            return f"{at(objective, axis, part, method)} is never applied: {member} is None; 'mini_batch' applies it"
    return ""


def _differs(values: Tensor, sequence: Tensor) -> bool:
    """Tell whether values [N] of one response differ by more than rounding."""
    spread = [float(part.max() - part.min()) for one in sequence.unique() if (part := values[sequence == one]).shape[0]]
    return max(spread) > 1e-9 * max(1.0, float(values.abs().max()))


# explanations ---------------------------------------------------------------------------------------------------------
def wrong_explanations(objective: Objective) -> str:
    """Name what is missing from an explanation, or stands where nothing reads it, or return the empty text."""
    applied = {"weight": not isinstance(objective.weight, Uniform), "advantage": True}
    applied |= {"correction": not isinstance(objective.correction, NoCorrection)}
    for axis, part in parts_of(objective):
        said = objective.surrogate.explained(carried_by(objective)) if axis == "surrogate" else part.explained
        here = at(objective, axis, part, "explained")
        own = {one.name for one in fields(part)}
        for name in Part._fields:
            value = getattr(said, name)
            if name in UNREAD[axis] and (any(value) if isinstance(value, Line) else value):
                return f"{here} has `{name}`, which nothing reads of this axis: say it in `definitions`"
            if hasattr(part, name) and name not in own:
                return f"{at(objective, axis, part, name)} is read by nothing: return it in `explained`"
        for line in (said.formula, *said.definitions):
            if bool(line.text) != bool(line.latex):
                lacks = "LaTeX" if line.text else "plain text"
                return f"{here} has a formula without {lacks}: {line.text or line.latex}"
        if axis in ("surrogate", "penalty", "aggregation") and not said.formula.text:
            return f"{here} has no formula.text"
        if axis in ("surrogate", "penalty") and not said.coefficient:
            return f"{here} says no coefficient"
        if axis == "surrogate" and not said.zero:
            return f"{here} does not say where its coefficient is 0"
        if applied.get(axis) and not said.definitions:
            return f"{here} has no definitions: nothing says what it does"
        if applied.get(axis) and axis != "advantage" and not said.formula.text:
            return f"{here} has no formula.text: J is printed without its factor"
    return ""


# the coefficient ------------------------------------------------------------------------------------------------------
def wrong_coefficients(objective: Objective) -> str:
    """Name the coefficient of the explanation that autograd contradicts, or return the empty text. Raises
    UnreadableError where one has words, or symbols that nothing defines as a formula."""
    alone = replace(objective, penalties=(), aggregation=TokenMean(), overlong=Keep())
    batch = make_case(21, repeat=4, drift=NEAR).batch(alone)
    held = {name: value.detach() for name in PER_TOKEN if (value := getattr(batch, name)) is not None}
    batch = replace(batch, **(held | {"logprobs": held["logprobs"].requires_grad_()}))  # the only leaves
    lines = [line.text for line in definitions(objective)]
    policy, _, out = _slopes(alone, batch)
    unread: UnreadableError | None = None
    for part in (None, *objective.penalties):
        try:
            if part is None:
                wrong = _policy_term(alone, policy, Reader(_values(alone, batch, out), batch.sequence, lines), out)
            else:
                wrong = _penalty_term(alone, part, batch, policy, lines)
        except UnreadableError as error:
            unread = unread or error
            continue
        if wrong:
            axis = "surrogate" if part is None else "penalty"
            return f"{wrong}: {at(objective, axis, part or objective.surrogate, 'explained')}"
    if unread:
        raise unread
    return ""


def _slopes(objective: Objective, batch: TokenBatch) -> tuple[Tensor, Plan, Loss]:
    """dJ / d log pi of each token, before the weights of the sums (all are 1/N) [N]; the plan; the loss."""
    plan = objective.prepare(batch, salt=_SALT)
    out = objective.loss(batch, plan)
    leaf = batch.want("logprobs", "autograd")
    (slope,) = torch.autograd.grad(out.loss, leaf, allow_unused=True, materialize_grads=True)
    return -slope * len(slope), plan, out


def _values(objective: Objective, batch: TokenBatch, out: Loss) -> dict[str, Tensor]:
    """The symbols that every explanation may name, [N] each."""
    d, tokens = out.tokens["log_ratio"], out.tokens
    logprobs, old, ones = d + batch.old_logprobs, batch.old_logprobs, torch.ones_like(d)
    values = {
        "d_t": d,
        "r_t": d.exp(),
        "A": tokens["advantage"],
        "T_i": batch.lengths[batch.sequence].double(),
        "N": ones * len(d),
        "t": (batch.positions + 1).double(),
        "u": (batch.positions + 1).double(),
        "log pi_t": logprobs,
        "log pi_old,t": old,
        "pi_t": logprobs.exp(),
        "pi_old,t": old.exp(),
        "pi": logprobs.exp(),
        "pi_old": old.exp(),
        "dp": logprobs.exp() - old.exp(),
        "log pi_sampler,t": batch.want("sampler_logprobs", "g_t"),
        "H_t": batch.want("entropies", "H_t"),
        "lambda_t": tokens.get("weight", ones),
        "v_t": tokens.get("correction", ones),
    }
    factors = ((objective.weight, "weight"), (objective.correction, "correction"))
    values |= {part.explained.formula.text.strip(): tokens.get(name, ones) for part, name in factors}
    symbol = objective.ratio.explained.formula.text
    return values | ({symbol: tokens["ratio"]} if symbol and "ratio" in tokens else {})


def _policy_term(objective: Objective, found: Tensor, reader: Reader, out: Loss) -> str:
    """The contradiction of the policy term's coefficient: at a token it is what is printed, or the printed one with
    the terms that the clip holds left out, or 0 where the clip holds or something else than A = 0 makes it 0."""
    carried = carried_by(objective)
    said = objective.surrogate.explained(carried)
    text = f"{carried.before}{said.coefficient}"
    none = torch.zeros_like(found, dtype=torch.bool)
    held = out.tokens.get("clipped", none) | out.tokens.get("clipped_lower", none)
    printed, left = (reader.number(text), reader.instead(A=out.tokens["advantage"].masked_fill(held, 0.0)).number(text))
    wrong = _beyond(found, printed) & _beyond(found, left)
    wrong &= _beyond(found, torch.zeros_like(found)) | ~(held | (said.zero.strip() != "A = 0"))
    return _contradiction(text, found, printed, wrong)


def _penalty_term(objective: Objective, part: Penalty, batch: TokenBatch, policy: Tensor, lines: list[str]) -> str:
    beside, plan, out = _slopes(replace(objective, penalties=(part,)), batch)
    found = beside - policy
    (chosen,) = plan.penalties
    if chosen is not None and chosen.scale is not None:  # a mean over the tokens where it acts
        found = torch.where(chosen.mask, found / (chosen.scale * len(found)), found)
    text = part.explained.coefficient
    if THROUGH_LOGITS in text:
        return "" if found.abs().max() == 0 else f"`{text}`, and it has a gradient through log pi of the token"
    values = _values(objective, batch, out)
    if "kl_mask" in out.tokens:
        values |= {"M": out.tokens["kl_mask"].double()}
    if isinstance(part, Kl):  # another's definitions say what e is
        values |= {"e": values["log pi_t"] - batch.want(f"{part.anchor}_logprobs", "a penalty")}
    printed = Reader(values, batch.sequence, lines).number(text)
    return _contradiction(text, found, printed, _beyond(found, printed))


def _beyond(found: Tensor, printed: Tensor) -> Tensor:
    """Mark the tokens at which two coefficients are not the same, bool [N]."""
    return (found - printed).abs() > AGREEMENT * float(torch.maximum(found.abs(), printed.abs()).max())


def _contradiction(text: str, found: Tensor, printed: Tensor, wrong: Tensor) -> str:
    """The worst of the tokens where a coefficient is wrong; empty where there is none."""
    if not wrong.any():
        return ""
    place = int(torch.where(wrong, (found - printed).abs(), -1.0).argmax())
    share = f"{float(wrong.double().mean()):.0%} of the tokens"
    there = f"{float(printed[place]):.4g} where autograd has {float(found[place]):.4g}"
    return f"the coefficient `{text.strip()}` is {there} ({share})"
