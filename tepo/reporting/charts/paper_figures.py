"""The papers' figures, each as panels of training curves.

Their data is not published, so nothing of theirs is drawn: the captions say what they claim to show.
"""

import re
from dataclasses import dataclass

import pandas as pd

from tepo.common.errors import UserError
from tepo.reporting.charts.curves import Panel

_V1 = "TEPO, earlier version (arXiv 2510.09369)"
_TEPO = "TEPO (arXiv 2604.12736)"
_GTPO = "GTPO (arXiv 2508.04349)"

_REWARD = Panel("critic/score/mean", "reward", "Reward", "% right", 100)
_ENTROPY = Panel("actor/entropy", "entropy", "Entropy", "nats per token")
_CLIP = Panel("actor/pg_clipfrac", "clip_ratio", "Clip ratio", "% of tokens", 100)
_NORM = Panel("actor/grad_norm", "gradient_norm", "Gradient norm, before clipping")
_LENGTH = Panel("response_length/mean", "response_length", "Response length", "tokens")
_TIME = Panel("timing_s/step", "step_time", "Time per training step", "seconds")

_BEST = re.compile(r"critic/score/best@(\d+)$")


@dataclass(frozen=True)
class PaperFigure:
    """claim: what the paper reads off its figure. panels: curves over training steps.
    best: of the best reward among k samples, the largest k of the runs (0) or the next (1), in place of panels."""

    paper: str
    number: str
    claim: str
    panels: tuple[Panel, ...] = ()
    best: int | None = None

    @property
    def title(self) -> str:
        return f"{self.paper}, Figure {self.number}"

    def panels_of(self, steps: pd.DataFrame) -> tuple[Panel, ...]:
        """Panels for these runs, as `curves.curve_frame` takes them. Raises UserError for runs that hold none of their
        metrics."""
        run_metrics = [str(name) for name in steps if steps[name].notna().any()]
        panels = self.panels
        if self.best is not None:  # the paper has groups of 32 and shows k = 32 and 16; with groups of 8 it is 8 and 4
            sizes = sorted({int(match[1]) for name in run_metrics if (match := _BEST.match(name))}, reverse=True)
            if len(sizes) <= self.best:
                what = f"the runs hold no {'second ' if self.best else ''}metric critic/score/best@k"
                raise UserError(what, where="figure", fix="train them again with this version")
            best = sizes[self.best]
            panels = (
                Panel(f"critic/score/best@{best}", "best", f"Best of {best} responses", "% with a right one", 100),
            )
        if not any(panel.metric in run_metrics for panel in panels):
            metrics = ", ".join(panel.metric for panel in panels)
            raise UserError(f"no run holds {metrics}", where=self.title, fix="train the figure's runs first")
        return panels


FIGURES = {
    "2a": PaperFigure(_TEPO, "2a", "TEPO clips less than GRPO/DAPO.", (_CLIP,)),
    "2b": PaperFigure(_TEPO, "2b", "TEPO takes less time per step: 338 s against 357 s.", (_TIME,)),
    "3a": PaperFigure(_TEPO, "3a", "TEPO's reward is higher and steadier.", (_REWARD,)),
    "3b": PaperFigure(_TEPO, "3b", "TEPO's gradient norm is higher throughout.", (_NORM,)),
    "v1-4": PaperFigure(
        _V1, "4", "TEPO is more stable than with maximum entropy or a KL term.", (_REWARD, _ENTROPY, _NORM)
    ),
    "v1-5": PaperFigure(
        _V1, "5", "TEPO uses sparse rewards better than REINFORCE and prefix importance sampling.", (_REWARD, _ENTROPY)
    ),
    "gtpo-1": PaperFigure(_GTPO, "1", "GTPO and GRPO-S raise the entropy again.", (_ENTROPY,)),
    "gtpo-2": PaperFigure(_GTPO, "2", "With the entropy the responses become longer.", (_LENGTH,)),
    "gtpo-3": PaperFigure(_GTPO, "3", "GTPO and GRPO-S raise the reward of the best of 32 responses.", best=0),
    "gtpo-4": PaperFigure(_GTPO, "4", "GTPO and GRPO-S raise the reward of the best of 16 responses.", best=1),
}
