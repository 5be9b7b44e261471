from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tepo.problems.hashes import set_hash
from tepo.problems.problem import Problem
from tepo.problems.sources import read_problem_file
from tests.integration.published import make_sets, write_rows
from tests.support.commands import tepo

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
