"""Whole runs of `train()` on fixed prompts with greedy responses, by each sampler and engine, alone and in ranks.

Greedy responses to one prompt are all alike and leave nothing to learn, so response i begins with a given token:
nothing, the answer at once, a digit … and is greedy from there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tepo.common.provenance import sessions
from tepo.config.compose import compose
from tepo.policy.model.load_policy import load_policy
from tepo.sampling.sampler import Response, SamplingParams
from tepo.store.run_folder import RunFolder
from tepo.training import setup
from tepo.training.loop import train
from tepo.training.run import Run
from tests.support.commands import Started, ranks
from tests.support.models import logprobs

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.deepspeed, pytest.mark.disaster]

FIRST = (None, "\\boxed{", "1", "5")
GROUPS = ("train.prompts_per_step=8", "train.samples_per_prompt=4", "train.mini_batch_prompts=8", "train.max_rounds=4")
RUN = (*GROUPS, "train.epochs=2", "train.steps=3", "train.max_new_tokens=32", "train.learning_rate=1e-3")
VLLM = ["sampler=vllm", "sampler.memory_fraction=0.06"]
ONE = {  # DeepSpeed last: it makes a rank of the process
    "embedded torch": [],
    "vllm torch": VLLM,
    "embedded deepspeed": ["engine=deepspeed"],
}
TWO = {"vllm deepspeed": [*VLLM, "engine=deepspeed", "engine.zero_stage=3"]}
THREE = {"three ranks": ["engine=deepspeed", "engine.zero_stage=2"]}  # which share no mini-batch of 8 prompts evenly
COMPARED = ("actor/pg_loss", "actor/kl_loss", "actor/grad_norm", "actor/entropy", "actor/ratio_mean")
COMPARED += ("critic/rewards/kept_mean", "response_length/mean")
TOLERANCE = 1e-4


class Branching:
    """The real sampler, whose response i is the greedy continuation of the prompt and `FIRST[i]`."""

    side_by_side = None  # it is given complete groups

    def __init__(self, sampler: Any):
        self.sampler = sampler
        tokenizer: Any = load_policy("package:laptop").tokenizer
        self.first = [[] if text is None else tokenizer(text, add_special_tokens=False)["input_ids"] for text in FIRST]
        self.score, self.sync = sampler.score, sampler.sync
        self.sleep, self.close, self.parts = sampler.sleep, sampler.close, sampler.parts

    def start(self, params):
        self.params, self.jobs = params, []
        return self

    def add(self, jobs):
        self.jobs += jobs

    def drop(self, numbers):
        """Nothing: all groups are sampled together."""

    def abort(self):
        self.jobs = []

    def finished(self, seconds=None):
        jobs, self.jobs = self.jobs, []
        firsts = self.first[: self.params.n]
        greedily = SamplingParams(n=1, temperature=0.0, max_new_tokens=self.params.max_new_tokens - 1)
        begun = [(list(job.prompt), first) for job in jobs for first in firsts]
        greedy = self.sampler.sample([prompt + first for prompt, first in begun], list(range(len(begun))), greedily)
        rows = [(*pair, response) for pair, (response,) in zip(begun, greedy, strict=True)]
        drawn = [(prompt, [*first, *response.tokens.tolist()]) for prompt, first, response in rows]
        responses = []
        for (_, tokens), (_, first, response), scores in zip(drawn, rows, self.scores(drawn), strict=True):
            values = np.concatenate([scores[: len(first)], response.logprobs])
            responses.append(Response(np.array(tokens, np.int32), values, None, response.finished))
        return [(job.number, responses[n * len(firsts) :][: len(firsts)]) for n, job in enumerate(jobs)]

    def scores(self, drawn: list[tuple[list[int], list[int]]]):
        """The sampler's log-probs of responses; the embedded one has no way of scoring but its model."""
        if self.score is not None:
            return self.score(drawn)
        return [logprobs(self.sampler.model, *pair).numpy() for pair in drawn]


def train_all(out: Path, jobs: dict[str, list[str]]) -> None:
    """One after the other, each in a store of its name; vLLM is started once, by the first that needs it."""
    torch.set_num_threads(1)
    make: Any = setup.make_sampler
    started: dict[str, Any] = {}

    def make_sampler(run, *given):
        if run.config.sampler.kind == "torch":
            return Branching(make(run, *given))
        sampler = started["vllm"] = started.get("vllm") or make(run, *given)
        sampler.sync(load_policy("package:laptop").model.state_dict())  # not the weights of the job before
        sampler.close = lambda: None
        return Branching(sampler)

    setup.make_sampler = make_sampler
    for name, overrides in jobs.items():
        train(Run(compose([*RUN, *overrides, f"store={out / name}"])))


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("agreement")
    Started(train_all, folder, ONE).end()
    for jobs, count in ((TWO, 2), (THREE, 3)):
        for rank in ranks(train_all, folder, jobs, count=count):
            rank.end()
    return folder


def outcome(out: Path, name: str) -> tuple[RunFolder, list[dict], dict[str, torch.Tensor]]:
    (manifest,) = (out / name).glob("*/manifest.json")
    run = RunFolder(manifest.parent)
    return run, run.metrics(), load_file(run.checkpoint(run.checkpoints()[-1]) / "model.safetensors")


def flat(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([weights[name].flatten() for name in sorted(weights)])


@pytest.mark.parametrize("name", [*ONE, *TWO, *THREE])
def test_losses_and_weights_agree(out, name):
    (_, expected, reference), (run, rows, weights) = outcome(out, "embedded torch"), outcome(out, name)
    assert len(rows) == len(expected) == 3
    for one, other in zip(rows, expected, strict=True):
        for key in COMPARED:
            assert one[key] == pytest.approx(other[key], rel=TOLERANCE), key
        assert one["training/rollout_logprobs_diff_max"] < TOLERANCE  # vLLM follows every sync
    assert weights.keys() == reference.keys()
    apart = flat(weights) - flat(reference)
    assert apart.norm() < TOLERANCE * flat(reference).norm()
    start = load_policy("package:laptop").model.state_dict()
    moved = flat(reference) - flat({key: start[key] for key in reference})
    assert moved.norm() > 0.01 * flat(reference).norm()  # there was something to disagree about
    assert apart.norm() < 10 * TOLERANCE * moved.norm()
    (session,) = sessions(run.path)
    parts = {"runner": "V1", "scheduler": "Scheduler", "attention": "CPU_ATTN"}  # none of which a GPU has
    assert session.get("sampler") == (parts if "vllm" in name else None)
