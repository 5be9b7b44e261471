"""`tepo data verify` and `tepo data contamination` on folders of problem files,
and on the hub through local data sets."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tepo.problems.hashes import set_hash
from tepo.problems.problem import Problem
from tepo.problems.sources import read_problem_file
from tests.integration.commands import alone, python, tepo
from tests.integration.published import make_sets, write_rows

pytestmark = pytest.mark.disaster

OFFLINE = {"HF_HUB_OFFLINE": "1", "TEPO_DATA": ""}


def test_verify_checks_every_published_set_and_lists_unreadable_golds_by_row(tmp_path: Path) -> None:
    sets = make_sets(tmp_path)
    amc = tmp_path / "data/amc.jsonl"
    problems = [*read_problem_file(amc)[:2], Problem("amc-2", "What?", r"\begin{cases} \frac{")]
    write_rows(amc, problems)
    declared = yaml.safe_load((tmp_path / "evals/amc.yaml").read_text()) | {"hash": set_hash(problems)}
    (tmp_path / "evals/amc.yaml").write_text(yaml.safe_dump(declared))
    done = tepo("data", "verify", "amc", "minerva", **sets, code=1)
    assert (
        f"amc: 3 problems, content {set_hash(problems)}\n  golds that the grader cannot read: amc-2 (cannot read"
        in done.stdout
    )
    assert done.stdout.count("cannot read: ") == 1
    offline = sets | {"HF_HUB_OFFLINE": "1"}  # else each look-up tries for long
    everything = alone("data", "verify", "--no-golds", **offline, code=2)  # the folder has no DAPO-Math-17k
    assert everything.stdout.count(": 3 problems, content ") == 8
    assert "dapo_math: NOT VERIFIED" in everything.stdout


def test_a_copy_that_is_not_the_pinned_one_names_its_rows(tmp_path: Path) -> None:
    write_rows(tmp_path / "aime24.jsonl", [Problem(f"aime24-{index}", "What?", "1") for index in range(29)])
    done = tepo("data", "verify", "aime24", TEPO_DATA=str(tmp_path), code=2)
    assert "aime24: NOT VERIFIED\n  aime24: 29 rows, expected 30; rows that differ: aime24-0, aime24-1" in done.stdout
    assert "and 18 more" in done.stdout
    assert str(tmp_path / "aime24.jsonl") in done.stdout


def test_contamination_counts_and_lists_by_benchmark(tmp_path: Path) -> None:
    sets = make_sets(tmp_path)
    long = (
        "Find the number of ordered pairs of positive integers whose product "
        "divides the sum of the first {} squares exactly."
    )
    for name, base in (("math500", 100), ("amc", 7000)):
        problems = [
            replace(problem, prompt=long.format(base + index))
            for index, problem in enumerate(read_problem_file(tmp_path / f"data/{name}.jsonl"))
        ]
        write_rows(tmp_path / f"data/{name}.jsonl", problems)
        declared = yaml.safe_load((tmp_path / f"evals/{name}.yaml").read_text()) | {"hash": set_hash(problems)}
        (tmp_path / f"evals/{name}.yaml").write_text(yaml.safe_dump(declared))
    own = tmp_path / "own.jsonl"
    write_rows(
        own,
        [
            Problem("copy", long.format("\\textbf{101}").replace("number", "NUMBER,"), "1"),
            Problem("other", "How many primes lie between ten and twenty, both included?", "4"),
        ],
    )
    done = tepo("data", "contamination", own, "--rows", "--write-list", tmp_path / "list.txt", **sets)
    counts = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.split()[1:2] == ["3"]}
    assert len(counts) == 8
    assert counts["aime24"] == ["3", "0", "0"]
    assert "math500-1 copy 1.000" in done.stdout
    assert f"1 of 2 problems of {own} are left out" in done.stdout
    assert (tmp_path / "list.txt").read_text() == "copy\n"


UNREACHABLE = {
    "HF_HUB_OFFLINE": "0",
    "HF_ENDPOINT": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "",
    "TEPO_DATA": "",
}
NAMES = ("math500", "aime24")
# One interpreter for both names, and one for each environment: the libraries read it when they are imported.
EVALUATE = """
import sys
from tepo_cli.main import main
_, store, *names = sys.argv
for name in names:
    sys.argv = ["tepo", "eval", name, "--model", "package:laptop", "--store", store]
    try:
        main()
    except SystemExit as ended:
        print(ended.code)
"""


@pytest.mark.parametrize("environment", [OFFLINE, UNREACHABLE], ids=["offline", "unreachable"])
def test_without_a_network_one_message_names_tepo_data(tmp_path: Path, environment: dict[str, str]) -> None:
    pytest.importorskip("datasets")
    done = python("-c", EVALUATE, tmp_path / "runs", *NAMES, **environment, HF_HOME=str(tmp_path))
    assert done.stdout == "2\n2\n"
    assert done.stderr.count("error:") == 2
    for name in NAMES:
        assert f"could not load {name}" in done.stderr
        assert f"set TEPO_DATA to a folder with {name}.jsonl" in done.stderr
    assert "Traceback" not in done.stderr


def test_verify_lists_every_mistake_of_a_file_in_plain_words(tmp_path: Path) -> None:
    good = '{"id": "%s", "problem": "1+1=", "answer": "2"}'
    bad = {
        2: ("{", "not JSON from column 2 on"),
        **dict.fromkeys((3, 4, 5, 6), ('{"id": "c", "problem": "p"}', "no answer")),
        8: ('{"id": "h", "problem": "\\ud800", "answer": "1"}', "half a character: '\\ud800'"),
        9: ("[1]", "not keys and values"),
        10: ("[" * 5000, "nested more than 100 deep"),
        11: ('{"id": "k", "problem": "p", "answer": [1]}', "the answer is neither a text nor a number"),
    }
    lines = [
        bad[number][0] if number in bad else good % ("a" if number in (1, 7) else number) for number in range(1, 13)
    ]
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(lines))
    done = tepo("data", "verify", path, **OFFLINE, code=2)
    for number, (_, message) in bad.items():
        assert f"\n  line {number}: {message}\n" in done.stdout
    assert "\n  lines 1, 7 have the same id 'a'\n" in done.stdout
    first = tepo("train", "scale=laptop", f"data={path}", "--store", tmp_path / "runs", cwd=tmp_path, code=2)
    assert "error: line 2: not JSON from column 2 on\n" in first.stderr
    assert "and 5 more mistakes: `tepo data verify` lists them" in first.stderr
    assert not (tmp_path / "runs").exists()
