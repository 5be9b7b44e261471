"""What the symbols of an objective's formula stand for, in plain text and LaTeX, and what carries no gradient."""

from tepo.objectives import advantage, aggregation, correction, overlong, penalty, ratio, surrogate, weight
from tepo.objectives.formula import Line, kl_value
from tepo.objectives.objective import Objective

MASKS = {
    penalty.POSITIVE_FALLING: Line("A > 0 and dH < 0", r"A_{i,t} > 0 \wedge \Delta H_{i,t} < 0"),
    penalty.NEGATIVE_RISING: Line("A < 0 and dH > 0", r"A_{i,t} < 0 \wedge \Delta H_{i,t} > 0"),
    penalty.EITHER: Line(
        "(A > 0 and dH < 0) or (A < 0 and dH > 0)",
        r"(A_{i,t} > 0 \wedge \Delta H_{i,t} < 0) \vee (A_{i,t} < 0 \wedge \Delta H_{i,t} > 0)",
    ),
    "top_covariance": Line(
        "the largest (log pi_t - mean)(A - mean)",
        r"(\log\pi_{i,t} - \overline{\log\pi})(A_{i,t} - \bar A)\ \text{among the largest}",
    ),
}
CHANGES = {
    "measured": Line(
        "dH = H(pi) - H(pi_old) at the token's prefix", r"\Delta H_{i,t} = H(\pi_\theta) - H(\pi_{\mathrm{old}})"
    ),
    "covariance": Line(
        "sign dH = -sign (log pi_t - mean)(A - mean)",
        r"\mathrm{sign}\,\Delta H_{i,t} = -\mathrm{sign}\,(\log\pi_{i,t} - \overline{\log\pi})(A_{i,t} - \bar A)",
    ),
    "omega": Line(
        "sign dH = -sign A (log pi_t + H)",
        r"\mathrm{sign}\,\Delta H_{i,t} = -\mathrm{sign}\,A_{i,t}(\log\pi_{i,t} + H_{i,t})",
    ),
}


def definitions(objective: Objective) -> list[Line]:
    """What the symbols of the formula stand for."""
    found = [
        Line(
            "d_t = log pi_t - log pi_old,t (clamped to +-20)",
            r"d_{i,t} = \log\pi_\theta(y_{i,t}) - \log\pi_{\mathrm{old}}(y_{i,t})",
        )
    ]
    if isinstance(objective.surrogate, surrogate.GeometricClip):
        low, high = objective.surrogate.low, objective.surrogate.high
        found.append(
            Line(
                f"d'_t = min(d_t, {high:g}) where A > 0, max(d_t, -{low:g}) elsewhere",
                rf"d'_{{i,t}} = \min(d_{{i,t}}, {high:g})\ (A > 0),\ \max(d_{{i,t}}, -{low:g})\ (A \le 0)",
            )
        )
    elif (line := ratio_definition(objective)) is not None:
        found.append(line)
    found += [line for line in (overlong_line(objective.overlong),) if line is not None]
    found.append(advantage_line(objective.advantage))
    if isinstance(objective.surrogate, surrogate.Sapo):
        positive, negative = objective.surrogate.tau_positive, objective.surrogate.tau_negative
        found.append(
            Line(
                f"tau = {positive:g} where A > 0, {negative:g} elsewhere",
                rf"\tau = {positive:g}\ (A > 0),\ {negative:g}\ (A \le 0)",
            )
        )
    found += _factor_definitions(objective)
    for part in objective.penalties:
        if isinstance(part, penalty.Kl):
            value = kl_value(part)
            found.append(
                Line(
                    f"KL_t = {value.text}, anchor: the {part.anchor} policy"
                    + (", e = log pi_t - log anchor_t" if part.estimator != "full" else ""),
                    rf"\mathrm{{KL}}_{{i,t}} = {value.latex}",
                )
            )
            if part.tokens != "all":
                mask = MASKS[part.tokens]
                found.append(
                    Line(f"M = 1 where {mask.text}, else 0", rf"M_{{i,t}} = \mathbb{{1}}\big[{mask.latex}\big]")
                )
            if part.tokens in penalty.BY_CHANGE:
                found.append(CHANGES[part.entropy_change])
            if part.mean_over == "masked":
                found.append(
                    Line(
                        "the KL term is averaged over the tokens with M = 1, not by the sums' weights",
                        r"\text{KL averaged over } M_{i,t} = 1",
                    )
                )
    found.append(Line(_sets(objective.aggregation), r"T_i = |y_i|,\quad N = \sum_i T_i,\quad B = \#\{i : T_i > 0\}"))
    return found


def _factor_definitions(objective: Objective) -> list[Line]:
    found = []
    match objective.weight:
        case weight.ClipCov(fraction=fraction, low=low, high=high):
            latex = rf"{low:g} < (\log\pi_{{i,t}} - \overline{{\log\pi}})(A_{{i,t}} - \bar A) < {high:g}"
            found.append(
                Line(
                    f"lambda_t = 0 on {fraction:g} N tokens (at least one) drawn among those with "
                    f"{low:g} < (log pi_t - mean)(A - mean) < {high:g} that the clip left alone, else 1",
                    rf"\lambda_{{i,t}} = 0 \text{{ on }} \max(1, \lfloor {fraction:g} N \rfloor) "
                    rf"\text{{ tokens drawn where }} {latex}",
                )
            )
        case weight.Steer(form=form, shape=shape, floor=floor, ceiling=ceiling):
            inner = "A/pi_old pi (1-pi) (log pi + H)" if form == "code" else "I_clip r A pi (1-pi) (log pi + H)"
            latex = (
                r"\tfrac{A}{\pi_{\mathrm{old}}}\,\pi (1-\pi)(\log\pi + H)"
                if form == "code"
                else r"\mathbb{1}_{\mathrm{clip}}\, r A\,\pi (1-\pi)(\log\pi + H)"
            )
            fall = (
                f"exp(log({floor:g}) |Omega_t| / max |Omega|)"
                if shape == "exponential"
                else f"from {ceiling:g} at the smallest |Omega| to {floor:g} at the largest"
            )
            outer = (
                rf"\exp\Big(\ln {floor:g}\,\frac{{|\Omega_{{i,t}}|}}{{\max|\Omega|}}\Big)"
                if shape == "exponential"
                else rf"\text{{linear in }} |\Omega_{{i,t}}| \text{{ from }} {ceiling:g} \text{{ to }} {floor:g}"
            )
            found.append(
                Line(
                    f"lambda_t = {fall}, Omega_t = {inner}",
                    rf"\lambda_{{i,t}} = {outer},\quad \Omega_{{i,t}} = {latex}",
                )
            )
    if isinstance(objective.correction, correction.Truncated):
        cap, level = objective.correction.cap, objective.correction.level
        what = (
            "pi_old / pi_sampler of the token"
            if level == "token"
            else "product of pi_old / pi_sampler over the response"
        )
        found.append(
            Line(
                f"v_t = min({what}, {cap:g})",
                r"v_{i,t} = \min\Big(\prod \frac{\pi_{\mathrm{old}}}{\pi_{\mathrm{sampler}}}, "
                rf"{cap:g}\Big)",
            )
        )
    return found


def _sets(options: aggregation.Aggregation) -> str:
    """N, B and C."""
    where = {
        "mini_batch": "of the whole mini-batch, all ranks",
        "group": "of a prompt's group",
        "micro_batch": "of each micro-batch (as older verl)",
    }[options.over]
    constant = ""
    if isinstance(options, aggregation.SeqMeanTokenSumNorm):
        constant = f", C = {options.constant:g}" if options.constant else ", C = the length limit"
    return f"T_i: tokens of response i; N: tokens, B: non-empty responses {where}{constant}"


def detached(objective: Objective) -> list[str]:
    """What carries no gradient."""
    found = ["A", "log pi_old"]
    if isinstance(objective.advantage, advantage.Gtpo | advantage.GtpoClipped | advantage.GrpoS):
        found.append("old entropies")
    if isinstance(objective.advantage, advantage.EntropyTerm):
        found.append("H_t in the advantage")
    if isinstance(objective.ratio, ratio.Sequence | ratio.Prefix) and objective.ratio.gradient != "full":
        found.append("the ratio's value, except through the token's own log pi")
    if isinstance(objective.surrogate, surrogate.Cispo):
        found.append("the clipped ratio")
    if not isinstance(objective.weight, weight.Uniform):
        found.append("lambda_t")
    if isinstance(objective.correction, correction.Truncated):
        found.append("v_t")
    for part in objective.penalties:
        if isinstance(part, penalty.Kl):
            found += ["M and all that it is made of"] if part.tokens != "all" else []
            found += [f"the {part.anchor} policy"] if part.anchor == "initial" or part.estimator == "full" else []
    return found


def ratio_definition(objective: Objective) -> Line | None:
    """What that symbol stands for; None without a ratio."""
    match objective.ratio:
        case ratio.Token():
            return Line("r_t = exp(d_t)", r"r_{i,t} = e^{d_{i,t}}")
        case ratio.Sequence(mean=mean, gradient=gradient):
            geometric = mean == "geometric"
            line = (
                Line("exp(1/T_i sum_t d_t)", r"\exp\Big(\tfrac{1}{T_i}\sum_t d_{i,t}\Big)")
                if geometric
                else Line("1/T_i sum_t exp(d_t)", r"\tfrac{1}{T_i}\sum_t e^{d_{i,t}}")
            )
            note = {
                "full": "",
                "local": "; its gradient is taken as sg[w_i] grad log pi_t",
                "line_21": "; its gradient is taken as sg[w_i]/T_i grad log pi_t",
            }[gradient]
            return Line(f"w_i = {line.text}{note}", f"w_i = {line.latex}")
        case ratio.Prefix(gradient=gradient):
            note = "; its gradient is taken as sg[p_t] grad log pi_t" if gradient == "local" else ""
            return Line(
                f"p_t = exp(1/t sum_(s<=t) d_s){note}", r"p_{i,t} = \exp\Big(\tfrac{1}{t}\sum_{s\le t} d_{i,s}\Big)"
            )
    return None


def advantage_line(options: advantage.Advantage) -> Line:
    """A."""
    match options:
        case advantage.GroupNormalized(std=True):
            return Line(
                "A = (R_i - mean) / (std + eps) over the group",
                r"A_{i,t} = \frac{R_i - \mathrm{mean}(R)}{\mathrm{std}(R) + \epsilon}",
            )
        case advantage.GroupNormalized():
            return Line("A = R_i - mean over the group", r"A_{i,t} = R_i - \mathrm{mean}(R)")
        case advantage.EntropyTerm(alpha=alpha, kappa=kappa):
            return Line(
                f"A = a + min({alpha:g} sg[H_t], |a|/{kappa:g}), a = (R_i - mean) / (std + eps) over the group",
                rf"A_{{i,t}} = a_i + \min\big({alpha:g}\,\mathrm{{sg}}[H_{{i,t}}],\ |a_i|/{kappa:g}\big),"
                r"\quad a_i = \frac{R_i - \mathrm{mean}(R)}{\mathrm{std}(R) + \epsilon}",
            )
        case advantage.Gpg(std=std):
            over = " / (std + eps)" if std else ""
            return Line(
                f"A = alpha (R_i - mean){over} over the group",
                r"A_{i,t} = \alpha\,\big(R_i - \mathrm{mean}(R)\big)"
                + (r" / (\mathrm{std}(R) + \epsilon)" if std else ""),
            )
        case advantage.LeaveOneOut():
            return Line("A = R_i - mean of the others in the group", r"A_{i,t} = R_i - \tfrac{1}{G-1}\sum_{k\ne i} R_k")
        case advantage.BatchWhitened():
            return Line(
                "A = (a - mean) / sqrt(var + eps) over all tokens, a = R_i - mean over the group",
                r"A_{i,t} = \frac{a_i - \mathrm{mean}_{\text{tokens}}(a)}"
                r"{\sqrt{\mathrm{var}_{\text{tokens}}(a) + \epsilon}},"
                r"\quad a_i = R_i - \mathrm{mean}(R)",
            )
        case advantage.Gtpo(alpha=alpha, failures=failures):
            text = (
                f"A = normalised r~, r~ = r_i + {alpha:g} d_t H_t / sum_k H_k,t over the group's successes; "
                "0 on failures"
            )
            latex = (
                rf"\tilde r_{{i,t}} = r_i + {alpha:g}\, d_t \frac{{H_{{i,t}}}}{{\sum_k H_{{k,t}}}}\ (r_i = 1),"
                r"\quad A_{i,t} = \mathrm{normalise}(\tilde r)_{i,t}"
            )
            extra = "; failures: A = normalised r-, r- = -h_t (1/H_t) / sum_k 1/H_k,t"
            return (
                Line(text + extra, latex + r",\quad r^-_{i,t} = -h_t \frac{1/H_{i,t}}{\sum_k 1/H_{k,t}}\ (r_i = 0)")
                if failures != "zero"
                else Line(text, latex)
            )
        case advantage.GtpoClipped(alpha1=alpha1, alpha2=alpha2, kappa=kappa):
            top = alpha1 * (1 + 1 / kappa)
            return Line(
                f"A = normalised r~, r~ = clip({alpha1:g} + {alpha2:g} d_t H_t / sum_k H_k,t, 1, {top:g}) + R_len(i) "
                "on successes; 0 on failures",
                rf"\tilde r_{{i,t}} = \mathrm{{clip}}\Big({alpha1:g} + {alpha2:g}\, d_t "
                rf"\frac{{H_{{i,t}}}}{{\sum_k H_{{k,t}}}}, 1, {top:g}\Big) + R_{{\mathrm{{len}}}}(i)\ (r_i = 1),"
                r"\quad A_{i,t} = \mathrm{normalise}(\tilde r)_{i,t}",
            )
    beta, mean = options.beta, options.entropy_mean
    text = (
        f"A = normalised r^, r^ = r_i + {beta:g} n H_i / sum_k H_k over the group's successes "
        f"(H_i: {mean} mean of the token entropies); 0 on failures"
    )
    latex = (
        rf"\hat r_i = r_i + {beta:g}\, n \frac{{\hat H_i}}{{\sum_k \hat H_k}}\ (r_i = 1),"
        r"\quad A_{i,t} = \mathrm{normalise}(\hat r)_i"
    )
    if options.failures == "zero":
        return Line(text, latex)
    return Line(
        text + "; failures: A = normalised r-, r- = -m (1/H_i) / sum_k 1/H_k",
        latex + r",\quad r^-_i = -m \frac{1/\hat H_i}{\sum_k 1/\hat H_k}\ (r_i = 0)",
    )


def overlong_line(options: overlong.Overlong) -> Line | None:
    """What happens near the length limit; None: nothing."""
    match options:
        case overlong.Punish(buffer=buffer, factor=factor):
            return Line(
                f"R_i loses up to {factor:g}, linearly over the last {buffer:.0%} of the length limit",
                rf"R_i \leftarrow R_i - {factor:g}\,"
                rf"\mathrm{{clip}}\Big(\frac{{T_i - {1 - buffer:g} L}}{{{buffer:g} L}}, 0, 1\Big)",
            )
        case overlong.Filter():
            return Line("truncated responses leave the sums, N and B", r"\text{truncated responses leave the sums}")
    return None
