import json
from dataclasses import replace
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.common.paths import PROTOCOLS, find, names, shipped
from tepo.problems import hashes
from tepo.problems.benchmarks import load_benchmark, parse_benchmark, parse_protocol
from tepo.problems.hashes import pick_pinned, row_hashes, set_hash
from tepo.problems.problem import Problem
from tepo.problems.sources import Dataset, Fields, load_dataset_problems, read_hub, read_problem_file
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
    page = (shipped("evals").parent / "docs" / "evaluation.md").read_text()
    assert find(PROTOCOLS, "qwen3_thinking").read_text().partition("\n")[2] in page
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
        found = read_hub(Dataset("json", split="train", data_files=(str(path),), fields=fields), "a")
        return [(one.id, one.prompt, one.answer, one.family) for one in found]

    rows = [
        {"problem": " p ", "answer": r"so \boxed{7} holds"},
        {"problem": "r", "answer": r"first \boxed{1}, then \boxed{\frac{1}{2}}."},
    ]
    assert read(Fields(boxed=True), *rows) == [("a-0", "p", "7", ""), ("a-1", "r", r"\frac{1}{2}", "")]
    listed = [{"problem": "p", "answer": [value], "s": ["x", "y"]} for value in (142.0, 0.5)]
    assert read(Fields(family="s"), *listed) == [("a-0", "p", "142", "x; y"), ("a-1", "p", "0.5", "x; y")]


@pytest.mark.parametrize("name", sorted(SETS))
def test_the_real_sets_are_the_pinned_ones(real_sets, name):
    problems = load_benchmark(name).load_problems()
    assert [problem.id for problem in problems] == [f"{name}-{index}" for index in range(SETS[name][0])]


def test_the_papers_omni_math(real_sets):
    whole, part = load_benchmark("omni_math").load_problems(), load_benchmark("omni_math:2811").load_problems()
    texts = [problem.prompt for problem in whole]
    assert [problem for problem in whole if texts.count(problem.prompt) == 1] == part
    assert len(part) == 2811


@pytest.mark.parametrize("name", names("evals"))
def test_what_ships_is_pinned_and_generated_problems_are_those_that_are_pinned(name: str) -> None:
    benchmark = load_benchmark(name)
    assert benchmark.hash
    if benchmark.procedural:
        assert set_hash(benchmark.load_problems()) == benchmark.content_hash
        fresh = load_benchmark(f"{name}:problems77")
        assert fresh.content_hash == set_hash(fresh.load_problems()) != benchmark.content_hash
