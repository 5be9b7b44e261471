import pytest

from tepo.store.facts import Known, facts_from


def test_a_run_that_one_study_tunes_with_and_another_measures_is_done_for_each_by_itself() -> None:
    runs, scores, curves = [], [], []
    for tuning in (True, False):
        runs.append({"run": "a", "tuning": tuning, "done": tuning, **vars(Known("store", finished=True))})
    facts = facts_from(runs, scores, curves)
    assert [facts.of("a", tuning=tuning).done for tuning in (True, False)] == [True, False]
    assert facts.of("a").finished
    with pytest.raises(KeyError):
        facts.of("b")
