"""J of an objective in plain text and LaTeX, for `tepo explain`."""

from typing import NamedTuple

from tepo.objectives import aggregation, correction, penalty, ratio, surrogate, weight
from tepo.objectives.objective import Objective


class Line(NamedTuple):
    """A formula in plain text and in LaTeX."""

    text: str
    latex: str


def ratio_symbol(objective: Objective) -> Line:
    """The symbol of the importance ratio: r_t, w_i or p_t."""
    match objective.ratio:
        case ratio.Sequence():
            return Line("w_i", "w_i")
        case ratio.Prefix():
            return Line("p_t", "p_{i,t}")
    return Line("r_t", "r_{i,t}")


def gain(objective: Objective) -> Line:
    """The bracket of the policy term."""
    w = ratio_symbol(objective)
    match objective.surrogate:
        case surrogate.PpoClip(low=low, high=high, dual=dual):
            text = f"min({w.text} A, clip({w.text}, {1 - low:g}, {1 + high:g}) A)"
            latex = (
                rf"\min\big({w.latex} A_{{i,t}},\ \mathrm{{clip}}({w.latex}, {1 - low:g}, {1 + high:g}) A_{{i,t}}\big)"
            )
            return (
                Line(text, latex)
                if dual is None
                else Line(
                    f"({text}, at least {dual:g} A where A < 0)",
                    rf"\max\nolimits_{{A<0}}\big({latex},\ {dual:g} A_{{i,t}}\big)",
                )
            )
        case surrogate.PaperClip(low=low, high=high):
            return Line(
                f"min({w.text}, clip({w.text}, {1 - low:g}, {1 + high:g})) A",
                rf"\min\big({w.latex},\ \mathrm{{clip}}({w.latex}, {1 - low:g}, {1 + high:g})\big) A_{{i,t}}",
            )
        case surrogate.LogProb():
            return Line("A log pi_t", r"A_{i,t} \log \pi_\theta(y_{i,t})")
        case surrogate.Cispo(low=low, high=high):
            bottom = "0" if low is None else f"{1 - low:g}"
            return Line(
                f"sg[clip({w.text}, {bottom}, {1 + high:g})] A log pi_t",
                rf"\mathrm{{sg}}\big[\mathrm{{clip}}({w.latex}, {bottom}, {1 + high:g})\big] "
                r"A_{i,t} \log \pi_\theta(y_{i,t})",
            )
        case surrogate.Sapo():
            return Line(
                f"A 4/tau sigmoid(tau ({w.text} - 1))",
                rf"A_{{i,t}} \tfrac{{4}}{{\tau}} \sigma\big(\tau ({w.latex} - 1)\big)",
            )
        case surrogate.GeometricClip():
            return Line("A exp(1/T_i sum_t d'_t)", r"A_{i,t} \exp\Big(\tfrac{1}{T_i}\sum_t d'_{i,t}\Big)")
    return Line(f"{w.text} A", rf"{w.latex} A_{{i,t}}")


def prefix(options: aggregation.Aggregation) -> Line:
    """The sums before the bracket."""
    match options:
        case aggregation.TokenMean():
            line = Line("1/N sum_i sum_t", r"\frac{1}{N}\sum_i\sum_t")
        case aggregation.SeqMeanTokenMean():
            line = Line("1/B sum_i 1/T_i sum_t", r"\frac{1}{B}\sum_i\frac{1}{T_i}\sum_t")
        case aggregation.SeqMeanTokenSum():
            line = Line("1/B sum_i sum_t", r"\frac{1}{B}\sum_i\sum_t")
        case aggregation.SeqMeanTokenSumNorm():
            line = Line("1/(B C) sum_i sum_t", r"\frac{1}{B\,C}\sum_i\sum_t")
    return (
        Line(f"1/groups sum_g {line.text}", rf"\frac{{1}}{{|\mathcal{{G}}|}}\sum_g {line.latex}")
        if options.over == "group"
        else line
    )


def kl_value(options: penalty.Kl) -> Line:
    """A token's KL from e = log pi_t - log anchor_t."""
    return {
        "k1": Line("e", r"e_{i,t}"),
        "k2": Line("e^2/2", r"\tfrac12 e_{i,t}^2"),
        "k3": Line("exp(-e) + e - 1", r"\exp(-e_{i,t}) + e_{i,t} - 1"),
        "abs": Line("|e|", r"|e_{i,t}|"),
        "r_k3": Line("r_t (exp(-e) + e - 1)", r"r_{i,t}\,\big(\exp(-e_{i,t}) + e_{i,t} - 1\big)"),
        "full": Line(
            "sum_v pi(v) log(pi(v)/anchor(v))",
            r"\sum_v \pi_\theta(v) \log\frac{\pi_\theta(v)}{\pi_{\mathrm{anchor}}(v)}",
        ),
    }[options.estimator]


def kl_slope(options: penalty.Kl) -> str:
    """Its derivative by log pi_t, in words for the exact KL."""
    return {
        "k1": "1",
        "k2": "e",
        "k3": "(1 - exp(-e))",
        "abs": "sign(e)",
        "r_k3": "r_t e",
        "full": "(exact gradient, through all logits)",
    }[options.estimator]


def signed_coefficient(part: penalty.Penalty) -> tuple[str, float]:
    """The sign and the size of a penalty's term in J."""
    inside = part.coefficient if isinstance(part, penalty.EntropyBonus) else -part.coefficient
    return "+" if inside > 0 else "-", abs(inside)


def penalty_terms(objective: Objective) -> list[Line]:
    """The signed terms that follow the policy term inside the sums."""
    found = []
    for part in objective.penalties:
        sign, size = signed_coefficient(part)
        if isinstance(part, penalty.EntropyBonus):
            found.append(Line(f"{sign} {size:g} H_t", f"{sign} {size:g}\\, H_{{i,t}}"))
        else:
            mask = Line("", "") if part.tokens == "all" else Line(" M", r"\, M_{i,t}")
            found.append(
                Line(f"{sign} {size:g} KL_t{mask.text}", rf"{sign} {size:g}\, \mathrm{{KL}}_{{i,t}}{mask.latex}")
            )
    return found


def factors(objective: Objective) -> Line:
    """Detached factors before the bracket."""
    text, latex = "", ""
    if not isinstance(objective.weight, weight.Uniform):
        text, latex = text + "lambda_t ", latex + r"\lambda_{i,t}\, "
    if isinstance(objective.correction, correction.Truncated):
        text, latex = text + "v_t ", latex + r"v_{i,t}\, "
    return Line(text, latex)


def objective_line(objective: Objective) -> Line:
    """J, to be maximised."""
    sums, bracket, before = prefix(objective.aggregation), gain(objective), factors(objective)
    terms = penalty_terms(objective)
    inside = [f"{before.text}{bracket.text}", *(line.text for line in terms)]
    latex = [f"{before.latex}{bracket.latex}", *(line.latex for line in terms)]
    return Line(f"J = {sums.text} [ {' '.join(inside)} ]", rf"J(\theta) = {sums.latex} \Big[ {' '.join(latex)} \Big]")
