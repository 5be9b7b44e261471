"""A program for test_agreement.py: whole runs of `train()` on fixed prompts with greedy responses,
alone or as a rank of torchrun.

    python -m tests.integration.agreement_run OUT '{"name": ["sampler=vllm", …], …}'

Runs the jobs one after the other, each in a store OUT/name; vLLM is started once for all, by the first that needs it.
Greedy responses to one prompt are all alike and leave nothing to learn, so response i begins with a given token:
nothing, the answer at once, a digit … and is greedy from there.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tepo.config.compose import compose
from tepo.policy.model.load_policy import load_policy
from tepo.sampling.sampler import Response, SamplingParams
from tepo.training import setup
from tepo.training.loop import train
from tepo.training.run import Run
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
            given = len(tokens) - len(response.tokens)
            responses.append(
                Response(
                    np.array(tokens, np.int32),
                    np.concatenate([scores[:given], response.logprobs]),
                    None,
                    response.finished,
                )
            )
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


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
