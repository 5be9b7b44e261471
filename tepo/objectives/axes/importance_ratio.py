"""Ratio axis: the importance ratio of each token, from d = log pi - log pi_old."""

import re
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tepo.common.schema import option
from tepo.objectives.axis import GAP, Kind, Line, Needs, Part
from tepo.objectives.batch import TokenBatch
from tepo.objectives.segments import prefix_mean, sequence_mean
from tepo.objectives.terms import LOG_RATIO_BOUND, sampler_gap

OWN_GRADIENT = "the ratio's value, except through the token's own log pi"


class Ratio(Kind, Protocol):
    """A level of the importance ratio; its symbol is `explained.formula`. per_response: whether all tokens of a
    response have the same ratio. spread: whose terms a token's log pi carries, those of all tokens s of the response,
    of the tokens u >= t, or of the token alone (empty)."""

    @property
    def per_response(self) -> bool: ...
    @property
    def spread(self) -> str: ...

    def importance_ratio(self, d: Tensor, batch: TokenBatch) -> Tensor | None:
        """The ratio of each token [N] with its gradient, None for no ratio. d: [N] from `log_ratio`."""

    def slope(self, inner: str) -> str:
        """d(sum of ratio times `inner`) / d log pi_t, in words."""


@dataclass(frozen=True)
class Token:
    """r_t = pi(y_t) / pi_old(y_t). PPO 1707.06347, GRPO."""

    needs = Needs()
    per_response = False
    spread = ""
    explained = Part(Line("r_t", "r_{i,t}"), (Line("r_t = exp(d_t)", r"r_{i,t} = e^{d_{i,t}}"),))

    def importance_ratio(self, d: Tensor, batch: TokenBatch) -> Tensor:
        return d.exp()

    def slope(self, inner: str) -> str:
        return f"r_t {inner}"


@dataclass(frozen=True)
class Sequence:
    """One ratio for the whole response: the mean of its token ratios, or their product."""

    mean: str = option(
        "geometric",
        "exp(mean d), the mean of exp(d), or the product exp(sum d), with the sum clamped to +-20",
        source="GSPO 2507.18071 section 4.1, TEPO 3.3.1; arithmetic: GRPO-S Eq. 6; product: VESPO 2602.10693",
        choices=("geometric", "arithmetic", "product"),
    )
    gradient: str = option(
        "full",
        "full: autodiff through the mean; local: each token's own log-prob only (GSPO-token); "
        "line_21: TEPO Algorithm 1 line 21 as printed, an extra 1/T",
        source="autodiff of TEPO Algorithm 1 line 18 (reading A7)",
        choices=("full", "local", "line_21"),
    )
    to: str = option(
        "old",
        "the policy below it: old, as the trainer scored it; sampler, by the sampler's own log-probs",
        source="GSPO, TEPO; sampler: VESPO 2602.10693v3, whose ratio is to the behavior policy",
        choices=("old", "sampler"),
    )
    per_response = True

    @property
    def needs(self) -> Needs:
        return Needs(sampler_logprobs=self.to == "sampler")

    def importance_ratio(self, d: Tensor, batch: TokenBatch) -> Tensor:
        if self.to == "sampler":
            d = d + sampler_gap(batch, "ratio.to: sampler")
        if self.gradient == "full":
            return self._value(d, batch)
        with torch.no_grad():
            value = self._value(d, batch)
        own = d - d.detach()  # 0 in value, 1 in gradient
        return value * (1 + (own if self.gradient == "local" else own / batch.lengths[batch.sequence]))

    def _value(self, d: Tensor, batch: TokenBatch) -> Tensor:
        match self.mean:
            case "geometric":
                return sequence_mean(d, batch.lengths, batch.sequence).exp()
            case "product":
                total = sequence_mean(d, batch.lengths, batch.sequence) * batch.lengths[batch.sequence]
                return total.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
            case _:
                return sequence_mean(d.exp(), batch.lengths, batch.sequence)

    @property
    def spread(self) -> str:
        return "s" if self.gradient == "full" else ""

    def slope(self, inner: str) -> str:
        if self.gradient == "line_21":
            return f"w_i {inner} / T_i"
        if (self.mean, self.gradient) == ("product", "full"):
            return f"T_i w_i {inner}"
        own = "r_t" if self.to == "old" else "r_t exp(g_t)"  # of the token
        return f"{own} {inner}" if (self.mean, self.gradient) == ("arithmetic", "full") else f"w_i {inner}"

    @property
    def explained(self) -> Part:
        to_sampler = self.to == "sampler"
        gap = (GAP,) if to_sampler else ()
        d = Line("(d_t + g_t)", "(d_{i,t} + g_{i,t})") if to_sampler else Line("d_t", "d_{i,t}")
        value = {
            "geometric": Line(f"exp(1/T_i sum_t {d.text})", rf"\exp\Big(\tfrac{{1}}{{T_i}}\sum_t {d.latex}\Big)"),
            "arithmetic": Line(f"1/T_i sum_t exp({d.text})", rf"\tfrac{{1}}{{T_i}}\sum_t e^{{{d.latex}}}"),
            "product": Line(f"exp(sum_t {d.text})", rf"\exp\Big(\sum_t {d.latex}\Big)"),
        }[self.mean]
        note = {
            "full": "",
            "local": "; its gradient is taken as sg[w_i] grad log pi_t",
            "line_21": "; its gradient is taken as sg[w_i]/T_i grad log pi_t",
        }[self.gradient]
        detached = () if self.gradient == "full" else (OWN_GRADIENT,)
        return Part(Line("w_i", "w_i"), (*gap, Line(f"w_i = {value.text}{note}", f"w_i = {value.latex}")), detached)


@dataclass(frozen=True)
class Prefix:
    """p_t = exp(mean of d over tokens 1..t). TEPO Table 3 Panel C and Table 5."""

    gradient: str = option(
        "local",
        "local: each token's own log-prob; full: autodiff, which weights token j by sum_{t>=j} p_t/t",
        source="a like-for-like ablation of the ratio alone",
        choices=("local", "full"),
    )
    needs = Needs()
    per_response = False

    def importance_ratio(self, d: Tensor, batch: TokenBatch) -> Tensor:
        if self.gradient == "full":
            return prefix_mean(d, batch.lengths, batch.sequence).exp()
        with torch.no_grad():
            value = prefix_mean(d, batch.lengths, batch.sequence).exp()
        return value * (1 + (d - d.detach()))

    @property
    def spread(self) -> str:
        return "u" if self.gradient == "full" else ""

    def slope(self, inner: str) -> str:
        return f"sum_(u>=t) {inner} p_u/u" if self.gradient == "full" else f"p_t {inner}"

    @property
    def explained(self) -> Part:
        local = self.gradient == "local"
        note = "; its gradient is taken as sg[p_t] grad log pi_t" if local else ""
        meaning = Line(
            f"p_t = exp(1/t sum_(s<=t) d_s){note}", r"p_{i,t} = \exp\Big(\tfrac{1}{t}\sum_{s\le t} d_{i,s}\Big)"
        )
        return Part(Line("p_t", "p_{i,t}"), (meaning,), (OWN_GRADIENT,) if local else ())


@dataclass(frozen=True)
class NoRatio:
    """No importance correction: REINFORCE, GPG."""

    needs = Needs()
    per_response = False
    spread = ""
    explained = Part()

    def importance_ratio(self, d: Tensor, batch: TokenBatch) -> None:
        return None

    def slope(self, inner: str) -> str:
        return inner


LEVELS: dict[str, type[Ratio]] = {"token": Token, "sequence": Sequence, "prefix": Prefix, "none": NoRatio}


class Carried(NamedTuple):
    """The factor of a token's log pi in the policy term, for the coefficient that a surrogate states.

    Where the gradient flows through a ratio of several tokens, it carries the terms of all of them.
    over: index of the terms summed over (`Ratio.spread`), empty where they are alike or the token's own alone.
    before: detached factors in front. amount: A with the factors inside the sum. varies: A does within a response.
    drops: the factors that may be 0: lambda, v."""

    ratio: Ratio
    over: str
    before: str
    amount: str
    varies: bool
    drops: tuple[str, ...]

    @property
    def symbol(self) -> str:
        """Symbol of the ratio in a term that is carried."""
        symbol = self.ratio.explained.formula.text
        return symbol.replace("_t", "_u") if self.over == "u" else symbol

    def through_ratio(self, inner: str) -> str:
        """The ratio's derivative times `inner`, what the terms of the sum are made of."""
        return self.ratio.slope(f"mean_s({inner})" if self.over == "s" else inner)

    def zero_where(self, *held: str) -> str:
        """Condition under which the policy term's part of the coefficient is 0: A is, or a clip holds: conditions
        `held` on A."""
        index = self.over
        a = "A" if self.amount == "A" else f"A_{index}"
        every = [re.sub(r"\bA\b", a, part) for part in held] + [f"{name}_{index} = 0" for name in self.drops if index]
        alike = not self.varies and not (self.drops and index)
        if (index == "s" and not alike) or (index == "u" and (every or not alike)):
            leaves = f"; one that has leaves the {'mean' if index == 's' else 'sum'}" if every else ""
            which = "s of the response" if index == "s" else "u >= t"
            return f"every token {which} has {', or '.join([f'{a} = 0', *every])}{leaves}"
        if not held:
            return "A = 0"
        return ", ".join(held) + (" (the whole response)" if self.ratio.per_response and alike else "")
