import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tepo.config.compose import compose
from tepo.config.run_config import RunConfig
from tepo.store.run_folder import RunFolder
from tests.integration.runs_in_turn import MEASURED
from tests.integration.shared_engine_run import MANY, Drawn
from tests.support.commands import program, ranks
from tests.support.models import engine_model, logprobs, nearby, save
from tests.support.runs import SMALL, few_problems

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.deepspeed, pytest.mark.disaster]

RUN = (*SMALL, "train.steps=2", "sampler=vllm", "sampler.memory_fraction=0.06", "engine=deepspeed", "seed=1")
RUN += ("data.flip_rewards=0.5", "train.max_rounds=4")  # random weights are never right
RUN += ("train.validate_every=1", "train.validation_problems=6", "data.benchmarks=[add3]")


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Drawn]]]:
    """What each rank of an engine of one and of two got."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("one", "two")}
    started = [program("tests.integration.shared_engine_run", folders["one"], "1")]
    for rank in (*started, *ranks("tests.integration.shared_engine_run", folders["two"], "2")):
        rank.end()
    return {name: [torch.load(file) for file in sorted(folder.glob("*.pt"))] for name, folder in folders.items()}


def tokens(drawn: Drawn) -> list[list[int]]:
    return [response for _, response, _ in drawn]


@pytest.mark.parametrize("name", ["greedy", "sampled", "synced", "queue", "after abort"])
def test_two_ranks_draw_what_one_draws(engines: dict[str, list[dict[str, Drawn]]], name: str) -> None:
    ((one,), (first, second)) = engines["one"], engines["two"]
    assert tokens(first[name]) == tokens(second[name]) == tokens(one[name])
    for (*_, ours), (*_, theirs), (*_, alone) in zip(first[name], second[name], one[name], strict=True):
        assert torch.equal(ours, theirs)
        assert torch.allclose(ours, alone, atol=1e-4)


def test_a_sync_reaches_every_part_of_the_weights(engines: dict[str, list[dict[str, Drawn]]]) -> None:
    """Each rank handed over all of them; what is sampled and scored afterwards is the new model's."""
    old = engine_model(0, tied=True)
    new = nearby(old, 1)
    first, second = engines["two"]
    assert tokens(first["synced"]) != tokens(first["sampled"])
    for prompt, response, given in first["synced"] + first["scored"]:
        assert torch.allclose(given, logprobs(new, prompt, response), atol=1e-4)
    for prompt, response, given in first["sampled"]:
        assert torch.allclose(given, logprobs(old, prompt, response), atol=1e-4)
    assert (len(first["scored"]), len(second["scored"])) == (4, 0)  # each rank had asked for its own


def test_ranks_stop_together_whatever_their_clocks_say(engines: dict[str, list[dict[str, Drawn]]]) -> None:
    first, second = engines["two"]
    assert len(first["queue"]) == 2 * MANY
    assert tokens(first["before abort"]) == tokens(second["before abort"])
    # old names of shared memory hinder nobody, and none is left behind
    assert [each["names"] for each in engines["two"]] == [[], []]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunConfig]:
    """The same run on two ranks with one engine of both under ZeRO 3, and with an engine each."""
    folder = tmp_path_factory.mktemp("runs")
    common = (*RUN, f"model.path={save(engine_model(0, tied=True), folder / 'model')}")
    extras = (("sampler.tensor_parallel=2", "engine.zero_stage=3"), ())
    words = [[*common, f"store={folder / str(number)}", *extra] for number, extra in enumerate(extras)]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in few_problems(folder).items():
            patch.setenv(name, value)
        patch.setenv("LOCAL_WORLD_SIZE", "2")  # as torchrun sets it
        for rank in ranks("tests.integration.runs_in_turn", json.dumps([words[0], [*words[1], MEASURED]])):
            rank.end()
    return [compose(each) for each in words]


def test_a_run_trains_the_same_with_one_engine_of_two_ranks(runs: list[RunConfig]) -> None:
    """In the same processes: vLLM ends torch's process group when it closes."""
    run, plain = map(RunFolder.of, runs)
    assert run.path.name == plain.path.name
    assert run.finished()
    for row, other in zip(run.metrics(), plain.metrics(), strict=True):
        assert row["training/prompts"] == other["training/prompts"]
        assert row["training/rollout_logprobs_diff_max"] < 1e-3
        for name in ("critic/score/mean", "actor/grad_norm", "response_length/mean", "val-core/average"):
            assert row[name] == pytest.approx(other[name], rel=1e-3)
        # the throughput of a rank counts both
        assert other["perf/throughput"] == pytest.approx(other["perf/total_num_tokens"] / other["timing_s/step"] / 2)
    expected = load_file(plain.checkpoint(2) / "model.safetensors")
    for name, value in load_file(run.checkpoint(2) / "model.safetensors").items():
        assert np.allclose(value, expected[name], atol=1e-5)


def test_the_first_rank_measures_a_run_by_an_engine_for_each_rank_of_the_machine(runs: list[RunConfig]) -> None:
    """In a process of its own, whose CPU time is counted."""
    run = RunFolder.of(runs[-1])
    assert (RunFolder.of(runs[0]).measured(), run.measured()) == ([], ["add3"])
    (cost,) = run.costs()
    assert cost.benchmarks == 1
    assert cost.measuring_s > 1  # an import of vLLM alone takes more
    assert len(list(run.server_logs.glob("server_*.log"))) == 2
