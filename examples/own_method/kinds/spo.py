"""SPO (2401.16025): a parabola in place of the clip. Its gradient turns back where the ratio leaves the width."""

from dataclasses import dataclass

from tepo.objectives import Carried, Gain, Line, Needs, Part, Terms, option


@dataclass(frozen=True)
class Spo:
    width: float = option(0.2, "where the slope turns", source="SPO 2401.16025", low=1e-6)
    needs = Needs()
    only_ratio = None
    through_ratio = True

    def gain(self, terms: Terms) -> Gain:
        bend = terms.advantages.abs() * (terms.ratio - 1) ** 2 / (2 * self.width)
        return Gain(terms.ratio * terms.advantages - bend)

    def explained(self, carried: Carried) -> Part:
        w, a, s = carried.ratio.explained.formula, carried.amount, carried.symbol
        text = f"{w.text} A - |A| ({w.text} - 1)^2 / {2 * self.width:g}"
        latex = rf"{w.latex} A_{{i,t}} - |A_{{i,t}}| ({w.latex} - 1)^2 / {2 * self.width:g}"
        slope = carried.through_ratio(f"({a} - |{a}| ({s} - 1) / {self.width:g})")
        zero = carried.zero_where(f"A > 0 and {s} = {1 + self.width:g}", f"A < 0 and {s} = {1 - self.width:g}")
        return Part(Line(text, latex), coefficient=slope, zero=zero)


KINDS = {"surrogate": {"spo": Spo}}
