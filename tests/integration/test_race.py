import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tepo.store.checkpoint_files import damage
from tepo.store.run_folder import RunFolder
from tests.support.commands import sharing, started, until
from tests.support.runs import SMALL, few_problems, write

pytestmark = pytest.mark.disaster

STUDY = """\
title: three rows
rows:
  - {label: a, objective: grpo_dapo}
  - {label: b, objective: tepo_no_kl}
  - {label: c, objective: gspo}
scales:
  laptop: {models: [laptop], seeds: [0], overrides: [%s]}
"""


def lineage(pid: int, parents: dict[int, int]) -> list[int]:
    found = [pid]
    while found[-1] in parents:
        found.append(parents[found[-1]])
    return found


def test_four_racing_processes_and_one_killed(tmp_path: Path) -> None:
    own = few_problems(tmp_path)
    write(tmp_path / "ablations/raced.yaml", STUDY % ", ".join([*SMALL, "'data.benchmarks=[max4]'"]))
    words = ("ablate", "raced", "--store", tmp_path / "runs", "--format", "csv")
    # the one that is killed has its units forked by a server of its own, as a user's command has
    processes = [started(*words, **own), *(sharing(*words, **own) for _ in range(3))]
    until(lambda: list((tmp_path / "runs").glob("*/metrics.jsonl")), processes[0])
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    lines = listed.splitlines()
    parents = dict(tuple(map(int, line.split())) for line in lines)
    for pid in parents:
        if processes[0].pid in lineage(pid, parents):  # what trains for it does so in a session of its own
            with contextlib.suppress(ProcessLookupError):  # it ended with the one that was killed before it
                os.kill(pid, signal.SIGKILL)
    codes = (-signal.SIGKILL, 0, 0, 0)
    ended = [process.end(code=code) for process, code in zip(processes, codes, strict=True)]
    assert len({each.stdout for each in ended[1:]}) == 1
    runs = [RunFolder(path.parent) for path in (tmp_path / "runs").glob("*/config.json")]
    assert len(runs) == 3
    for run in runs:
        assert run.finished()
        assert [row["training/global_step"] for row in run.metrics()] == [1, 2, 3]
        assert all(not damage(run.checkpoint(step)) for step in run.checkpoints())
