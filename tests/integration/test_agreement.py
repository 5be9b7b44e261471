"""Whole runs of `train()` on fixed prompts with greedy responses, by each sampler and engine.

    python -m tests.integration.test_agreement OUT '{"name": ["sampler=vllm", …], …}'

trains the jobs one after the other, alone or as a rank, each in a store OUT/name; vLLM is started once for all, by the
first that needs it. Greedy responses to one prompt are all alike and leave nothing to learn, so response i begins with
a given token: nothing, the answer at once, a digit … and is greedy from there.
"""

import json
import sys
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
from tests.support.commands import program, ranks
from tests.support.models import logprobs

FIRST = (None, "\\boxed{", "1", "5")
GROUPS = ("train.prompts_per_step=8", "train.samples_per_prompt=4", "train.mini_batch_prompts=8", "train.max_rounds=4")
RUN = (*GROUPS, "train.epochs=2", "train.steps=3", "train.max_new_tokens=32", "train.learning_rate=1e-3")


class Branching:
    """A sampler whose response i is the greedy continuation of the prompt and `FIRST[i]`;
    the real one samples, scores and syncs."""

    side_by_side = None  # it is given complete groups

    def __init__(self, sampler):
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
        params, prompts = self.params, [job.prompt for job in self.jobs]
        n, greedily = params.n, SamplingParams(n=1, temperature=0.0, max_new_tokens=params.max_new_tokens - 1)
        asked = [[*prompt, *first] for prompt in prompts for first in self.first[:n]]
        greedy = [group[0] for group in self.sampler.sample(asked, list(range(len(asked))), greedily)]
        begun = [
            [*first, *map(int, response.tokens)]
            for response, first in zip(greedy, self.first[:n] * len(prompts), strict=True)
        ]
        drawn = list(zip([list(prompt) for prompt in prompts for _ in range(n)], begun, strict=True))
        responses = []
        for (_, tokens), response, scores in zip(drawn, greedy, self._scores(drawn), strict=True):
            logprobs = np.concatenate([scores[: len(tokens) - len(response.tokens)], response.logprobs])
            responses.append(Response(np.array(tokens, np.int32), logprobs, None, response.finished))
        numbers = [job.number for job in self.jobs]
        self.jobs = []
        return [(number, responses[index * n : (index + 1) * n]) for index, number in enumerate(numbers)]

    def _scores(self, drawn: list[tuple[list[int], list[int]]]):
        """The sampler's log-probs of responses; the embedded one has no way of scoring but its model."""
        if self.score is not None:
            return self.score(drawn)
        return [logprobs(self.sampler.model, *pair).numpy() for pair in drawn]


def main(out: Path, jobs: dict[str, list[str]]) -> None:
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


pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.deepspeed, pytest.mark.disaster]

VLLM = ["sampler=vllm", "sampler.memory_fraction=0.06"]
ONE = {
    "embedded torch": [],
    "vllm torch": VLLM,
    "embedded deepspeed": ["engine=deepspeed"],
}  # DeepSpeed last: it makes a rank of the process
TWO = {"vllm deepspeed": [*VLLM, "engine=deepspeed", "engine.zero_stage=3"]}
COMPARED = ("actor/pg_loss", "actor/kl_loss", "actor/grad_norm", "actor/entropy", "actor/ratio_mean")
COMPARED += ("critic/rewards/kept_mean", "response_length/mean")
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("agreement")
    program("tests.integration.test_agreement", folder, json.dumps(ONE)).end()
    for rank in ranks("tests.integration.test_agreement", folder, json.dumps(TWO)):
        rank.end()
    return folder


def run_of(out: Path, name: str) -> RunFolder:
    (manifest,) = (out / name).glob("*/manifest.json")
    return RunFolder(manifest.parent)


def outcome(out: Path, name: str) -> tuple[list[dict], dict[str, torch.Tensor]]:
    run = run_of(out, name)
    return run.metrics(), load_file(run.checkpoint(run.checkpoints()[-1]) / "model.safetensors")


def flat(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([weights[name].flatten() for name in sorted(weights)])


@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_losses_and_weights_agree(out, name):
    (expected, reference), (rows, weights) = outcome(out, "embedded torch"), outcome(out, name)
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
    (session,) = sessions(run_of(out, name).path)
    parts = {"runner": "V1", "scheduler": "Scheduler", "attention": "CPU_ATTN"}  # none of which a GPU has
    assert session.get("sampler") == (parts if "vllm" in name else None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
