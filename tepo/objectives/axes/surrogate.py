"""Surrogate axis: the gain J of each token (to be maximised) from its ratio, advantage and log-prob.

A new surrogate is one class like those below and its name in `KINDS`."""

from dataclasses import dataclass
from typing import Protocol

import torch

from tepo.common.schema import option
from tepo.objectives.axes.importance_ratio import Carried, NoRatio, Ratio, Sequence
from tepo.objectives.axes.trust_region import DivergenceMask, GammaWeight, HardClip, OfAnyRatio
from tepo.objectives.axis import Line, Needing, Needs, Part
from tepo.objectives.segments import sequence_mean
from tepo.objectives.terms import Gain, Terms


class Surrogate(Needing, Protocol):
    """A gain of each token. only_ratio: the one ratio that it goes with; None: any but none. through_ratio: whether its
    gradient flows through the ratio."""

    @property
    def only_ratio(self) -> Ratio | None: ...
    @property
    def through_ratio(self) -> bool: ...

    def gain(self, terms: Terms) -> Gain:
        """The gain of each token."""

    def explained(self, carried: Carried) -> Part:
        """The bracket of the policy term, its coefficient without the factors in front, and where that is 0."""


@dataclass(frozen=True)
class PpoClip(OfAnyRatio):
    """min(w A, clip(w, 1-low, 1+high) A); with `dual`, at least dual*A where A < 0. PPO 1707.06347 Eq. 7; clip-higher:
    DAPO 3.1."""

    low: float = option(0.2, "lower clip distance", source="PPO 6.1", low=0)
    high: float = option(0.2, "upper clip distance", source="PPO 6.1", low=0)
    dual: float | None = option(
        None,
        "bound on the ratio where A < 0 (dual clip, 1912.09729)",
        source="off in the code base that TEPO's averages point to",
        low=1,
    )

    def gain(self, terms: Terms) -> Gain:
        ratio, advantages = terms.ratio, terms.advantages
        plain = ratio * advantages
        held = ratio.clamp(1 - self.low, 1 + self.high) * advantages
        value = torch.minimum(plain, held)
        clipped = held.detach() < plain.detach()
        if self.dual is None:
            return Gain(value, clipped)
        bound = self.dual * advantages
        lower = (advantages < 0) & (value.detach() < bound)
        return Gain(torch.where(lower, bound, value), clipped, lower)

    def explained(self, carried: Carried) -> Part:
        w, bounds = carried.ratio.explained.formula, f"{1 - self.low:g}, {1 + self.high:g}"
        formula = Line(
            f"min({w.text} A, clip({w.text}, {bounds}) A)",
            rf"\min\big({w.latex} A_{{i,t}},\ \mathrm{{clip}}({w.latex}, {bounds}) A_{{i,t}}\big)",
        )
        held = [f"A > 0 and {carried.symbol} > {1 + self.high:g}", f"A < 0 and {carried.symbol} < {1 - self.low:g}"]
        if self.dual is not None:
            formula = Line(
                f"({formula.text}, at least {self.dual:g} A where A < 0)",
                rf"\max\nolimits_{{A<0}}\big({formula.latex},\ {self.dual:g} A_{{i,t}}\big)",
            )
            held.append(f"A < 0 and {carried.symbol} > {self.dual:g}")
        return Part(formula, coefficient=carried.through_ratio(carried.amount), zero=carried.zero_where(*held))


@dataclass(frozen=True)
class PaperClip(OfAnyRatio):
    """min(w, clip(w, 1-low, 1+high)) A: TEPO Eq. 4 to the letter (reading A1). Bounds w from above whatever the sign of
    A."""

    low: float = option(0.2, "lower clip distance (never active)", source="TEPO 4.1", low=0)
    high: float = option(0.28, "upper clip distance", source="TEPO 4.1", low=0)

    def gain(self, terms: Terms) -> Gain:
        held = torch.minimum(terms.ratio, terms.ratio.clamp(1 - self.low, 1 + self.high))
        return Gain(held * terms.advantages, terms.ratio.detach() > 1 + self.high)

    def explained(self, carried: Carried) -> Part:
        w, bounds = carried.ratio.explained.formula, f"{1 - self.low:g}, {1 + self.high:g}"
        formula = Line(
            f"min({w.text}, clip({w.text}, {bounds})) A",
            rf"\min\big({w.latex},\ \mathrm{{clip}}({w.latex}, {bounds})\big) A_{{i,t}}",
        )
        zero = carried.zero_where(f"{carried.symbol} > {1 + self.high:g}")
        return Part(formula, coefficient=carried.through_ratio(carried.amount), zero=zero)


@dataclass(frozen=True)
class Unclipped(OfAnyRatio):
    """w A: no clip at all, as KL-Cov's code."""

    def gain(self, terms: Terms) -> Gain:
        return Gain(terms.ratio * terms.advantages)

    def explained(self, carried: Carried) -> Part:
        w = carried.ratio.explained.formula
        formula = Line(f"{w.text} A", rf"{w.latex} A_{{i,t}}")
        zero = f"{carried.zero_where()} (no clip)"
        return Part(formula, coefficient=carried.through_ratio(carried.amount), zero=zero)


@dataclass(frozen=True)
class LogProb:
    """log pi A: REINFORCE, GPG, RLOO. Takes no ratio."""

    needs = Needs()
    only_ratio = NoRatio()
    through_ratio = False

    def gain(self, terms: Terms) -> Gain:
        return Gain(terms.logprobs * terms.advantages)

    def explained(self, carried: Carried) -> Part:
        formula = Line("A log pi_t", r"A_{i,t} \log \pi_\theta(y_{i,t})")
        return Part(formula, coefficient="A", zero="A = 0")


@dataclass(frozen=True)
class Cispo:
    """sg[clip(w)] A log pi: a clipped weight, and a gradient for every token. MiniMax-M1 2506.13585 Eq. 4-5."""

    low: float | None = option(
        None, "lower clip distance; none: no lower bound", source="MiniMax-M1: 'set to a large value'", low=0
    )
    high: float = option(
        0.28,
        "upper clip distance (verl's convention; TRL's absolute cap 5.0 is 4.0 here)",
        source="the paper prints none: DAPO's clip-higher",
        low=0,
    )
    needs = Needs()
    only_ratio = None
    through_ratio = False

    def gain(self, terms: Terms) -> Gain:
        weight = terms.ratio.detach()
        held = weight.clamp(None if self.low is None else 1 - self.low, 1 + self.high)
        return Gain(held * terms.advantages * terms.logprobs, held != weight)

    def explained(self, carried: Carried) -> Part:
        w, bounds = carried.ratio.explained.formula, f"{0 if self.low is None else 1 - self.low:g}, {1 + self.high:g}"
        formula = Line(
            f"sg[clip({w.text}, {bounds})] A log pi_t",
            rf"\mathrm{{sg}}\big[\mathrm{{clip}}({w.latex}, {bounds})\big] A_{{i,t}} \log \pi_\theta(y_{{i,t}})",
        )
        return Part(
            formula,
            detached=("the clipped ratio",),
            coefficient=f"clip({w.text}, {bounds}) A",
            zero="A = 0; a clipped token keeps its weight",
        )


@dataclass(frozen=True)
class Sapo(OfAnyRatio):
    """A 4/tau sigmoid(tau (w - 1)): a soft gate in place of the clip. SAPO 2511.20347."""

    tau_positive: float = option(1.0, "temperature where A > 0", source="SAPO; verl", low=1e-6)
    tau_negative: float = option(1.05, "temperature where A <= 0", source="SAPO; verl", low=1e-6)

    def gain(self, terms: Terms) -> Gain:
        tau = torch.full_like(terms.ratio, self.tau_negative).masked_fill(terms.advantages > 0, self.tau_positive)
        return Gain(terms.advantages * torch.sigmoid(tau * (terms.ratio - 1)) * (4 / tau))

    def explained(self, carried: Carried) -> Part:
        w, positive, negative = carried.ratio.explained.formula, self.tau_positive, self.tau_negative
        mark = f"_{carried.over}" if carried.over else ""
        gate, tau = f"g{mark}", f"tau{mark}" if carried.amount != "A" else "tau"
        slope = f"4 g (1 - g) {carried.through_ratio(carried.amount)}"
        if mark:
            slope = carried.through_ratio(f"4 {gate} (1 - {gate}) {carried.amount}")
        latex = rf"A_{{i,t}} \tfrac{{4}}{{\tau}} \sigma\big(\tau ({w.latex} - 1)\big)"
        meaning = Line(
            f"tau = {positive:g} where A > 0, {negative:g} elsewhere",
            rf"\tau = {positive:g}\ (A > 0),\ {negative:g}\ (A \le 0)",
        )
        return Part(
            Line(f"A 4/tau sigmoid(tau ({w.text} - 1))", latex),
            (meaning,),
            coefficient=f"{slope}, {gate} = sigmoid({tau} ({carried.symbol} - 1))",
            zero=f"{carried.zero_where()}; fades as the ratio moves away from 1",
        )


@dataclass(frozen=True)
class GeometricClip:
    """A exp(mean of the token log-ratios, each clipped on the side where it helps A). GMPO 2507.20673."""

    low: float = option(0.4, "lower bound of a log-ratio", source="GMPO: the range (e^-0.4, e^0.4)", low=0)
    high: float = option(0.4, "upper bound of a log-ratio", source="GMPO: the range (e^-0.4, e^0.4)", low=0)
    needs = Needs()
    only_ratio = Sequence()
    through_ratio = True

    def gain(self, terms: Terms) -> Gain:
        d, advantages, batch = terms.d, terms.advantages, terms.batch
        held = torch.where(advantages > 0, d.clamp(max=self.high), d.clamp(min=-self.low))
        value = sequence_mean(held, batch.lengths, batch.sequence).exp() * advantages
        own = d.detach()
        outside = (own > self.high) | (own < -self.low)
        return Gain(value, held.detach() != own, counted=(outside & (advantages > 0), outside & (advantages < 0)))

    def explained(self, carried: Carried) -> Part:
        low, high, amount = self.low, self.high, carried.amount
        zeros = "".join(f", or {name}_s = 0" for name in carried.drops)
        rest = f"; or every token s of the response has A_s = 0{zeros}" if zeros else ""
        meaning = Line(
            f"d'_t = min(d_t, {high:g}) where A > 0, max(d_t, -{low:g}) elsewhere",
            rf"d'_{{i,t}} = \min(d_{{i,t}}, {high:g})\ (A > 0),\ \max(d_{{i,t}}, -{low:g})\ (A \le 0)",
        )
        return Part(
            Line("A exp(1/T_i sum_t d'_t)", r"A_{i,t} \exp\Big(\tfrac{1}{T_i}\sum_t d'_{i,t}\Big)"),
            (meaning,),
            coefficient=f"rho_i {f'mean_s({amount})' if carried.over else amount}, rho_i = exp(1/T_i sum_t d'_t)",
            zero=f"A > 0 and d_t > {high:g}, A <= 0 and d_t < -{low:g} (this token alone){rest}",
        )


KINDS: dict[str, type[Surrogate]] = {
    "ppo_clip": PpoClip,
    "paper_clip": PaperClip,
    "unclipped": Unclipped,
    "log_prob": LogProb,
    "cispo": Cispo,
    "sapo": Sapo,
    "geometric_clip": GeometricClip,
    "divergence_mask": DivergenceMask,
    "hard_clip": HardClip,
    "gamma_weight": GammaWeight,
}
