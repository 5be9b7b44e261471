from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tepo.problems.hashes import set_hash
from tepo.problems.problem import Problem
from tepo.problems.sources import read_problem_file
from tests.integration.published import make_sets, write_rows
from tests.support.commands import alone, tepo

pytestmark = pytest.mark.disaster


def test_contamination_counts_and_lists_by_benchmark(tmp_path: Path) -> None:
    sets = make_sets(tmp_path)
    long = (
        "Find the number of ordered pairs of positive integers whose product "
        "divides the sum of the first {} squares exactly."
    )
    file, declared = tmp_path / "data/math500.jsonl", tmp_path / "evals/math500.yaml"
    problems = [replace(one, prompt=long.format(100 + index)) for index, one in enumerate(read_problem_file(file))]
    write_rows(file, problems)
    declared.write_text(yaml.safe_dump(yaml.safe_load(declared.read_text()) | {"hash": set_hash(problems)}))
    copy = Problem("copy", long.format("\\textbf{101}").replace("number", "NUMBER,"), "1")
    own = tmp_path / "own.jsonl"
    write_rows(own, [copy, Problem("other", "How many primes lie between ten and twenty, both included?", "4")])
    done = tepo("data", "contamination", own, "--rows", **sets)
    counts = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.split()[1:2] == ["3"]}
    assert len(counts) == 8
    assert counts["aime24"] == ["3", "0", "0"]
    assert "math500-1 copy 1.000" in done.stdout
    assert f"1 of 2 problems of {own} are left out" in done.stdout


def test_without_a_network_one_message_names_tepo_data(tmp_path: Path) -> None:
    """With a hub that cannot be reached; told to be offline: tests/unit/problems/test_benchmarks.py."""
    pytest.importorskip("datasets")
    nowhere = "http://127.0.0.1:9"
    hub = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": nowhere, "HTTPS_PROXY": nowhere, "HF_HOME": str(tmp_path)}
    hub["XDG_CACHE_HOME"] = str(tmp_path)
    words = ("eval", "math500", "--model", "package:laptop", "--store", tmp_path / "runs")
    said = alone(*words, **hub, NO_PROXY="", TEPO_DATA="", code=2).stderr  # read when the libraries are imported
    assert said.count("error:") == 1
    assert "could not load math500" in said
    assert "set TEPO_DATA to a folder with math500.jsonl" in said
