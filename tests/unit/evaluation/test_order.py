import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from tepo.evaluation.results import conclude
from tepo.evaluation.statistics.samples import AVERAGE, MEAN, summarize
from tepo.store.samples_file import table_of
from tests.support.answers import compare
from tests.support.samplers import ones


def study(random: np.random.Generator, seeds: int, benchmarks: dict[str, tuple[int, int]]) -> pd.DataFrame:
    """Two rows. benchmarks: name -> (problems, samples)."""
    lines = [
        (row, seed, name, f"{name}-{problem}", sample, int(random.random() < chance), 1)
        for row, shift in (("one", 0.0), ("two", 0.2))
        for seed in range(seeds)
        for name, (problems, samples) in benchmarks.items()
        for problem, chance in enumerate(np.linspace(0.1, 0.7, problems) + shift)
        for sample in range(samples)
    ]
    return pd.DataFrame(lines, columns=["row", "seed", "benchmark", "problem", "sample", "right", "samples"])


def by_name(table: pd.DataFrame) -> pd.DataFrame:
    return table.sort_values(["row", "benchmark"]).reset_index(drop=True)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(10, 14), st.integers(1, 3))
def test_any_order_of_the_lines_gives_the_same_bits(draw: int, seeds: int, problems: int, samples: int) -> None:
    random = np.random.default_rng(draw)
    frame = study(random, seeds, {"c": (10, 1), "b": (problems, samples), "a": (11, 2)})
    shuffled = frame.iloc[random.permutation(len(frame))]
    one, two = (by_name(summarize(given, draws=50)) for given in (frame, shuffled))
    pd.testing.assert_frame_equal(one, two, check_exact=True)
    on = ("a", "b", "c", AVERAGE, MEAN)
    assert repr(compare(frame, "one", on)) == repr(compare(shuffled, "one", on))


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(10, 14), st.integers(1, 5))
def test_a_finished_evaluation_and_a_table_have_the_same_interval(draw: int, problems: int, samples: int) -> None:
    """Ten problems or more: `ones-10` sorts before `ones-2`, and the file holds it after."""
    random = np.random.default_rng(draw)
    frame = study(random, 1, {"ones": (problems, samples)}).query("row == 'one'")
    line = summarize(frame.assign(seed=3)).set_index("benchmark").loc["ones"]
    for order in (np.arange(len(frame)), random.permutation(len(frame))):
        rows = frame.iloc[order].to_dict("records")
        filled = [
            {"extracted": str(row["sample"]), "correct": bool(row["right"]), "finish": "stop", "tokens": 7, **row}
            for row in rows
        ]
        result = conclude("ones", ones(problems, samples), table_of(filled), "grader", {})
        assert (result.accuracy, result.interval) == (line["mean"], (line["low"], line["high"]))
