"""What a vLLM engine gives, held by one process or by all ranks together.

    python -m tests.integration.test_shared_engine OUT SIZE

is a rank, and writes OUT/rank_N.pt: lists of (prompt, tokens, log-probs) by the name of what was drawn; and `names`,
those of shared memory that are left. Such names are there when it starts, as after one that was killed.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tepo.common.provenance import sessions
from tepo.config.compose import compose
from tepo.config.run_config import RunConfig
from tepo.sampling.sampler import Job, Response, SamplingParams
from tepo.sampling.vllm.vllm_sampler import EngineOptions, VllmSampler
from tepo.store.run_folder import RunFolder
from tepo.training.distributed import process_group
from tests.integration.runs_in_turn import MEASURED
from tests.support.commands import program, ranks
from tests.support.models import EOS, engine_model, logprobs, nearby, prompts, save
from tests.support.runs import SMALL, few_problems

LONG = 140  # above one block of the prefix cache (128 tokens on CPU)
SHARED = Path("/dev/shm")
MANY = 60  # groups of two in an engine of 64 rows
Drawn = list[tuple[list[int], list[int], torch.Tensor]]


def rows(asked: list[list[int]], groups: list[list[Response]]) -> Drawn:
    """Each response with its prompt."""
    return [
        (prompt, response.tokens.tolist(), torch.from_numpy(response.logprobs))
        for prompt, group in zip(asked, groups, strict=True)
        for response in group
    ]


def draw(sampler: VllmSampler, temperature: float) -> Drawn:
    asked = prompts(3, LONG)
    return rows(
        asked, sampler.sample(asked, [11, 12, 13], SamplingParams(n=2, temperature=temperature, max_new_tokens=24))
    )


def queue(sampler: VllmSampler, rank: int) -> dict[str, Drawn]:
    """More groups than rows, in shares of time that the ranks measure unlike each other; then an abort amid others."""
    asked, drawn = prompts(MANY, 20), SamplingParams(n=2, temperature=1.0, max_new_tokens=24)
    under_way = sampler.start(drawn)
    under_way.add([Job(number, prompt, number) for number, prompt in enumerate(asked)])
    groups: dict[int, list[Response]] = {}
    while len(groups) < MANY:
        groups |= dict(under_way.finished(0.01 * (1 + 5 * rank)))
        time.sleep(0.005 * rank)
    under_way.add([Job(number, prompt, number) for number, prompt in enumerate(asked)])
    first = dict(under_way.finished(0.02))
    under_way.abort()
    again = rows(asked[:3], sampler.sample(asked[:3], range(3), drawn))
    return {"queue": rows(asked, [groups[number] for number in range(MANY)]), "after abort": again} | {
        "before abort": rows([asked[number] for number in first], list(first.values()))
    }


def score(sampler: VllmSampler, drawn: Drawn, rank: int) -> Drawn:
    """The log-probs of other responses on each rank; of none on the second."""
    own = [(prompt, tokens) for prompt, tokens, _ in drawn[: 4 if rank == 0 else 0]]
    scored = sampler.score(own)
    return [(*pair, torch.from_numpy(values)) for pair, values in zip(own, scored, strict=True)]


def main(out: Path, size: int) -> None:
    torch.set_num_threads(1)
    rank, model = process_group.rank(), engine_model(0, tied=True)
    path = save(model, out / f"tiny_{rank}")
    if process_group.world_size() > 1:
        process_group.start(torch.device("cpu"))
        (SHARED / f"-tp:{os.environ['MASTER_PORT']}-[0-1]-cpushm_{rank}").write_bytes(bytes(64))
    options = EngineOptions(path, "float32", 256, max_rows=64, tensor_parallel=size)
    sampler = VllmSampler(options, [EOS], memory_fraction=0.06)
    done = {"greedy": draw(sampler, 0.0), "sampled": draw(sampler, 1.0)}
    sampler.sync(nearby(model, 1).state_dict())
    done["synced"] = draw(sampler, 1.0)
    done["scored"] = score(sampler, done["synced"], rank)
    names = {"names": [file.name for file in SHARED.glob(f"-tp:{os.environ['MASTER_PORT']}-*")] if size > 1 else []}
    torch.save(done | queue(sampler, rank) | names, out / f"rank_{rank}.pt")
    sampler.close()


pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.deepspeed, pytest.mark.disaster]

RUN = (*SMALL, "train.steps=2", "sampler=vllm", "sampler.memory_fraction=0.06", "engine=deepspeed", "seed=1")
RUN += ("data.flip_rewards=0.5", "train.max_rounds=4")  # random weights are never right
RUN += ("train.validate_every=1", "train.validation_problems=6", "data.benchmarks=[add3]")


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Drawn]]]:
    """What each rank of an engine of one and of two got."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("one", "two")}
    started = [program("tests.integration.test_shared_engine", folders["one"], "1")]
    for rank in (*started, *ranks("tests.integration.test_shared_engine", folders["two"], "2")):
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
    parts = {"runner": "V1", "scheduler": "Scheduler", "attention": "CPU_ATTN"}  # none of which a GPU has
    assert sessions(run.path)[-1]["sampler"] == parts
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


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
