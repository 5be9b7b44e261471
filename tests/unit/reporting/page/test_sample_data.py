"""Benchmark samples for the page: each run's answers to a problem together, within a budget."""

import random

from tepo.reporting.page.sample_data import RunSamples, pack_samples
from tepo.store.stored_responses import Answer, ProblemAnswers
from tests.unit.reporting.pages import unpacked


def answer(text: str, right: bool) -> Answer:
    return Answer(text, text, right, "exact", 1, True)


def runs(problems: int) -> list[RunSamples]:
    draw = random.Random(7)
    return [
        RunSamples(
            f"run-{number}",
            f"row {number}",
            {
                name: [
                    ProblemAnswers(f"{name}-{index}", f"{index}=", "1", (answer(f"{draw.getrandbits(400):x}", True),))
                    for index in range(problems)
                ]
                for name in ("add3", "gcd")
            },
        )
        for number in range(3)
    ]


def test_all_of_it_where_it_fits() -> None:
    packed = pack_samples(runs(10))
    assert (packed.shown, packed.total, packed.runs, packed.left_out) == (20, 20, 3, 0)
    assert [entry[1] for entry in unpacked(packed.text)["problems"]][8:12] == ["add3-8", "add3-9", "gcd-0", "gcd-1"]


def test_the_first_problems_of_each_benchmark_where_it_does_not() -> None:
    given = runs(100)
    packed = pack_samples(given, budget=15_000)
    assert len(packed.text) <= 15_000
    assert 0 < packed.shown < packed.total == 200
    entries = unpacked(packed.text)["problems"]
    half = packed.shown // 2
    assert [entry[1] for entry in entries] == [f"{name}-{at}" for name in ("add3", "gcd") for at in range(half)]
    assert all(len(picked) == 3 and all(picked) for *_, picked in entries), "a problem has the answers of every run"
    assert pack_samples(given, budget=15_000) == packed


def test_equal_answers_are_kept_once() -> None:
    right, wrong = answer("3", True), answer("4", False)
    first = ProblemAnswers("a-0", "1+2=", "3", (right, wrong, right))
    other = ProblemAnswers("a-0", "1+2=", "3", (wrong,))
    packed = pack_samples([RunSamples("x", "X", {"a": [first]}), RunSamples("y", "Y", {"a": [other], "b": [other]})])
    (entry, alone) = unpacked(packed.text)["problems"]
    assert entry[4:] == [[list(right), list(wrong)], [[[0, 2], [1, 1]], [[1, 1]]]]
    assert alone[5] == [None, [[0, 1]]]


def test_nothing_was_measured() -> None:
    assert pack_samples([]).shown == 0
    assert pack_samples([RunSamples("x", "X", {})]).left_out == 1
