import json
import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.common.paths import PROTOCOLS, find, names
from tepo.config.compose import compose
from tepo.problems import hashes, training_sets
from tepo.problems.benchmarks import load_benchmark, parse_benchmark, parse_protocol
from tepo.problems.contamination import LENGTH, SIMILAR, normalise, overlaps
from tepo.problems.grader import Grader
from tepo.problems.hashes import pick_pinned, pinned_rows, row_hashes, set_hash
from tepo.problems.problem import Problem
from tepo.problems.sources import Dataset, Fields, load_dataset_problems, read_hub, read_problem_file
from tepo.problems.splits import HASH_RANGES
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

SETS = {  # problems, samples and tokens
    "aime24": (30, 32, 8192), "aime25": (30, 32, 8192), "amc": (83, 32, 8192), "math500": (500, 1, 8192),
    "omni_math": (2821, 1, 8192), "olympiadbench": (675, 1, 8192), "minerva": (272, 1, 8192), "gsm8k": (1319, 1, 2048),
}  # fmt: skip
PROCEDURAL = "procedural: {tasks: {add3: 1}, seed: 1}"
GOOD = f"title: T\n{PROCEDURAL}\ncount: 4\nsamples: 2\ntemperature: 1.0\nmax_new_tokens: 8\n"


@pytest.fixture
def real_sets(monkeypatch: pytest.MonkeyPatch) -> Path:
    """TEPO_DATA if the sets lie there, or the folder of problem sets beside the checkout: they are not ours to commit,
    and tests on them run where a copy is."""
    places = [Path(os.environ.get("TEPO_DATA", "")), Path(__file__).parents[4] / "shared" / "benchmarks"]
    for place in places:
        if (place / "aime24.jsonl").is_file():
            monkeypatch.setenv("TEPO_DATA", str(place))
            return place
    pytest.skip("no copy of the problem sets: set TEPO_DATA to a folder of NAME.jsonl")


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A pinned set of four problems: rows, and a function that writes them as NAME.jsonl in some order."""
    problems = [Problem(f"toy-{i}", f"What is {i} + {i}?", str(2 * i)) for i in range(4)]
    monkeypatch.setattr(hashes, "FOLDER", tmp_path / "pinned")
    (tmp_path / "pinned").mkdir()
    (tmp_path / "pinned" / "toy.txt").write_text("\n".join(row_hashes(problems)))

    def write(folder, rows, **columns):
        folder.mkdir(exist_ok=True)
        statement, gold = columns.get("problem", "problem"), columns.get("answer", "answer")
        lines = [{"id": problem.id, statement: problem.prompt, gold: problem.answer} for problem in rows]
        (folder / "toy.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    return problems, write


@pytest.mark.parametrize("name", sorted(SETS))
def test_the_protocol(name):
    benchmark, (count, samples, tokens) = load_benchmark(name), SETS[name]
    assert (benchmark.count, benchmark.samples, benchmark.max_new_tokens) == (count, samples, tokens)
    assert (benchmark.temperature, benchmark.prompt) == (0.6 if samples == 32 else 0.0, "boxed")
    assert (len(benchmark.dataset.revision or ""), len(hashes.pinned_rows(name))) == (40, count)
    assert benchmark.provenance
    assert benchmark.licence


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("temperature: 1.0", "temperature: 0"), "greedy"),
        (GOOD + "dataset: {path: x}\nhash: y\n", "exactly one of"),
        (GOOD + "hash: abc\n", "pins other problems"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match="(?s)" + message) as error:
        parse_benchmark(path).load_problems()
    assert "mine" in str(error.value)


PUBLISHED = {  # samples, temperature, min_p, top_k, top_p, tokens, thinking
    "math500:qwen3_thinking": (1, 0.6, 0.0, 20, 0.95, 32768, True),
    "aime25:qwen3_thinking": (64, 0.6, 0.0, 20, 0.95, 38912, True),
    "math500:qwen3_non_thinking": (1, 0.7, 0.0, 20, 0.8, 32768, False),
    "aime24:qwen3_non_thinking": (64, 0.7, 0.0, 20, 0.8, 38912, False),
    "amc:deepseek_r1": (64, 0.6, 0.0, 0, 0.95, 32768, None),
    "aime24:qwen25_math": (1, 0.0, 0.0, 0, 1.0, 2048, None),
    "gsm8k:qwen25_math_maj8": (8, 0.7, 0.0, 0, 0.8, 2048, None),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_protocol_stands_in_place_of_the_files(name):
    one, plain = load_benchmark(name), load_benchmark(name.partition(":")[0])
    drawn = one.samples, one.temperature, one.min_p, one.top_k, one.top_p, one.max_new_tokens, one.thinking
    assert drawn == PUBLISHED[name]
    assert (one.name, one.hash, one.prompt) == (name, plain.hash, plain.prompt)
    assert one.fingerprint != plain.fingerprint
    assert one.protocol_note.startswith(f"{one.title} ({name}): ")


def test_every_protocol_is_valid_on_every_benchmark_and_has_a_source():
    assert {name.partition(":")[2] for name in PUBLISHED} == set(names(PROTOCOLS))
    assert len({load_benchmark(name).fingerprint for name in names("evals")}) == len(names("evals"))
    for name in names(PROTOCOLS):
        assert all(source.startswith("https://") for source in parse_protocol(find(PROTOCOLS, name)).sources)
        for benchmark in names("evals"):
            load_benchmark(f"{benchmark}:{name}")


def test_what_no_protocol_changes_keeps_the_identity_that_is_on_record():
    """Of results before there were protocols, min_p, top_k, top_p and thinking."""
    recorded = {"add3": "96346a98a537", "aime24": "47262cd39bb5", "math500:tokens2048": "ce1c46187d12"}
    assert {name: load_benchmark(name).fingerprint for name in recorded} == recorded
    assert all(load_benchmark(name).protocol_note == "" for name in recorded)


def test_numbers_in_a_name():
    plain = load_benchmark("aime24")
    one = load_benchmark("aime24:top_p0.95:top_k20:min_p0.05:samples4:temperature1")
    assert one == replace(
        plain, samples=4, temperature=1.0, top_p=0.95, top_k=20, min_p=0.05, name=one.name, title=one.title, named=True
    )
    assert one.title == "AIME24, top_p 0.95, top_k 20, min_p 0.05, 4 samples, temperature 1"
    both = load_benchmark("omni_math:deepseek_r1:2811:tokens4096")
    assert (both.top_p, both.max_new_tokens, len(both.without) > 0) == (0.95, 4096, True)
    ways = ("top_p0.9", "top_k9", "min_p0.9", "temperature0.9", "samples9", "tokens9", "qwen3_thinking", "deepseek_r1")
    assert len({load_benchmark(f"aime24:{way}").fingerprint for way in ways} | {plain.fingerprint}) == 9


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("minerv", "did you mean 'minerva'"),
        ("omni_math:281", "unknown variant of omni_math '281'.*did you mean '2811'"),
        ("aime24:top_p1.5", "top_p must be at most 1, not 1.5\nin: aime24:top_p1.5"),
        ("math500:top_p0.9", "greedy .* whatever top_p leaves out"),
        ("aime24:tokens9:deepseek_r1", "one protocol, which comes first.*try: aime24:deepseek_r1:…"),
    ],
)
def test_variants_that_cannot_be(name, message):
    with pytest.raises(UserError, match="(?s)" + message):
        load_benchmark(name)


def test_a_fingerprint_changes_with_what_changes_responses_only():
    benchmark = load_benchmark("amc")
    kept = {"title": "x"}, {"defects": ()}, {"grader": replace(benchmark.grader, timeout=1.0)}
    changed = (
        *({"samples": 8}, {"temperature": 1.0}, {"prompt": "raw"}),
        *({"max_new_tokens": 9}, {"hash": "x"}, {"without": ("amc-0",)}),
    )
    same, other = ([replace(benchmark, **change) for change in changes] for changes in (kept, changed))
    assert {part.fingerprint for part in same} == {benchmark.fingerprint}
    assert len({part.fingerprint for part in [benchmark, *other]}) == 7


def test_a_fingerprint_changes_when_the_split_holds_other_prompts(monkeypatch):
    """Else a result on the problems of an earlier version would stand beside those of this one."""
    before = load_benchmark("add3").fingerprint
    monkeypatch.setitem(HASH_RANGES, "test", (0.0, 0.2))
    assert load_benchmark("add3").fingerprint != before


def test_tepo_data_goes_in_front_of_the_hub_and_a_changed_row_is_named(toy, tmp_path, monkeypatch):
    problems, write = toy
    monkeypatch.setenv("TEPO_DATA", str(write(tmp_path / "data", problems)))
    assert load_dataset_problems(Dataset("no/such-set"), "toy", 4, set_hash(problems)) == problems
    write(tmp_path / "data", [*problems[:2], replace(problems[2], answer="5"), problems[3]])
    with pytest.raises(UserError, match="the content is not the pinned one; rows that differ: toy-2; its content is"):
        load_dataset_problems(Dataset("no/such-set"), "toy", 4, set_hash(problems))


def test_lines_end_at_newlines_only(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"id": "a", "problem": "one\u2028two", "answer": "1"}, ensure_ascii=False) + "\n")
    assert read_problem_file(path)[0].prompt == "one\u2028two"


def test_pinned_rows_are_found_in_any_order_and_among_others(toy):
    problems, _ = toy
    extra = Problem("x", "What else?", "7")
    order = [problems[3], extra, problems[1], problems[0], problems[2]]
    shuffled = [replace(problem, id=f"h{i}") for i, problem in enumerate(order)]
    assert pick_pinned(shuffled, row_hashes(problems), "toy") == problems
    assert pick_pinned(shuffled[1:], row_hashes(problems), "toy") is None


def test_the_hub_through_a_local_data_set(toy, tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.delenv("TEPO_DATA", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    problems, write = toy
    folder = write(tmp_path / "hub", problems[::-1], problem="question", answer="final")
    source = Dataset(str(folder), split="train", fields=Fields(problem="question", answer="final"))
    assert load_dataset_problems(source, "toy", 4, set_hash(problems)) == problems
    pinned_file = Dataset(
        "json", "0" * 40, split="train", data_files=(str(folder / "{revision}.jsonl"),), fields=source.fields
    )
    (folder / "toy.jsonl").rename(folder / ("0" * 40 + ".jsonl"))
    assert load_dataset_problems(pinned_file, "toy", 4, set_hash(problems)) == problems
    with pytest.raises(UserError, match=r"could not load toy: .*\n(?s:.*)TEPO_DATA"):
        load_dataset_problems(replace(source, path=str(tmp_path / "nothing")), "toy", 4, "x")


def test_hub_answers_in_their_shapes(tmp_path):
    pytest.importorskip("datasets")

    def read(fields, *rows):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return read_hub(Dataset("json", split="train", data_files=(str(path),), fields=fields), "a")

    boxes = r"so \boxed{7} holds", r"first \boxed{1}, then \boxed{\frac{1}{2}}."
    read_as = read(Fields(boxed=True), *({"problem": " p ", "answer": text} for text in boxes))
    assert read_as == [Problem("a-0", "p", "7"), Problem("a-1", "p", r"\frac{1}{2}")]
    listed = [{"problem": "p", "answer": [value], "s": ["x", "y"]} for value in (142.0, 0.5)]
    read_as = read(Fields(family="s"), *listed)
    assert read_as == [Problem("a-0", "p", "142", "x; y"), Problem("a-1", "p", "0.5", "x; y")]
    marked = {"question": "p", "answer": "2*700=1400\n#### 1,400"}
    assert read(Fields(problem="question", after="####"), marked) == [Problem("a-0", "p", "1400")]


@pytest.mark.parametrize("name", sorted(SETS))
def test_the_real_sets_are_the_pinned_ones(real_sets, name):
    problems = load_benchmark(name).load_problems()
    assert [problem.id for problem in problems] == [f"{name}-{index}" for index in range(SETS[name][0])]


def test_the_papers_omni_math(real_sets):
    whole, part = load_benchmark("omni_math").load_problems(), load_benchmark("omni_math:2811").load_problems()
    times = Counter(problem.prompt for problem in whole)
    assert [problem for problem in whole if times[problem.prompt] == 1] == part
    assert len(part) == 2811


@pytest.mark.parametrize("name", names("evals"))
def test_what_ships_is_pinned_and_generated_problems_are_those_that_are_pinned(name: str) -> None:
    benchmark = load_benchmark(name)
    assert benchmark.hash
    if benchmark.procedural:
        assert set_hash(benchmark.load_problems()) == benchmark.content_hash
        fresh = load_benchmark(f"{name}:problems77")
        assert fresh.content_hash == set_hash(fresh.load_problems()) != benchmark.content_hash


COUNTS = {"dapo_math": 17_398, "dapo_math_4k": 4096, "gsm8k_math": 14_973, "gsm8k_train": 7473, "math_train": 7500}
GROUPS = {"gsm8k": "gsm8k_train", "math": "math_train", "gsm8k_math": "gsm8k_math", "dapo_4k": "dapo_math_4k"}


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
def test_the_real_training_sets_are_the_pinned_ones(real_sets: Path, name: str) -> None:
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
