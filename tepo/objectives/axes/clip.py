"""The log-ratio that a surrogate's clip bounds, and the distances that its spread is compared with."""

from dataclasses import dataclass
from typing import Literal

from tepo.objectives.axes.importance_ratio import Ratio, Sequence, Token
from tepo.objectives.axes.surrogate import Cispo, GeometricClip, PaperClip, PpoClip, Surrogate
from tepo.objectives.axes.trust_region import HardClip


@dataclass(frozen=True)
class Clip:
    """of: whose log-ratio is bounded, each token's or the geometric mean of a response. bounds: the clip distances that
    act, by side (`low`, `high`)."""

    of: Literal["token", "sequence"]
    bounds: dict[str, float]


def clip_of(surrogate: Surrogate, ratio: Ratio) -> Clip | None:
    """None where there is no clip, or where it bounds another log-ratio (an arithmetic mean, a product, a prefix)."""
    match surrogate:
        case PpoClip() | GeometricClip() | HardClip():
            bounds = {"low": surrogate.low, "high": surrogate.high}
        case Cispo():
            bounds = {"high": surrogate.high} | ({} if surrogate.low is None else {"low": surrogate.low})
        case PaperClip():  # its lower bound never acts
            bounds = {"high": surrogate.high}
        case _:
            return None
    match ratio:
        case Token():
            return Clip("token", bounds)
        case Sequence(mean="geometric"):
            return Clip("token" if isinstance(surrogate, GeometricClip) else "sequence", bounds)
        case _:
            return None
