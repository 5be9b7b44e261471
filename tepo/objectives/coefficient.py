"""The number that multiplies grad log pi_t in J, before the sums' weights: what a row does to each token (objectives side by side)."""

from typing import NamedTuple

from tepo.objectives import advantage, correction, penalty, ratio, surrogate, weight
from tepo.objectives.formula import factors, kl_slope, signed_coefficient
from tepo.objectives.objective import Objective


class Coefficient(NamedTuple):
    """The coefficient in plain text and where the policy term's part of it is 0."""

    text: str
    zero: str


def coefficient(objective: Objective) -> Coefficient:
    """The coefficient of grad log pi_t of one token, all that is detached taken as constant."""
    before, amount = _amount(objective)
    policy, zero = _policy(objective, amount)
    text = f"{before}{policy}"
    if isinstance(objective.weight, weight.ClipCov):
        zero += "; or the token was drawn (lambda_t = 0)" if before else "; a drawn token leaves the sum (lambda = 0), its log pi keeps the others' share"
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


def _amount(objective: Objective) -> tuple[str, str]:
    """The detached factors of the token, and A. Where the gradient flows through a ratio of several tokens, and factors or A differ
    among these, a token's log pi carries the amounts of all of them."""
    before = factors(objective).text
    varying = bool(before) or isinstance(objective.advantage, advantage.EntropyTerm | advantage.Gtpo | advantage.GtpoClipped)
    if not varying or isinstance(objective.surrogate, surrogate.Cispo) or getattr(objective.ratio, "gradient", "local") != "full":
        return before, "A"
    return "", f"mean_s({before.replace('_t', '_s')}A_s)" if isinstance(objective.ratio, ratio.Sequence) else f"{before.replace('_t', '_u')}A_u"


def _policy(objective: Objective, amount: str) -> tuple[str, str]:
    """The policy term's coefficient, and where it is 0. amount: see `_amount`."""
    slope, symbol = _ratio_slope(objective.ratio, amount)
    match objective.surrogate:
        case surrogate.LogProb():
            return "A", "A = 0"
        case surrogate.Cispo(low=low, high=high):
            bottom = "0" if low is None else f"{1 - low:g}"
            return f"clip({symbol}, {bottom}, {1 + high:g}) A", "A = 0; a clipped token keeps its weight"
        case surrogate.Sapo():
            return f"4 s (1 - s) {slope}, s = sigmoid(tau ({symbol} - 1))", "A = 0; fades as the ratio moves away from 1"
        case surrogate.GeometricClip(low=low, high=high):
            return f"rho_i {amount}, rho_i = exp(1/T_i sum_t d'_t)", f"A > 0 and d_t > {high:g}, A < 0 and d_t < -{low:g} (this token alone)"
        case surrogate.PpoClip(low=low, high=high, dual=dual):
            zero = f"A > 0 and {symbol} > {1 + high:g}, A < 0 and {symbol} < {1 - low:g}"
            return slope, zero + (f", A < 0 and {symbol} > {dual:g}" if dual is not None else "") + _unit(objective.ratio)
        case surrogate.PaperClip(high=high):
            return slope, f"{symbol} > {1 + high:g}, whatever the sign of A{_unit(objective.ratio)}"
    return slope, "A = 0 (no clip)"


def _unit(level: ratio.Ratio) -> str:
    return " (the whole response)" if isinstance(level, ratio.Sequence) else ""


def _ratio_slope(level: ratio.Ratio, amount: str) -> tuple[str, str]:
    """d(ratio A)/d log pi_t summed over the response, and the ratio's symbol."""
    match level:
        case ratio.Sequence(mean="arithmetic", gradient="full"):
            return f"r_t {amount}", "w_i"
        case ratio.Sequence(gradient="line_21"):
            return "w_i A / T_i", "w_i"
        case ratio.Sequence():
            return f"w_i {amount}", "w_i"
        case ratio.Prefix(gradient="full"):
            return "A sum_(u>=t) p_u/u" if amount == "A" else f"sum_(u>=t) {amount} p_u/u", "p_t"
        case ratio.Prefix():
            return "p_t A", "p_t"
        case ratio.Token():
            return "r_t A", "r_t"
    return "A", ""
