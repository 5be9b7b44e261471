"""A command that measures in a child what it has trained."""

import json
from pathlib import Path

import pytest

from tepo.config.compose import compose
from tepo.store.run_folder import RunFolder
from tests.integration.commands import started
from tests.unit.training.small import SMALL, few_problems


@pytest.mark.disaster
@pytest.mark.vllm
def test_a_run_is_trained_and_measured_by_one_command(tmp_path: Path) -> None:
    """Its cost is one entry."""
    words = [*SMALL, "sampler=vllm", "sampler.memory_fraction=0.06", "data.benchmarks=[add3]", "train.steps=1"]
    folder = few_problems(tmp_path)["TEPO_PATH"]
    command = started("train", *words, "--evaluate", "--store", tmp_path / "runs", TEPO_PATH=folder)
    done = command.end()
    assert done.stderr.index(": 1 step,") < done.stderr.index("accuracy %") < done.stderr.index("base is not measured")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in few_problems(tmp_path / "again").items():
            patch.setenv(name, value)
        run = RunFolder.of(compose([*words, f"store={tmp_path / 'runs'}"]))
    assert run.measured() == ["add3"]
    (cost,) = json.loads((run.path / "cost.json").read_text())
    assert (cost["steps"], cost["benchmarks"]) == (1, 1)
    assert cost["measuring_s"] > 1  # an import of vLLM alone takes more
    assert cost["cpu_s"] > cost["measuring_s"] + cost["training_s"]
    assert not run.busy()
