"""Single runs of a study's rows beside their means, as blocks of a table: the probability of improvement over the
baseline, and how many scores lie above round accuracies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tepo.common.text import with_setting
from tepo.evaluation.statistics.run_profiles import Improvement, performance_profile, probability_of_improvement
from tepo.reporting.tables.build_table import RowSpec
from tepo.reporting.tables.table import MISSING, Block, Cell, Column, Kind, TableRow

NOTE = (
    "Runs: P(> …) = chance in percent that a run of the row has a higher accuracy on a benchmark than a run of the "
    "baseline, ties counting half; 50 where neither is ahead. > 50% = percent of the scores, one a run and benchmark, "
    "that are above it. In brackets 95% intervals, a bootstrap over runs; they have no width where no runs overlap. "
    "This describes; it decides nothing."
)
_ABOVE = (0.25, 0.5, 0.75)  # accuracies; the figure has all


@dataclass(frozen=True)
class RunGroup:
    """Rows of one model and setting with two runs or more, and their scores [runs, benchmarks] in shares. baseline: of
    them; None where it is not among them."""

    title: str
    rows: tuple[RowSpec, ...]
    scores: Mapping[str, np.ndarray]  # by key of the row
    baseline: RowSpec | None

    def improvements(self) -> dict[str, Improvement]:
        """Probability that a run is above one of the baseline, by key of each other row."""
        if self.baseline is None:
            return {}
        base = self.scores[self.baseline.key]
        others = (row.key for row in self.rows if row is not self.baseline)
        return {key: probability_of_improvement(self.scores[key], base) for key in others}


def run_groups(rows: Sequence[RowSpec], scores: Mapping[str, np.ndarray], baseline: str | None) -> list[RunGroup]:
    """The groups with two such rows or more. scores: by key of the row. baseline: its label."""
    together: dict[str, list[RowSpec]] = {}
    for row in rows:
        if len(scores[row.key]) > 1:
            together.setdefault(with_setting(row.model, row.setting), []).append(row)
    return [
        RunGroup(title, tuple(group), scores, next((row for row in group if row.label == baseline), None))
        for title, group in together.items()
        if len(group) > 1
    ]


def profile_blocks(groups: Sequence[RunGroup]) -> tuple[Block, ...]:
    """A block a group."""
    blocks = []
    for group in groups:
        improvements = group.improvements()
        against = [] if group.baseline is None else [f"P(> {group.baseline.label})"]
        titles = ("Runs", *against, *(f"> {share:.0%}" for share in _ABOVE))
        rows = []
        for row in group.rows:
            scores, one = group.scores[row.key], improvements.get(row.key)
            profile = performance_profile(scores, np.array(_ABOVE))
            shares = zip(profile.share, profile.low, profile.high, strict=True)
            cells = [
                Cell(text=str(len(scores))),
                *(MISSING if one is None else _cell(one.value, one.low, one.high) for _ in against),
                *(_cell(*share) for share in shares),
            ]
            rows.append(TableRow(row.key, row.label, tuple(cells), row.method, row.section, row.look))
        columns = tuple(Column(title, title, Kind.TEXT) for title in titles)
        blocks.append(Block(", ".join(filter(None, ("Runs", group.title))), columns, tuple(rows)))
    return tuple(blocks)


def _cell(value: float, low: float, high: float) -> Cell:
    """Percent with both ends: near 0 and 100 the interval is not symmetric."""
    return Cell(text=f"{100 * value:.0f} [{100 * low:.0f}, {100 * high:.0f}]")
