"""What a vLLM engine gives, held by one process or by all ranks together."""

import os
import time
from pathlib import Path

import pytest
import torch

from tepo.sampling.sampler import Job, Response, SamplingParams
from tepo.sampling.vllm.vllm_sampler import EngineOptions, VllmSampler
from tepo.training.distributed import process_group
from tests.support.commands import Started, ranks
from tests.support.models import EOS, engine_model, logprobs, nearby, prompts, save

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
    asked, params = prompts(3, LONG), SamplingParams(n=2, temperature=temperature, max_new_tokens=24)
    return rows(asked, sampler.sample(asked, [11, 12, 13], params))


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
    before = rows([asked[number] for number in first], list(first.values()))
    whole = rows(asked, [groups[number] for number in range(MANY)])
    return {"queue": whole, "before abort": before, "after abort": again}


def draw_all(out: Path, size: int) -> None:
    """Write OUT/rank_N.pt: prompts, tokens and log-probs by the name of what was drawn; `names`, those of shared memory
    that are left. Such names are there when it starts, as after one that was killed."""
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
    own = [(prompt, tokens) for prompt, tokens, _ in done["synced"][: 4 if rank == 0 else 0]]  # of none on the second
    done["scored"] = [(*pair, torch.from_numpy(each)) for pair, each in zip(own, sampler.score(own), strict=True)]
    names = {"names": [file.name for file in SHARED.glob(f"-tp:{os.environ['MASTER_PORT']}-*")] if size > 1 else []}
    torch.save(done | queue(sampler, rank) | names, out / f"rank_{rank}.pt")
    sampler.close()


pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.deepspeed, pytest.mark.disaster]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Drawn]]]:
    """What each rank of an engine of one and of two got."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("one", "two")}
    for rank in (Started(draw_all, folders["one"], 1), *ranks(draw_all, folders["two"], 2)):
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
