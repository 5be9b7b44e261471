from pathlib import Path
from typing import Any

import pytest

from tepo import objectives
from tepo.common import registry
from tepo.config.compose import compose
from tepo.jobs.job import RunJob
from tepo.store import run_id
from tepo.store.run_folder import RunFolder
from tepo.training.run import Run
from tests.support.runs import small


def test_what_a_run_names_is_looked_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its base is hashed twice: when the run is named, and when all is loaded, as it may have changed meanwhile."""
    calls: list[str] = []

    def watch(module: Any, name: str) -> None:
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, **named: (calls.append(name), original(*given, **named))[1])

    watch(run_id, "base_fingerprint")
    watch(registry, "backend")  # of the sampler and of the engine
    watch(objectives, "load_objective")
    run = Run(small(tmp_path, "train.steps=1"))
    RunJob(run).train()
    assert run.folder.finished()
    assert sorted(calls) == ["backend"] * 2 + ["base_fingerprint"] * 2 + ["load_objective"]


def test_a_layout_that_is_chosen_changes_neither_id_nor_objective() -> None:
    run = Run(compose(["scale=single_gpu", "data=laptop", "model=laptop"]))
    laid_out = run.having("engine.zero_stage", 3).having("sampler.max_rows", 64)
    assert (laid_out.get("engine.zero_stage"), laid_out.get("sampler.max_rows"), laid_out.asked) == (3, 64, run)
    assert laid_out.folder is run.folder
    assert laid_out.objective is run.objective
    assert run.folder == RunFolder.of(run.config)
