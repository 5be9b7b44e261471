"""`curve:` of a study: how its rows' scores over compute are fitted and compared.

curve: {over: samples, margin: 2}
"""

from dataclasses import dataclass
from typing import Literal

from tepo.common.errors import UserError
from tepo.common.schema import REQUIRED, Exclusive, option
from tepo.config.run_config import RunConfig

FEWEST = 12  # of which eight or so lie in the first two thirds and four in the last


@dataclass(frozen=True)
class CurveSettings:
    """over, start, after: what is fitted to. margin, factor, share: as `scaling_comparison.CurveRule` has them."""

    margin: float = option(REQUIRED, "points: ceilings that are closer are equivalent", low=Exclusive(0))
    over: Literal["samples", "steps", "cpu"] = option("samples", "compute is responses drawn, steps, or CPU seconds")
    factor: float = option(1.25, "computes within this factor are equivalent", low=Exclusive(1))
    share: float = option(
        0.5, "of the way to the ceiling, where computes are compared", low=Exclusive(0), high=Exclusive(1)
    )
    start: Literal["measured", "fitted"] = option("measured", "R0 is the untrained policy's score, or fitted too")
    after: float = option(0.0, "share of a run's compute at its start that is not fitted", low=0, high=Exclusive(0.5))


def check_validations(curve: CurveSettings, config: RunConfig, row: str) -> None:
    """Raises UserError where a run would have too few scores for a fit: before it is trained."""
    every, steps = config.train.validate_every, config.train.steps
    scores = 0 if every == 0 else round((1 - curve.after) * -(-steps // every))
    if scores < FEWEST:
        what = f"`curve:` needs {FEWEST} validations of a run or more, and {row} has {scores}"
        fix = f"train.validate_every={max(1, int((1 - curve.after) * steps) // FEWEST)} in `overrides:`, or more steps"
        raise UserError(what, where=f"train.steps={steps}, train.validate_every={every}", fix=fix)
