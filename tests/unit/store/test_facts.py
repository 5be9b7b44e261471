import pytest

from tepo.store.evaluation_result import RightAnswers
from tepo.store.facts import Known, curves_of, facts_from, scores_of


def test_a_run_that_one_study_tunes_with_and_another_measures_is_done_for_each_by_itself() -> None:
    runs, scores, curves = [], [], []
    for tuning in (True, False):
        runs.append({"run": "a", "tuning": tuning, "done": tuning, **vars(Known("store", finished=True))})
    facts = facts_from(runs, scores, curves)
    assert [facts.of(("a", tuning)).done for tuning in (True, False)] == [True, False]
    assert facts.of("a").finished
    with pytest.raises(KeyError):
        facts.of("b")


def test_scores_and_curves_are_of_their_run_and_benchmark() -> None:
    runs, scores, curves = [], [], []
    for run, right in (("a", (4, 0)), ("b", (1, 2))):
        runs.append({"run": run, "tuning": False, **vars(Known("record"))})
        scores.append(scores_of(run, "add3", RightAnswers(("p1", "p2"), right, 4), f"by {run}", "{}", 3))
    curves.append(curves_of("b", [{"training/global_step": 1, "x": 0.5}, {"training/global_step": 2}]))
    facts = facts_from(runs, scores, curves)
    assert facts.right("b", "add3") == RightAnswers(("p1", "p2"), (1, 2), 4)
    assert (facts.measurement("a", "add3").grader, facts.measurement("a", "add3").timeouts) == ("by a", 3)
    assert (facts.has("a", "add3"), facts.has("a", "gcd"), facts.right("a", "gcd")) == (True, False, None)
    assert facts.metrics("b") == [{"training/global_step": 1, "x": 0.5}, {"training/global_step": 2}]
    assert facts.metrics("a") == []
