"""Surrogates that take tokens, or responses, out of the gradient by how far the policy has moved from the old one."""

import math
from dataclasses import dataclass

import torch

from tepo.common.schema import option
from tepo.objectives.axes.importance_ratio import Carried, Ratio, Token
from tepo.objectives.axis import Line, Needs, Part
from tepo.objectives.terms import Gain, Terms, finite_logprobs

_REST_FLOOR = 1e-8  # of 1 - pi, so that two sure tokens differ by 0: SkyRL and verl add as much


class OfAnyRatio:
    """Members of a surrogate that goes with any ratio, through which its gradient flows."""

    needs = Needs()
    only_ratio: Ratio | None = None
    through_ratio = True


@dataclass(frozen=True)
class DivergenceMask:
    """M r A: no gradient where the token's probability has moved too far from the old policy's.

    DPPO, Qi et al. 2602.04879 Eq. 12-14, with the divergence of two Bernoulli variables, the token and the rest of the
    vocabulary. `sides: both` is prime-rl's IPO. SkyRL computes the same. verl takes sg[min(r, 20)] M A log pi, whose
    gradient is the same below 20. The paper's old policy is the sampler's, as ours without a correction."""

    divergence: str = option(
        "tv",
        "tv: |pi - pi_old|; kl: KL(pi_old || pi) of the token against the rest",
        source="DPPO Eq. 13 and 14",
        choices=("tv", "kl"),
    )
    low: float = option(0.2, "largest divergence downwards", source="DPPO, as SkyRL: 0.2 for tv, 0.05 for kl", low=0)
    high: float = option(0.2, "largest divergence upwards", source="DPPO, as SkyRL: 0.2 for tv, 0.05 for kl", low=0)
    sides: str = option(
        "away",
        "away: upwards where A > 0, downwards where A < 0; both: whatever the sign of A",
        source="DPPO Eq. 12; both: IPO of prime-rl",
        choices=("away", "both"),
    )
    needs = Needs()
    only_ratio = Token()
    through_ratio = True

    def gain(self, terms: Terms) -> Gain:
        advantages = terms.advantages
        current, old = terms.logprobs.detach(), finite_logprobs(terms.batch.old_logprobs)
        moved = current.exp() - old.exp()
        if self.divergence == "tv":
            up, down = moved > self.high, moved < -self.low
        else:
            rest, old_rest = (-torch.expm1(logprobs) for logprobs in (current, old))
            gap = old_rest.clamp(min=_REST_FLOOR).log() - rest.clamp(min=_REST_FLOOR).log()
            divergence = old.exp() * (old - current) + old_rest * gap
            up, down = (moved > 0) & (divergence > self.high), (moved < 0) & (divergence > self.low)
        outside = up | down if self.sides == "both" else (up & (advantages > 0)) | (down & (advantages < 0))
        return Gain(terms.ratio * advantages * ~outside, outside)  # times 0, which keeps a NaN

    def explained(self, carried: Carried) -> Part:
        ratio = carried.ratio.explained
        held = [f"dp > {self.high:g}", f"dp < -{self.low:g}"]
        if self.divergence == "kl":
            held = [f"dp > 0 and kl > {self.high:g}", f"dp < 0 and kl > {self.low:g}"]
        if self.sides == "away":
            held = [f"A > 0 and {held[0]}", f"A < 0 and {held[1]}"]
        words = {"dp": r"\Delta p", "kl": r"\mathrm{kl}", "and": r"\wedge"}
        latex = [" ".join(words.get(word, word) for word in part.split()) for part in held]
        mask = Line(
            f"M = 0 where {' or '.join(f'({part})' for part in held)}, else 1; dp = pi_t - pi_old,t",
            rf"M_{{i,t}} = \mathbb{{1}}\big[\neg({latex[0]}) \wedge \neg({latex[1]})\big],"
            r"\quad \Delta p = \pi_\theta - \pi_{\mathrm{old}}",
        )
        bernoulli = Line(
            "kl = pi_old log(pi_old/pi) + (1 - pi_old) log((1 - pi_old)/(1 - pi))",
            r"\mathrm{kl} = \pi_{\mathrm{old}} \log\tfrac{\pi_{\mathrm{old}}}{\pi_\theta}"
            r" + (1 - \pi_{\mathrm{old}}) \log\tfrac{1 - \pi_{\mathrm{old}}}{1 - \pi_\theta}",
        )
        return Part(
            Line(f"M {ratio.formula.text} A", rf"M_{{i,t}} {ratio.formula.latex} A_{{i,t}}"),
            (*ratio.definitions, mask, *((bernoulli,) if self.divergence == "kl" else ())),
            detached=("M",),
            coefficient=carried.through_ratio(carried.amount),
            zero=carried.zero_where(*held),
        )


@dataclass(frozen=True)
class HardClip(OfAnyRatio):
    """clip(w, 1-low, 1+high) A: no gradient outside the bounds, whatever the sign of A. Kimi K2.5 2602.02276,
    'regardless of the sign of the advantages'; its gradient is that of GLM-5's double-sided mask 2602.15763 (SkyRL's
    rollout_is)."""

    low: float = option(0.2, "lower clip distance", source="PPO 6.1; Kimi K2.5 prints none", low=0)
    high: float = option(0.28, "upper clip distance", source="DAPO 3.1; Kimi K2.5 prints none", low=0)
    of: str = option(
        "ratio",
        "whose distance: ratio, from 1 - low to 1 + high; log_ratio, log w from -low to high",
        source="the Clip of K2.5's Eq. 1; log_ratio: the sentence below it, 'strictly on the log-ratio'",
        choices=("ratio", "log_ratio"),
    )

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest ratio with a gradient."""
        return (1 - self.low, 1 + self.high) if self.of == "ratio" else (math.exp(-self.low), math.exp(self.high))

    def gain(self, terms: Terms) -> Gain:
        ratio = terms.ratio
        held = ratio.clamp(*self.bounds)
        return Gain(held * terms.advantages, held.detach() != ratio.detach())

    def explained(self, carried: Carried) -> Part:
        w = carried.ratio.explained.formula
        low, high = (f"{bound:g}" for bound in self.bounds)
        latex = f"{low}, {high}"
        if self.of == "log_ratio":
            low, high, latex = f"exp(-{self.low:g})", f"exp({self.high:g})", f"e^{{-{self.low:g}}}, e^{{{self.high:g}}}"
        zero = carried.zero_where(f"{carried.symbol} > {high}", f"{carried.symbol} < {low}")
        return Part(
            Line(f"clip({w.text}, {low}, {high}) A", rf"\mathrm{{clip}}({w.latex}, {latex}) A_{{i,t}}"),
            coefficient=carried.through_ratio(carried.amount),
            zero=zero,
        )


@dataclass(frozen=True)
class GammaWeight:
    """sg[w^k exp(c (1 - w))] A log pi: a weight that is 1 at w = 1 and fades on both sides. VESPO 2602.10693v3 Eq. 20.
    TRL computes the same, with w at least 1e-8 instead of exp(-20)."""

    power_positive: float = option(2.0, "k where A >= 0", source="VESPO 4.1 (c1); TRL", low=0)
    decay_positive: float = option(3.0, "c where A >= 0", source="VESPO 4.1 (c2); TRL", low=1e-4)
    power_negative: float = option(3.0, "k where A < 0", source="VESPO 4.1 (c1); TRL", low=0)
    decay_negative: float = option(2.0, "c where A < 0", source="VESPO 4.1 (c2); TRL", low=1e-4)
    needs = Needs()
    only_ratio = None
    through_ratio = False

    def gain(self, terms: Terms) -> Gain:
        ratio, below = terms.ratio.detach(), terms.advantages < 0
        power = torch.full_like(ratio, self.power_positive).masked_fill(below, self.power_negative)
        decay = torch.full_like(ratio, self.decay_positive).masked_fill(below, self.decay_negative)
        return Gain((power * ratio.log() + decay * (1 - ratio)).exp() * terms.advantages * terms.logprobs)

    def explained(self, carried: Carried) -> Part:
        w = carried.ratio.explained.formula
        positive, negative = (self.power_positive, self.decay_positive), (self.power_negative, self.decay_negative)
        meaning = Line(
            f"phi = {w.text}^k exp(c (1 - {w.text})); k = {positive[0]:g}, c = {positive[1]:g} where A >= 0; "
            f"k = {negative[0]:g}, c = {negative[1]:g} elsewhere",
            rf"\phi = {w.latex}^k e^{{c (1 - {w.latex})}},\quad "
            rf"(k, c) = ({positive[0]:g}, {positive[1]:g})\ (A \ge 0),\ ({negative[0]:g}, {negative[1]:g})\ (A < 0)",
        )
        return Part(
            Line("sg[phi] A log pi_t", r"\mathrm{sg}[\phi] A_{i,t} \log \pi_\theta(y_{i,t})"),
            (meaning,),
            detached=("phi",),
            coefficient="phi A",
            zero="A = 0; fades as the ratio moves away from 1",
        )
