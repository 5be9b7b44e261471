import json
import random
from dataclasses import replace

import pytest

from tepo.common.errors import UserError
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.contamination import LENGTH, SIMILAR, normalise, overlaps
from tepo.problems.problem import Problem
from tepo.problems.training_sets import (
    benchmark_problems,
    dataset_benchmarks,
    listed_contamination,
    load_training_problems,
)

# Rows with a DAPO row above 0.8, counted by others with a normalisation of their own: all of theirs must be found.
COUNTED = {"aime24": 0, "aime25": 0, "minerva": 0, "amc": 18, "math500": 9, "olympiadbench": 29, "omni_math": 251}


def shingles(text):
    text = normalise(text).ljust(LENGTH)
    return {text[i : i + LENGTH] for i in range(len(text) - LENGTH + 1)}


def test_jaccard_is_that_of_the_sets_of_shingles():
    draw = random.Random(0)
    words = ["sum", "of", "the", "first", "prime", "integers", "less", "than", "2024", "circle"]
    tests = [Problem(f"t{i}", " ".join(draw.choices(words, k=30)), "1") for i in range(20)]
    training = [Problem(f"d{i}", problem.prompt.replace("prime", "odd", i % 3), "1") for i, problem in enumerate(tests)]
    found = {(overlap.problem, overlap.training): overlap.jaccard for overlap in overlaps(tests, training, 0.1)}
    expected = {}
    for test in tests:
        for train in training:
            left, right = shingles(test.prompt), shingles(train.prompt)
            if len(left & right) / len(left | right) > 0.1:
                expected[test.id, train.id] = len(left & right) / len(left | right)
    assert found == pytest.approx(expected)
    assert {key for key, value in found.items() if value == 1} >= {(f"t{i}", f"d{i}") for i in range(0, 20, 3)}


def test_decoration_does_not_hide_a_copy_and_chinese_is_not_compared():
    plain = Problem("a", r"Find the sum of \left(\dfrac{1}{2}\right) and $x$, where x is a positive integer.", "1")
    dressed = Problem(
        "b",
        r"find the \textbf{SUM} of (\frac12) and \text{x} where $x$ is a positive integer [asy]draw(a--b);[/asy]",
        "1",
    )
    chinese = replace(plain, id="c", prompt="设 " + plain.prompt)
    assert [(overlap.training, overlap.jaccard) for overlap in overlaps([plain], [dressed, chinese])] == [("b", 1.0)]


@pytest.mark.parametrize(("problems", "training"), [(0, 1), (1, 0), (0, 0)])
def test_empty_sets_overlap_with_nothing(problems, training):
    problem = Problem("a", "a statement that is long enough", "1")
    assert overlaps([problem] * problems, [problem] * training) == []


def test_unknown_sets_and_own_files(tmp_path):
    with pytest.raises(UserError, match="did you mean 'dapo_math'"):
        load_training_problems("dapo-math")
    path = tmp_path / "own.jsonl"
    path.write_text('{"id": "a", "problem": "p", "answer": 3}\n')
    assert load_training_problems(str(path)) == [Problem("a", "p", "3")]


def test_dapo_math_and_what_is_left_out(real_sets):
    training = load_training_problems("dapo_math")
    assert len(training) == 17398
    owner = {problem.id: name for name in dataset_benchmarks() for problem in load_benchmark(name).load_problems()}
    found = overlaps(benchmark_problems(), training, SIMILAR)
    same = [overlap for overlap in found if overlap.jaccard > 0.8]
    counts = {name: len({overlap.problem for overlap in same if owner[overlap.problem] == name}) for name in COUNTED}
    assert all(COUNTED[name] <= counts[name] <= COUNTED[name] + 3 for name in COUNTED)
    listed = listed_contamination("dapo_math")
    assert listed == {overlap.training for overlap in same}
    assert [problem.id for problem in load_training_problems("dapo_math", exclude_contaminated=True)] == [
        problem.id for problem in training if problem.id not in listed
    ]


def test_an_own_file_is_compared_with_the_benchmarks(real_sets, tmp_path):
    copied = load_benchmark("aime24").load_problems()[0]
    rows = ("copy", copied.prompt), ("own", "How many primes lie between 10 and 20?")
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps({"id": name, "problem": text, "answer": "4"}) + "\n" for name, text in rows))
    assert [problem.id for problem in load_training_problems(str(path), exclude_contaminated=True)] == ["own"]
