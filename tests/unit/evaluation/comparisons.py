"""Comparisons of all rows with a baseline, as tables make them."""

from collections.abc import Sequence

import pandas as pd

from tepo.evaluation.statistics.comparison import AVERAGE, Difference, corrected, pair_rows


def compare(frame: pd.DataFrame, baseline: str, on: Sequence[str] = (AVERAGE,)) -> list[Difference]:
    """Every other row against `baseline`, Holm-corrected over everything returned."""
    return corrected([pair.difference() for pair in pair_rows(frame, baseline, on)])
