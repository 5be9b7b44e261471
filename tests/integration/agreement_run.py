"""A program for test_agreement.py: whole runs of `train()` on fixed prompts with greedy responses,
alone or as a rank of torchrun.

    python -m tests.integration.agreement_run OUT '{"name": ["sampler=vllm", …], …}'

Runs the jobs one after the other, each in a store OUT/name; vLLM is started once for all, by the first that needs it.
Greedy responses to one prompt are all alike and leave nothing to learn, so response i begins with a given token:
nothing, the answer at once, a digit … and is greedy from there. After each sync rank 0 writes the largest difference
between the sampler's log-probs of the last responses and a plain forward pass of the weights that it was given, in
OUT/name/sync.json.
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
from tepo.training.distributed import process_group
from tepo.training.loop import train
from tests.integration.tiny import logprobs

FIRST = (None, "\\boxed{", "1", "5")
GROUPS = ("train.prompts_per_step=8", "train.samples_per_prompt=4", "train.mini_batch_prompts=8", "train.max_rounds=4")
RUN = (*GROUPS, "train.epochs=2", "train.steps=3", "train.max_new_tokens=32", "train.learning_rate=1e-3")


class Branching:
    """A sampler whose response i is the greedy continuation of the prompt and `FIRST[i]`;
    the real one samples, scores and syncs."""

    side_by_side = None  # it is given complete groups

    def __init__(self, sampler, apart: list[float]):
        self.sampler, self.apart = sampler, apart
        self.plain: Any = load_policy("package:laptop")
        self.first = [
            [] if text is None else self.plain.tokenizer(text, add_special_tokens=False)["input_ids"] for text in FIRST
        ]
        self.drawn: list[tuple[list[int], list[int]]] = []
        self.score = sampler.score  # the gap alarm's

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
        self.drawn = list(zip([list(prompt) for prompt in prompts for _ in range(n)], begun, strict=True))
        responses = []
        for (_, tokens), response, scores in zip(self.drawn, greedy, self._scores(), strict=True):
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

    def _scores(self):
        """The sampler's log-probs of the last responses; the embedded one has no way of scoring but its model."""
        if self.score is not None:
            return self.score(self.drawn)
        return [logprobs(self.sampler.model, *pair).numpy() for pair in self.drawn]

    def sync(self, weights):
        self.sampler.sync(weights)
        self.plain.model.load_state_dict(weights)
        pairs = zip(self._scores(), self.drawn, strict=True)
        self.apart.append(
            max(float(np.abs(scores - logprobs(self.plain.model, *pair).numpy()).max()) for scores, pair in pairs)
        )

    def sleep(self):
        self.sampler.sleep()

    def close(self):
        self.sampler.close()


def main(out: Path, jobs: dict[str, list[str]]) -> None:
    torch.set_num_threads(1)
    make: Any = setup.make_sampler
    started: dict[str, Any] = {}
    for name, overrides in jobs.items():
        apart: list[float] = []

        def make_sampler(config, *given, apart=apart):
            if config.sampler.kind == "torch":
                sampler = make(config, *given)
            else:
                sampler = started["vllm"] = started.get("vllm") or make(config, *given)
                sampler.sync(load_policy("package:laptop").model.state_dict())  # not the weights of the job before
                sampler.close = lambda: None
            return Branching(sampler, apart)

        setup.make_sampler = make_sampler
        train(compose([*RUN, *overrides, f"store={out / name}"]))
        if process_group.rank() == 0:
            (out / name / "sync.json").write_text(json.dumps(apart))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
