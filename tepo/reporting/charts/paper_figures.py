"""The curves of the papers' figures. Their data is not published, so nothing of theirs is drawn: a study says which
curves of our runs a figure shows.
"""

import re
from collections.abc import Sequence

import pandas as pd

from tepo.common.errors import UserError, unknown_name
from tepo.reporting.charts.curves import Panel

CURVES = {
    panel.name: panel
    for panel in (
        Panel("critic/score/mean", "reward", "Reward", "% right", 100),
        Panel("actor/entropy", "entropy", "Entropy", "nats per token"),
        Panel("actor/pg_clipfrac", "clip_ratio", "Clip ratio", "% of tokens", 100),
        Panel("actor/grad_norm", "gradient_norm", "Gradient norm, before clipping"),
        Panel("response_length/mean", "response_length", "Response length", "tokens"),
        Panel("timing_s/step", "step_time", "Time per training step", "seconds"),
    )
}
_BEST = re.compile(r"critic/score/best@(\d+)$")


def panels_of(title: str, names: Sequence[str], best: int | None, steps: pd.DataFrame) -> tuple[Panel, ...]:
    """Panels for these runs, as `curves.curve_frame` takes them. names: of CURVES. best: the best reward of k samples,
    the largest k of the runs (0) or a smaller one (1 and up), in place of them. Raises UserError for an unknown name
    and for runs that hold none of the metrics."""
    for name in names:
        if name not in CURVES:
            raise unknown_name("curve", name, CURVES, where=title)
    run_metrics = [str(name) for name in steps if steps[name].notna().any()]
    panels = tuple(CURVES[name] for name in names)
    if best is not None:  # a paper with groups of 32 shows k = 32 and 16; with groups of 8 it is 8 and 4
        sizes = sorted({int(match[1]) for name in run_metrics if (match := _BEST.match(name))}, reverse=True)
        if len(sizes) <= best:
            what = f"the runs hold no {'second ' if best else ''}metric critic/score/best@k"
            raise UserError(what, where="figure", fix="train them again with this version")
        size = sizes[best]
        panels = (Panel(f"critic/score/best@{size}", "best", f"Best of {size} responses", "% with a right one", 100),)
    if not any(panel.metric in run_metrics for panel in panels):
        metrics = ", ".join(panel.metric for panel in panels)
        raise UserError(f"no run holds {metrics}", where=title, fix="train the figure's runs first")
    return panels
