import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.problems import hashes, training_sets
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.contamination import LENGTH, SIMILAR, normalise, overlaps
from tepo.problems.grader import Grader
from tepo.problems.hashes import pinned_rows, row_hashes, set_hash
from tepo.problems.problem import Problem
from tepo.problems.sources import Dataset, Fields, load_dataset_problems, read_hub
from tepo.problems.training_sets import (
    benchmark_problems,
    dataset_benchmarks,
    draw,
    listed_contamination,
    load_training_problems,
    load_training_set,
    split_off,
    training_fingerprint,
    training_names,
)

COUNTS = {"dapo_math": 17_398, "dapo_math_4k": 4096, "gsm8k_math": 14_973, "gsm8k_train": 7473, "math_train": 7500}
GROUPS = {"gsm8k": "gsm8k_train", "math": "math_train", "gsm8k_math": "gsm8k_math", "dapo_4k": "dapo_math_4k"}
WORDS = [
    {"question": "Ann has 3 boxes of 4 pens. How many pens?", "answer": "3*4 = <<3*4=12>>12 pens.\n#### 12"},
    {"question": "A farm sells 2 cows for $700 each. What does it get?", "answer": "2*700=1400\n#### 1,400"},
]


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of declarations in place of ours, and of their rows."""
    monkeypatch.setattr(training_sets, "SETS", tmp_path)
    monkeypatch.setattr(training_sets, "PINNED", tmp_path)
    monkeypatch.setenv("TEPO_DATA", str(tmp_path))
    return tmp_path


def declare(folder: Path, name: str, problems: list[Problem], source: str, more: str = "") -> None:
    (folder / f"{name}.yaml").write_text(
        f"{source}\ncount: {len(problems)}\nhash: {set_hash(problems)}\nprovenance: here\nlicence: MIT\n{more}"
    )


def declare_rows(folder: Path, name: str, problems: list[Problem], contaminated: str = "") -> None:
    declare(folder, name, problems, "dataset: {path: nobody/here}")
    rows = [{"id": one.id, "problem": one.prompt, "answer": one.answer} for one in problems]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / f"{name}.contaminated.txt").write_text(contaminated)


def asked(name: str, count: int) -> list[Problem]:
    return [Problem(f"{name}-{number}", f"{name} asks {number}?", str(number)) for number in range(count)]


def test_every_declared_set_is_pinned() -> None:
    assert training_names() == sorted(COUNTS)
    for name, count in COUNTS.items():
        declared = load_training_set(name)
        assert declared.count == count
        assert declared.licence
        if declared.dataset:
            assert len(declared.dataset.revision or "") == 40
            assert len(pinned_rows(name)) == count
    assert len(listed_contamination("math_train")) == 33
    assert listed_contamination("gsm8k_math") == listed_contamination("math_train")
    assert listed_contamination("gsm8k_train") == set()


@pytest.mark.parametrize(("group", "problems"), GROUPS.items())
def test_a_data_group_is_complete_and_downloads_nothing_to_be_planned(
    group: str, problems: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("TEPO_DATA", raising=False)
    data = compose([f"data={group}"]).data
    assert (data.name, data.kind, data.problems, data.prompt) == (group, "problems", problems, "boxed")
    assert data.held_out == 256
    names = [name.partition(":")[0] for name in data.benchmarks]
    assert names == ["gsm8k", "math500", "amc", "minerva", "olympiadbench"]
    assert {load_benchmark(name).max_new_tokens for name in data.benchmarks} == {2048}
    assert len(training_fingerprint(problems, exclude_contaminated=data.exclude_contaminated)) == 64


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_the_real_sets_are_the_pinned_ones(real_sets: Path, name: str) -> None:
    parts = load_training_set(name).of or (name,)
    files = [getattr(load_training_set(part).dataset, "file", None) or part for part in parts]
    if missing := [file for file in files if not (real_sets / f"{file}.jsonl").is_file()]:
        pytest.skip(f"no {missing[0]}.jsonl there")
    problems = load_training_problems(name)
    assert len(problems) == len({problem.id for problem in problems}) == COUNTS[name]
    assert len(load_training_problems(name, exclude_contaminated=True)) == COUNTS[name] - len(
        listed_contamination(name) & {problem.id for problem in problems}
    )


@pytest.mark.slow
def test_gsm8k_holds_no_test_problem_and_every_gold_can_be_read(real_sets: Path) -> None:
    problems = load_training_problems("gsm8k_train")
    assert overlaps(benchmark_problems(), problems) == []
    with Grader() as grader:
        assert grader.check_golds([problem.answer for problem in problems]) == []


def test_a_set_made_of_others_has_their_problems_in_order(sets: Path) -> None:
    one, other = asked("one", 3), asked("other", 2)
    declare_rows(sets, "one", one, "one-1\n")
    declare_rows(sets, "other", other)
    declare(sets, "both", one + other, "of: [one, other]")
    assert load_training_problems("both") == one + other
    assert [problem.id for problem in load_training_problems("both", exclude_contaminated=True)] == [
        *("one-0", "one-2", "other-0", "other-1")
    ]
    declare(sets, "both", other + one, "of: [one, other]")
    with pytest.raises(UserError, match="both: the content is not the pinned one"):
        load_training_problems("both")


def test_what_is_drawn_depends_on_no_order_white_space_or_other_problem() -> None:
    problems = asked("one", 60)
    drawn = draw(problems, 10, set())
    assert len(drawn) == 10
    assert drawn == [problem for problem in problems if problem in drawn]
    assert {one.id for one in draw(problems[::-1], 10, set())} == {one.id for one in drawn}
    spaced = [Problem(one.id, f" {one.prompt}\n", one.answer) for one in problems]
    assert [one.id for one in draw(spaced, 10, set())] == [one.id for one in drawn]
    rest = draw([one for one in problems if one != drawn[3]], 10, set())
    assert len({one.id for one in rest} & {one.id for one in drawn}) == 9
    held_out = split_off(problems, 10, "here")[1]  # by another hash
    assert {one.id for one in held_out} != {one.id for one in drawn}


def test_what_is_never_drawn() -> None:
    twice = [Problem("a", "How many?", "1"), Problem("b", "How  many?", "2")]
    chinese, held = Problem("c", "求 x", "3"), Problem("d", "In a benchmark.", "4")
    free = Problem("e", "What is x?", "5")
    assert draw([*twice, chinese, held, free], 5, {"d"}) == [free]


def test_the_number_behind_a_mark_and_the_copy_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's rows and a file of TEPO_DATA, whose ids begin with its own name, are the same problems."""
    pytest.importorskip("datasets")
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in WORDS))
    fields = Fields(problem="question", after="####")
    files = (str(tmp_path / "train.jsonl"),)
    source = Dataset("json", split="train", data_files=files, fields=fields, file="words_test")
    monkeypatch.delenv("TEPO_DATA", raising=False)
    hub = read_hub(source, "words")
    assert [problem.answer for problem in hub] == ["12", "1400"]
    monkeypatch.setattr(hashes, "FOLDER", tmp_path)
    (tmp_path / "words.txt").write_text("\n".join(row_hashes(hub)))
    rows = [{"id": f"words_test-{n}", "problem": one.prompt, "answer": one.answer} for n, one in enumerate(hub)]
    (tmp_path / "words_test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv("TEPO_DATA", str(tmp_path))
    for name, first in (("words", "words-0"), ("own", "words_test-0")):
        assert load_dataset_problems(source, name, 2, set_hash(hub))[0].id == first


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
