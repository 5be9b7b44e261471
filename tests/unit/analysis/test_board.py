from pathlib import Path

import numpy as np
import pytest

from tepo.analysis.board import FEWEST, caught, predicted, ranking, submission
from tepo.common.errors import UserError
from tests.support.runs import write

STUDY = """title: Mine
rows:
  - {label: Mine, objective: ../objective/mine.yaml}
scales:
  laptop: {models: [laptop], seeds: [0, 1, 2]}
"""
METHOD = 'like: grpo_dapo\nconstants:\n  high: {value: 0.3, source: "a choice"}\n'


def test_equal_methods_share_a_rank_in_all_but_5_percent_of_boards() -> None:
    draws = np.random.default_rng(1)
    boards = [{str(row): draws.normal(70, 1, FEWEST + 5 * (row % 2)) for row in range(12)} for _ in range(400)]
    wrong = sum(any(ranking(runs)[0].values()) for runs in boards)
    assert wrong / len(boards) < 0.08


def test_a_rank_counts_the_methods_that_are_shown_above() -> None:
    runs = {"good": [70.0, 71.0, 70.5], "same": [70.2, 70.9, 70.1], "bad": [50.0, 50.8, 49.6]}
    above, _ = ranking({**runs, "wild": [40.0, 75.0, 60.0]})
    assert set(above.values()) == {0}, "the seeds of the last say how far seeds may differ"
    above, halves = ranking(runs)
    assert above == {"good": 0, "same": 0, "bad": 2}
    assert 0 < halves["good"] < 2


def test_the_check_has_the_false_alarms_and_the_power_that_it_states() -> None:
    outside = 0
    for runs in np.random.default_rng(2).normal(68, 1, (2000, 10)):
        low, high = predicted(runs[:8].tolist(), 2)
        outside += any(not low <= value <= high for value in runs[8:])
    assert outside / 2000 == pytest.approx(0.05, abs=0.02)
    assert caught(8, 2, 0, 1.0) == pytest.approx(0.05, abs=0.01)
    assert caught(8, 2, 1, 1.0) < caught(8, 2, 2, 1.0) < caught(8, 2, 5, 1.0)
    assert caught(8, 2, 5, 1.0) > 0.95


def folder(tmp_path: Path, study: str = STUDY, method: str = METHOD) -> Path:
    write(tmp_path / "objective/mine.yaml", method)
    return write(tmp_path / "experiments/mine.yaml", study)


@pytest.mark.parametrize(
    ("study", "message"),
    [
        (STUDY.replace("mine.yaml}", "mine.yaml, laptop: [train.steps=72]}"), "nothing else: train.steps"),
        (STUDY.replace("mine.yaml}", "mine.yaml, overrides: [objective.functions=mine]}"), "nothing else"),
        (STUDY + "vary: {train.learning_rate: [1e-4, 2e-4]}\n", "one protocol"),
        (STUDY.replace("../objective/mine.yaml", "../../elsewhere.yaml"), "lies outside of"),
    ],
)
def test_a_method_in_its_folder_is_taken_and_more_is_refused(study: str, message: str, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere.yaml", METHOD)
    assert [row.label for row in submission(folder(tmp_path / "theirs")).rows] == ["Mine"]
    with pytest.raises(UserError, match=message):
        submission(folder(tmp_path / "theirs", study))


def test_python_is_refused_and_not_executed(tmp_path: Path) -> None:
    trace = tmp_path / "executed"
    write(tmp_path / "objective/mine.py", f"open({str(trace)!r}, 'w')\n")
    path = folder(tmp_path, method=f"{METHOD}functions: {tmp_path}/objective/mine.py\n")
    with pytest.raises(UserError, match="functions in Python, which are not executed"):
        submission(path)
    assert not trace.exists()
