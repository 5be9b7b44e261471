"""The papers' figures, each as a function of the metrics of some runs (or of a result table).

Their data is not published, so nothing of theirs is drawn: the captions say what they claim to show.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from tepo.common.errors import UserError, unknown_name
from tepo.reporting.figures.benchmarks_figure import benchmark_figure
from tepo.reporting.figures.curves import Panel, RunCurves, positions, series, training_figure
from tepo.reporting.tables.table import Block

_V1 = "TEPO, earlier version (arXiv 2510.09369)"
_TEPO = "TEPO (arXiv 2604.12736)"
_GTPO = "GTPO (arXiv 2508.04349)"

_REWARD = Panel("critic/score/mean", "Reward", "% right", 100)
_ENTROPY = Panel("actor/entropy", "Entropy", "nats per token")
_CLIP = Panel("actor/pg_clipfrac", "Clip ratio", "% of tokens", 100)
_NORM = Panel("actor/grad_norm", "Gradient norm, before clipping")
_LENGTH = Panel("response_length/mean", "Response length", "tokens")
_TIME = Panel("timing_s/step", "Time per training step", "seconds")

_BEST = re.compile(r"critic/score/best@(\d+)$")


@dataclass(frozen=True)
class PaperFigure:
    """claim: what the paper reads off its figure. panels: curves over training steps, chosen by looking at the runs;
    None: drawn from a result table."""

    paper: str
    number: str
    claim: str
    panels: Callable[[Sequence[RunCurves]], Sequence[Panel]] | None

    @property
    def title(self) -> str:
        return f"{self.paper}, Figure {self.number}"


def _fixed(*panels: Panel) -> Callable[[Sequence[RunCurves]], Sequence[Panel]]:
    return lambda runs: panels


def best_panel(runs: Sequence[RunCurves], order: int) -> Panel:
    """Mean over prompts of the best reward among k samples (`critic/score/best@k`): order 0 is the largest k of the
    runs, 1 the next.

    The paper has groups of 32 and shows k = 32 and 16; with groups of 8 it is 8 and 4. Raises UserError without such
    metrics.
    """
    sizes = sorted(
        {int(match[1]) for run in runs for row in run.rows for name in row if (match := _BEST.match(name))},
        reverse=True,
    )
    if len(sizes) <= order:
        raise UserError(
            f"the runs hold no {'' if order == 0 else 'second '}metric critic/score/best@k",
            where="figure",
            fix="train them again with this version",
        )
    return Panel(f"critic/score/best@{sizes[order]}", f"Best of {sizes[order]} responses", "% with a right one", 100)


FIGURES = {
    "2a": PaperFigure(_TEPO, "2a", "TEPO clips less than GRPO/DAPO.", _fixed(_CLIP)),
    "2b": PaperFigure(_TEPO, "2b", "TEPO takes less time per step: 338 s against 357 s.", _fixed(_TIME)),
    "3a": PaperFigure(_TEPO, "3a", "TEPO's reward is higher and steadier.", _fixed(_REWARD)),
    "3b": PaperFigure(_TEPO, "3b", "TEPO's gradient norm is higher throughout.", _fixed(_NORM)),
    "v1-1": PaperFigure(_V1, "1", "TEPO is best or near best on most benchmarks.", None),
    "v1-4": PaperFigure(
        _V1, "4", "TEPO is more stable than with maximum entropy or a KL term.", _fixed(_REWARD, _ENTROPY, _NORM)
    ),
    "v1-5": PaperFigure(
        _V1,
        "5",
        "TEPO uses sparse rewards better than REINFORCE and prefix importance sampling.",
        _fixed(_REWARD, _ENTROPY),
    ),
    "gtpo-1": PaperFigure(_GTPO, "1", "GTPO and GRPO-S raise the entropy again.", _fixed(_ENTROPY)),
    "gtpo-2": PaperFigure(_GTPO, "2", "With the entropy the responses become longer.", _fixed(_LENGTH)),
    "gtpo-3": PaperFigure(
        _GTPO, "3", "GTPO and GRPO-S raise the reward of the best of 32 responses.", lambda runs: [best_panel(runs, 0)]
    ),
    "gtpo-4": PaperFigure(
        _GTPO, "4", "GTPO and GRPO-S raise the reward of the best of 16 responses.", lambda runs: [best_panel(runs, 1)]
    ),
}


def paper_figure(name: str, runs: Sequence[RunCurves], measured: Block | None = None, against: str = "steps") -> Figure:
    """Draw one of FIGURES.

    runs: the rows of the figure with all their seeds. measured: the result block, for figures of benchmarks.
    against: what curves are drawn against, one of AXES.

    Raises UserError for an unknown figure and for runs that hold none of its metrics.
    """
    if name not in FIGURES:
        raise unknown_name("figure", name, FIGURES)
    spec = FIGURES[name]
    if spec.panels is None:
        if measured is None:
            raise UserError(
                f"figure {name} is drawn from a result table", where=spec.title, fix="evaluate its runs first"
            )
        return benchmark_figure(measured)
    panels = spec.panels(runs)
    if not any(series(run, panel.metric)[0].size for run in runs for panel in panels):
        raise UserError(
            f"no run holds {', '.join(panel.metric for panel in panels)}",
            where=spec.title,
            fix="train the figure's runs first",
        )
    if not any(positions(run.rows, against) for run in runs):
        raise UserError(
            f"no run holds what {against!r} counts", where=spec.title, fix="train the figure's runs with this version"
        )
    return training_figure(runs, panels, against=against)
