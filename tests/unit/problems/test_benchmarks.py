import json
from dataclasses import replace

import pytest

from tepo.common.errors import UserError
from tepo.common.paths import names
from tepo.problems import hashes
from tepo.problems.benchmarks import load_benchmark, parse_benchmark
from tepo.problems.hashes import pick_pinned, row_hashes, set_hash
from tepo.problems.problem import Problem
from tepo.problems.sources import Dataset, Fields, load_dataset_problems, read_problem_file
from tepo.problems.splits import HASH_RANGES

SETS = {  # problems, samples and tokens
    "aime24": (30, 32, 8192), "aime25": (30, 32, 8192), "amc": (83, 32, 8192), "math500": (500, 1, 8192),
    "omni_math": (2821, 1, 8192), "olympiadbench": (675, 1, 8192), "minerva": (272, 1, 8192), "gsm8k": (1319, 1, 2048),
}  # fmt: skip
PROCEDURAL = "procedural: {tasks: {add3: 1}, seed: 1}"
GOOD = f"title: T\n{PROCEDURAL}\ncount: 4\nsamples: 2\ntemperature: 1.0\nmax_new_tokens: 8\n"


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


def test_every_shipped_benchmark_is_valid():
    assert set(SETS) < set(names("evals"))
    assert len({load_benchmark(name).fingerprint for name in names("evals")}) == len(names("evals"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("add3: 1", "add3: x"), "procedural.tasks.add3 must be a number"),
        (GOOD.replace("seed: 1", "seed: 1, split: validaton"), "did you mean 'validation'"),
        (GOOD.replace("temperature: 1.0", "temperature: 0"), "greedy"),
        (GOOD.replace("temperature: 1.0", "temperature: -1"), "temperature must be at least 0, not -1"),
        (GOOD + "grader: {timeot: 1}\n", "did you mean 'grader.timeout'"),
        (GOOD + "dataset: {path: x}\nhash: y\n", "exactly one of"),
        (GOOD.replace(PROCEDURAL, "dataset: {path: x.jsonl, fields: {answer: a}}"), "`fields` is for sets of the hub"),
        (GOOD + "name: x\n", "'name' is not allowed"),
        (GOOD + "tolerances: {add3-1: 0}\n", "tolerances.add3-1 must be positive, not 0"),
    ],
)
def test_broken_files_name_file_and_key(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match="(?s)" + message) as error:
        parse_benchmark(path)
    assert "mine.yaml" in str(error.value)


def test_a_users_folder_goes_in_front(tmp_path, monkeypatch):
    (tmp_path / "evals").mkdir()
    (tmp_path / "evals" / "mine.yaml").write_text(GOOD)
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    assert [problem.family for problem in load_benchmark("mine").load_problems()] == ["add3"] * 4


def test_a_limit_of_the_response_makes_another_benchmark_with_the_same_problems():
    plain, short = load_benchmark("math500"), load_benchmark("math500:tokens3000")
    assert (short.name, short.max_new_tokens, short.title) == ("math500:tokens3000", 3000, "MATH-500, 3,000 tokens")
    assert short.hash == plain.hash
    assert short.fingerprint != plain.fingerprint
    for name in ("math500:tokens0", "math500:tokens"):
        with pytest.raises(UserError, match="no subsets"):
            load_benchmark(name)


def test_unknown_names_and_subsets():
    with pytest.raises(UserError, match="did you mean 'minerva'"):
        load_benchmark("minerv")
    with pytest.raises(UserError, match="unknown subset of omni_math '281'"):
        load_benchmark("omni_math:281")


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


def test_tepo_data_goes_in_front_of_the_hub(toy, tmp_path, monkeypatch):
    problems, write = toy
    monkeypatch.setenv("TEPO_DATA", str(write(tmp_path / "data", problems)))
    assert load_dataset_problems(Dataset("no/such-set"), "toy", 4, set_hash(problems)) == problems


def test_a_changed_row_is_named(toy, tmp_path, monkeypatch):
    problems, write = toy
    changed = [*problems[:2], replace(problems[2], answer="5"), problems[3]]
    monkeypatch.setenv("TEPO_DATA", str(write(tmp_path / "data", changed)))
    with pytest.raises(UserError, match="the content is not the pinned one; rows that differ: toy-2; its content is"):
        load_dataset_problems(Dataset("no/such-set"), "toy", 4, set_hash(problems))
    write(tmp_path / "data", problems[:3])
    with pytest.raises(UserError, match="3 rows, expected 4; rows that differ: toy-3"):
        load_dataset_problems(Dataset("no/such-set"), "toy", 4, set_hash(problems))


def test_tepo_data_must_be_a_folder(monkeypatch):
    monkeypatch.setenv("TEPO_DATA", "/no/such/folder")
    with pytest.raises(UserError, match="TEPO_DATA is not a folder"):
        load_benchmark("amc").load_problems()


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
    with pytest.raises(UserError, match=r"no column 'problem'\n(?s:.*)columns: id, question, final"):
        load_dataset_problems(replace(source, fields=Fields(answer="final")), "toy", 4, "x")
    with pytest.raises(UserError, match=r"could not load toy: .*\n(?s:.*)TEPO_DATA"):
        load_dataset_problems(replace(source, path=str(tmp_path / "nothing")), "toy", 4, "x")


def test_hub_answers_in_their_shapes(tmp_path):
    pytest.importorskip("datasets")
    from tepo.problems.sources import read_hub

    def read(fields, *rows):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = read_hub(Dataset("json", split="train", data_files=(str(path),), fields=fields), "a")
        return [(one.id, one.prompt, one.answer, one.family) for one in found]

    rows = [
        {"problem": " p ", "answer": r"so \boxed{7} holds"},
        {"problem": "r", "answer": r"first \boxed{1}, then \boxed{\frac{1}{2}}."},
    ]
    assert read(Fields(boxed=True), *rows) == [("a-0", "p", "7", ""), ("a-1", "r", r"\frac{1}{2}", "")]
    listed = [{"problem": "p", "answer": [value], "s": ["x", "y"]} for value in (142.0, 0.5)]
    assert read(Fields(family="s"), *listed) == [("a-0", "p", "142", "x; y"), ("a-1", "p", "0.5", "x; y")]
    broken = [{"problem": "q", "answer": r"so \boxed{1} holds, not \boxed{3"}, {"problem": None, "answer": "no box"}]
    with pytest.raises(UserError, match="row 2: the gold answer is empty\nrow 3: no problem"):
        read(Fields(boxed=True), *rows, *broken)


@pytest.mark.parametrize("name", sorted(SETS))
def test_the_real_sets_are_the_pinned_ones(real_sets, name):
    problems = load_benchmark(name).load_problems()
    assert [problem.id for problem in problems] == [f"{name}-{index}" for index in range(SETS[name][0])]


def test_the_papers_omni_math(real_sets):
    whole, part = load_benchmark("omni_math").load_problems(), load_benchmark("omni_math:2811").load_problems()
    texts = [problem.prompt for problem in whole]
    assert [problem for problem in whole if texts.count(problem.prompt) == 1] == part
    assert len(part) == 2811
