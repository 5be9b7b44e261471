"""Comparisons of all rows with a baseline, as tables make them."""

from collections.abc import Sequence

import pandas as pd

from tepo.evaluation.statistics.answer import Answer, answers
from tepo.evaluation.statistics.samples import AVERAGE, pair_rows


def compare(frame: pd.DataFrame, baseline: str, on: Sequence[str] = (AVERAGE,)) -> list[Answer]:
    """Every other row against `baseline`, Holm-corrected over everything returned."""
    return answers([pair.question() for pair in pair_rows(frame, baseline, on)])
