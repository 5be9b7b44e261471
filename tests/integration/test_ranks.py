"""Two ranks, vLLM and DeepSpeed: one run after another in the same processes, and what is measured of them."""

import json
from pathlib import Path

import pytest

from tepo.config.compose import compose
from tepo.store.run_folder import RunFolder
from tests.integration.commands import ranks
from tests.unit.training.small import SMALL, few_problems

pytestmark = [pytest.mark.disaster, pytest.mark.vllm, pytest.mark.deepspeed]

ENGINES = ("sampler=vllm", "sampler.memory_fraction=0.06", "engine=deepspeed", "data.benchmarks=[add3]")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    folder = tmp_path_factory.mktemp("ranks")
    common = [*SMALL, *ENGINES, "train.steps=1", f"store={folder / 'runs'}"]
    done = [[*common, "seed=1"], [*common, "seed=2", "engine.zero_stage=3"]]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in few_problems(folder).items():
            patch.setenv(name, value)
        patch.setenv("LOCAL_WORLD_SIZE", "2")  # as torchrun sets it
        for rank in ranks("tests.integration.runs_in_turn", json.dumps(done), "base"):
            rank.end(300)
    return done


def test_a_second_run_in_the_same_processes_meets_again(jobs: list[list[str]]) -> None:
    """vLLM ends torch's process group when it closes."""
    runs = [RunFolder.of(compose(words)) for words in jobs]
    assert [run.finished() for run in runs] == [True, True]
    for run in runs:
        (row,) = run.metrics()
        assert row["actor/updates"] == 4
        assert row["training/rollout_logprobs_diff_max"] < 1e-3


def test_waiting_and_what_was_lost_are_those_of_both_ranks(jobs: list[list[str]]) -> None:
    for run in [RunFolder.of(compose(words)) for words in jobs]:
        (row,) = run.metrics()
        shares = {name: value for name, value in row.items() if name.startswith("perf/bubble/")}
        assert {"perf/bubble/gen", "perf/bubble/update_actor", "perf/bubble/step"} <= shares.keys()
        assert all(0 <= share < 1 for share in shares.values())
        assert shares["perf/bubble/step"] > 0
        assert row["perf/slowest_rank"] in (0, 1)
        assert row["perf/max_memory_rank"] in (0, 1)
        assert row["perf/preemptions"] == 0
        assert row["perf/aborted_tokens"] >= row["perf/left_over"]
        assert row["perf/throughput"] == pytest.approx(row["perf/total_num_tokens"] / row["timing_s/step"] / 2)


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


def test_one_queue_over_two_ranks(tmp_path: Path) -> None:
    """The responses of a group come from both engines, and are those of the group drawn by one of them."""
    for rank in ranks("tests.integration.queue_run", tmp_path):
        rank.end(300)
    one, other = (json.loads((tmp_path / f"rank_{rank}.json").read_text()) for rank in range(2))
    given = one.pop("given"), other.pop("given")
    assert one == other
    assert one["numbers"] == one["mixed"]
    assert len(one["numbers"]) == 8
    assert one["tokens"] == one["alone"]
    assert not one["left"]
    needed = set(range(4 * one["consumed"]))
    assert needed <= {*given[0], *given[1]}
    assert not {*given[0]} & {*given[1]}
    for parts in given:
        assert len(needed & {*parts}) > 0.3 * len(needed)
    groups = [{number // 4 for number in parts} for parts in given]
    assert len(groups[0] & groups[1]) > one["consumed"] / 2
