import contextlib
import itertools
import json
from pathlib import Path

import pytest

from tests.support.commands import started, tepo, until
from tests.support.runs import SMALL, few_problems, write

pytestmark = pytest.mark.slow

STUDY = """
title: rows
rows:
  - {label: GRPO/DAPO, objective: grpo_dapo}
  - {label: GSPO, objective: gspo}
scales:
  laptop: {models: [laptop], seeds: [0, 1, 2]}
"""
# longer than train.max_prompt_tokens, which a run meets late
LONG = {"id": "long", "problem": "1+" * 200 + "1=", "answer": "201"}


def ablate(folder: Path, *words: str) -> tuple[int, str, int]:
    """Exit code, what was said, and the number of runs that have a folder."""
    own = few_problems(folder)
    write(folder / "experiments/mine.yaml", STUDY)
    sets = [part for word in (*SMALL, "train.steps=1", "data.benchmarks=[add3]") for part in ("--set", word)]
    done = tepo("ablate", "mine", "--store", folder / "runs", "--jobs", "1", *sets, *words, **own, code=None)
    return done.returncode, done.stderr, len(list((folder / "runs").iterdir()))


def test_after_two_failures_alike_the_others_do_not_start(tmp_path: Path) -> None:
    (tmp_path / "long.jsonl").write_text(json.dumps(LONG) + "\n")
    code, said, runs = ablate(tmp_path, "--set", f"data={tmp_path / 'long.jsonl'}", "--set", "data.benchmarks=[add3]")
    assert (code, runs) == (1, 2)
    assert "2 of the runs failed:" in said
    assert "two failed alike, so 4 runs did not start" in said


@pytest.mark.disaster
def test_a_store_deleted_under_a_study_is_one_message(tmp_path: Path) -> None:
    write(tmp_path / "experiments/mine.yaml", STUDY)
    sets = [part for word in (*SMALL, "train.steps=5000", "data.benchmarks=[add3]") for part in ("--set", word)]
    store = tmp_path / "runs"
    words = ("ablate", "mine", "--store", store, "--jobs", "2", "--seeds", "0", *sets)
    process = started(*words, TEPO_PATH=str(tmp_path))
    until(lambda: len([path for path in store.glob("*/metrics.jsonl") if path.stat().st_size]) == 2, process)
    for number in itertools.count():  # gone for good: a run that writes a checkpoint makes its folders again
        with contextlib.suppress(FileNotFoundError):
            store.rename(tmp_path / f"gone{number}")
        store.touch()
        if store.is_file():
            break
    done = process.end(code=1)
    assert "2 of the runs failed" in done.stderr
    assert "was the store deleted or moved under it?" in done.stderr
    assert "Traceback" not in done.stderr
