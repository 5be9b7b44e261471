import numpy as np
import pandas as pd
import pytest

from tepo.evaluation.results import conclude
from tepo.evaluation.statistics.samples import AVERAGE, MEAN, summarize
from tepo.store.samples_file import table_of
from tests.support.answers import compare, samples
from tests.support.samplers import ones


@pytest.mark.parametrize(("seeds", "problems", "per_problem"), [(1, 10, 1), (2, 12, 3), (3, 13, 2)])
def test_any_order_of_the_lines_gives_the_same_bits(seeds: int, problems: int, per_problem: int) -> None:
    chances, benchmarks = {"one": 0.4, "two": 0.6}, ("c", "b", "a")
    frame = samples(chances, seeds=seeds, problems=problems, per_problem=per_problem, benchmarks=benchmarks)
    shuffled = frame.sample(frac=1, random_state=seeds)
    one, two = (
        summarize(given, draws=50).sort_values(["row", "benchmark"], ignore_index=True) for given in (frame, shuffled)
    )
    pd.testing.assert_frame_equal(one, two, check_exact=True)
    on = ("a", "b", "c", AVERAGE, MEAN)
    assert repr(compare(frame, "one", on)) == repr(compare(shuffled, "one", on))


@pytest.mark.parametrize("per_problem", [1, 5])
def test_a_finished_evaluation_and_a_table_have_the_same_interval(per_problem: int) -> None:
    """Ten problems or more: `ones-10` sorts before `ones-2`, and the file holds it after."""
    frame = samples({"one": 0.4}, seeds=1, problems=12, per_problem=per_problem, benchmarks=("ones",))
    line = summarize(frame).set_index("benchmark").loc["ones"]
    filled = frame.assign(extracted=frame["sample"].astype(str), correct=frame["right"] > 0, finish="stop", tokens=7)
    for rows in (filled, filled.sample(frac=1, random_state=np.random.RandomState(1))):
        result = conclude("ones", ones(12, per_problem), table_of(rows.to_dict("records")), "grader", {})
        assert (result.accuracy, result.interval) == (line["mean"], (line["low"], line["high"]))
