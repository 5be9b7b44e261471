"""Two ranks, vLLM and DeepSpeed: one run after another in the same processes, and what is measured of them."""

import json

import pytest

from tepo.config.compose import compose
from tepo.training.run_folder import RunFolder
from tests.integration.commands import ranks
from tests.unit.training.small import SMALL, few_problems

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.deepspeed]

ENGINES = ("sampler=vllm", "sampler.memory_fraction=0.06", "engine=deepspeed", "data.benchmarks=[add3]")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """Two runs in turn, the second and the base measured."""
    folder = tmp_path_factory.mktemp("ranks")
    common = [*SMALL, *ENGINES, "train.steps=1", f"store={folder / 'runs'}"]
    done = [[*common, "seed=1"], [*common, "seed=2", "engine.zero_stage=3"]]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in few_problems(folder).items():
            patch.setenv(name, value)
        patch.setenv("LOCAL_WORLD_SIZE", "2")  # as torchrun sets it
        for rank in ranks("tests.integration.runs_in_turn", json.dumps(done)):
            ended = rank.end()
            assert ended.returncode == 0, ended.stderr[-3000:]
    return done


def test_a_second_run_in_the_same_processes_meets_again(jobs: list[list[str]]) -> None:
    """vLLM ends torch's process group when it closes."""
    runs = [RunFolder.of(compose(words)) for words in jobs]
    assert [run.finished() for run in runs] == [True, True]
    for run in runs:
        (row,) = run.metrics()
        assert row["actor/updates"] == 4
        assert row["training/rollout_logprobs_diff_max"] < 1e-3


def test_the_first_rank_measures_a_run_and_the_base(jobs: list[list[str]]) -> None:
    """Each in a process of its own, which sees no launcher; the CPU time of that is counted. The run is measured
    by an engine for each rank of the machine, the base, on machines with one rank each, by one in the process."""
    config = compose(jobs[-1])
    trained, base = RunFolder.of(config), RunFolder.of_base(config)
    assert RunFolder.of(compose(jobs[0])).measured() == []
    for run in (trained, base):
        assert run.measured() == ["add3"]
        (cost,) = json.loads((run.path / "cost.json").read_text())
        assert cost["benchmarks"] == 1
        assert cost["measuring_s"] > 1  # an import of vLLM alone takes more
        assert len(list(run.server_logs.glob("server_*.log"))) == (2 if run is trained else 0)
