"""A study whose runs fail alike, and its progress where no bar can be drawn."""

import json
from pathlib import Path

import pytest

from tests.integration.commands import tepo
from tests.unit.training.small import SMALL, few_problems

pytestmark = pytest.mark.slow

STUDY = """
title: rows
rows:
  - {label: GRPO/DAPO, objective: grpo_dapo}
  - {label: GSPO, objective: gspo}
scales:
  laptop: {models: [laptop], seeds: [0, 1, 2]}
"""
LONG = {
    "id": "long",
    "problem": "1+" * 200 + "1=",
    "answer": "201",
}  # longer than train.max_prompt_tokens, which a run meets late


def ablate(folder: Path, *words: str) -> tuple[int, str, int]:
    """Exit code, what was said, and the number of runs that have a folder."""
    own = few_problems(folder)
    (folder / "experiments").mkdir()
    (folder / "experiments/mine.yaml").write_text(STUDY)
    sets = [part for word in (*SMALL, "train.steps=1", "data.benchmarks=[add3]") for part in ("--set", word)]
    done = tepo("ablate", "mine", "--store", folder / "runs", "--jobs", "1", *sets, *words, **own)
    return done.returncode, done.stderr, len(list((folder / "runs").iterdir()))


def test_after_two_failures_alike_the_others_do_not_start(tmp_path: Path) -> None:
    (tmp_path / "long.jsonl").write_text(json.dumps(LONG) + "\n")
    code, said, runs = ablate(tmp_path, "--set", f"data={tmp_path / 'long.jsonl'}", "--set", "data.benchmarks=[add3]")
    assert (code, runs) == (1, 2)
    assert "2 of the runs failed:" in said
    assert "two failed alike, so 4 runs did not start" in said


def test_a_line_a_finished_run_in_a_file(tmp_path: Path) -> None:
    code, said, runs = ablate(tmp_path, "--seeds", "0")
    assert (code, runs) == (0, 2)
    lines = [line for line in said.splitlines() if " of 2 runs: " in line]
    assert lines == ["1 of 2 runs: GRPO/DAPO seed 0 finished", "2 of 2 runs: GSPO seed 0 finished"]
