"""The number that multiplies grad log pi_t in J, before the sums' weights: what a row does to each token.

Where the gradient flows through a ratio of several tokens, a token's log pi carries the terms of all of them:
of the whole response (index s), or, with a prefix ratio, of the tokens u >= t.
"""

from typing import NamedTuple

from tepo.objectives import advantage, correction, penalty, ratio, surrogate, weight
from tepo.objectives.formula import factors, kl_slope, signed_coefficient
from tepo.objectives.objective import Objective


class Coefficient(NamedTuple):
    """The coefficient in plain text, where no clip acts, and where the policy term's part of it is 0."""

    text: str
    zero: str


class _Terms(NamedTuple):
    """What a token's log pi carries.

    over: index of the terms summed over, empty where they are alike or the token's own alone; before: detached factors
    in front; amount: A with the factors inside the sum; symbol: of the ratio."""

    over: str
    before: str
    amount: str
    symbol: str


def coefficient(objective: Objective) -> Coefficient:
    """The coefficient of grad log pi_t of one token, all that is detached taken as constant."""
    terms = _terms(objective)
    text, zero = terms.before + _slope(objective, terms), _zero(objective, terms)
    if isinstance(objective.weight, weight.ClipCov) and not terms.over:
        zero += "; or the token was drawn (lambda_t = 0)"
    for part in objective.penalties:
        sign, size = signed_coefficient(part)
        if isinstance(part, penalty.EntropyBonus):
            text += f"  {sign} {size:g} grad H_t (through all logits: dH/dz_v = -pi_v (log pi_v + H))"
        else:
            mask = "" if part.tokens == "all" else " M"
            text += f"  {sign} {size:g}{mask} {kl_slope(part)}"
    if isinstance(objective.correction, correction.Truncated):
        zero += "; v_t never is"
    return Coefficient(text, zero)


def _terms(objective: Objective) -> _Terms:
    level, before = objective.ratio, factors(objective).text
    symbol = {ratio.Token: "r_t", ratio.Sequence: "w_i", ratio.Prefix: "p_t", ratio.NoRatio: ""}[type(level)]
    spread = getattr(level, "gradient", "local") == "full" and not isinstance(objective.surrogate, surrogate.Cispo)
    if spread and isinstance(level, ratio.Prefix):
        amount = f"{before.replace('_t', '_u')}A_u" if before or _varies(objective) else "A"
        return _Terms("u", "", amount, "p_u")
    if spread and (before or _varies(objective)):
        return _Terms("s", "", f"{before.replace('_t', '_s')}A_s", symbol)
    return _Terms("", before, "A", symbol)


def _varies(objective: Objective) -> bool:
    """Whether A differs among the tokens of a response, and with GTPO its sign."""
    return isinstance(objective.advantage, advantage.EntropyTerm | advantage.Gtpo | advantage.GtpoClipped)


def _slope(objective: Objective, terms: _Terms) -> str:
    """d(policy term)/d log pi_t summed over the response, without the factors in front."""
    index, _, amount, symbol = terms
    match objective.surrogate:
        case surrogate.LogProb():
            return "A"
        case surrogate.Cispo(low=low, high=high):
            return f"clip({symbol}, {'0' if low is None else f'{1 - low:g}'}, {1 + high:g}) A"
        case surrogate.GeometricClip():
            return f"rho_i {f'mean_s({amount})' if index else amount}, rho_i = exp(1/T_i sum_t d'_t)"
        case surrogate.Sapo():
            if not index:
                return f"4 g (1 - g) {_chain(objective.ratio, '', amount)}, g = sigmoid(tau ({symbol} - 1))"
            gate, tau = f"g_{index}", "tau" if amount == "A" else f"tau_{index}"
            inner = f"4 {gate} (1 - {gate}) {amount}"
            return f"{_chain(objective.ratio, index, inner)}, {gate} = sigmoid({tau} ({symbol} - 1))"
    return _chain(objective.ratio, index, amount)


def _chain(level: ratio.Ratio, index: str, inner: str) -> str:
    """The ratio's derivative times what stands before it; inner: what the terms of the sum are made of."""
    if index == "u":
        return f"sum_(u>=t) {inner} p_u/u"
    inner = f"mean_s({inner})" if index else inner
    match level:
        case ratio.Sequence(mean="arithmetic", gradient="full"):
            return f"r_t {inner}"
        case ratio.Sequence(gradient="line_21"):
            return f"w_i {inner} / T_i"
        case ratio.Sequence():
            return f"w_i {inner}"
        case ratio.Prefix():
            return f"p_t {inner}"
    return f"r_t {inner}"


def _zero(objective: Objective, terms: _Terms) -> str:
    """Where the policy term's part is 0."""
    index, drawn = terms.over, isinstance(objective.weight, weight.ClipCov)
    match objective.surrogate:
        case surrogate.LogProb():
            return "A = 0"
        case surrogate.Cispo():
            return "A = 0; a clipped token keeps its weight"
        case surrogate.GeometricClip(low=low, high=high):
            rest = "; or every token s of the response has A_s = 0, or lambda_s = 0" if drawn else ""
            return f"A > 0 and d_t > {high:g}, A <= 0 and d_t < -{low:g} (this token alone){rest}"
    a = "A" if terms.amount == "A" else f"A_{index}"
    held = _held(objective.surrogate, a, terms.symbol) + ([f"lambda_{index} = 0"] if drawn and index else [])
    alike = not _varies(objective) and not (drawn and index)
    if (index == "s" and not alike) or (index == "u" and (held or not alike)):
        leaves = f"; one that has leaves the {'mean' if index == 's' else 'sum'}" if held else ""
        every = ", or ".join([f"{a} = 0", *held])
        return f"every token {'s of the response' if index == 's' else 'u >= t'} has {every}{leaves}{_fade(objective)}"
    if not held:
        return f"A = 0{_fade(objective)}"
    unit = " (the whole response)" if isinstance(objective.ratio, ratio.Sequence) and alike else ""
    return ", ".join(_held(objective.surrogate, "A", terms.symbol)) + unit


def _held(options: surrogate.Surrogate, a: str, symbol: str) -> list[str]:
    """Where a clip stops the gradient of one term."""
    match options:
        case surrogate.PpoClip(low=low, high=high, dual=dual):
            found = [f"{a} > 0 and {symbol} > {1 + high:g}", f"{a} < 0 and {symbol} < {1 - low:g}"]
            return found if dual is None else [*found, f"{a} < 0 and {symbol} > {dual:g}"]
        case surrogate.PaperClip(high=high):
            return [f"{symbol} > {1 + high:g}"]
    return []


def _fade(objective: Objective) -> str:
    match objective.surrogate:
        case surrogate.Sapo():
            return "; fades as the ratio moves away from 1"
        case surrogate.Unclipped():
            return " (no clip)"
    return ""
