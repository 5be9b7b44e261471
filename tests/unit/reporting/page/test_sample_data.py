import random

import pytest

from tepo.reporting.page.page_data import RunSamples, pack_samples
from tepo.store.samples_file import GradedResponse, ProblemAnswers
from tests.unit.reporting.pages import samples, unpacked


@pytest.mark.parametrize("share", [1.0, 0.999, 0.2])
def test_the_first_problems_of_each_benchmark_with_the_answers_of_every_run(share: float) -> None:
    draw = random.Random(7)

    def problem(name: str) -> ProblemAnswers:
        return ProblemAnswers(name, "1=", "1", (GradedResponse(f"{draw.getrandbits(400):x}", "1", True, "", 1, True),))

    given = [
        RunSamples(run, run, {name: [problem(f"{name}-{at}") for at in range(100)] for name in ("add3", "gcd")})
        for run in ("a", "b", "c")
    ]
    budget = int(share * len(pack_samples(given)["text"]))
    packed = pack_samples(given, budget)
    assert (packed["total"], packed["runs"], packed["left_out"]) == (200, 3, 0)
    assert packed["shown"] == 200 if share == 1 else 0 < packed["shown"] < 200
    assert len(packed["text"]) <= budget
    entries, half = unpacked(packed["text"])["problems"], packed["shown"] // 2
    assert [entry[1] for entry in entries] == [f"{name}-{at}" for name in ("add3", "gcd") for at in range(half)]
    assert all(len(picked) == 3 and all(picked) for *_, picked in entries)
    assert pack_samples(given, budget) == packed


def test_equal_answers_are_kept_once_and_runs_without_any_are_left_out() -> None:
    packed = pack_samples(samples())
    assert (packed["runs"], packed["left_out"], packed["shown"]) == (2, 1, 4)
    benchmark, problem, prompt, gold, answers, picked = unpacked(packed["text"])["problems"][0]
    assert (benchmark, problem, prompt, gold) == ("add3", "add3-0", "1+2=", "3")
    right = ["3", "3", True, "", 1, True]
    assert answers == [right, *([text, text, False, "different", 1, True] for text in "49")]
    assert picked == [[[0, 2]], [[1, 1], [2, 1]]]
    only = [RunSamples(one.id, one.label, dict(list(one.benchmarks.items())[at:])) for at, one in enumerate(samples())]
    assert unpacked(pack_samples(only[:2])["text"])["problems"][0][5] == [[[0, 2]], None]
    assert pack_samples([])["shown"] == 0
