"""A sampler, tokenizer and grader small enough to predict: what is under test is the evaluation around them."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tepo.common.randomness import uniform
from tepo.problems.benchmarks import Benchmark
from tepo.problems.problem import Problem
from tepo.problems.sources import Procedural
from tepo.sampling.embedded.torch_sampler import Waves
from tepo.sampling.sampler import Job, Response, SamplingParams


@dataclass(frozen=True)
class Letters:
    """Characters as code points; no chat template; id 0 ends a sequence."""

    chat_template: None = None
    name_or_path = "letters"
    all_special_ids = (0,)
    added_tokens_decoder: Mapping[int, Any] = field(default_factory=dict)
    special_tokens_map: Mapping[str, str] = field(default_factory=dict)

    def convert_ids_to_tokens(self, token: int) -> str:
        return chr(token)

    def __call__(self, texts: list[str], add_special_tokens: bool = True) -> dict[str, list[list[int]]]:
        return {"input_ids": [[ord(letter) for letter in text] for text in texts]}

    def batch_decode(self, rows: Sequence[Sequence[int]], skip_special_tokens: bool = False) -> list[str]:
        return ["".join(chr(token) for token in row if token or not skip_special_tokens) for row in rows]


class Dice:
    """Answers a digit drawn from the key alone, in a box; one in ten responses is cut off.
    Counts the prompts it was asked. Like the embedded sampler, it samples what is added together by itself."""

    score: None = None
    side_by_side: int | None = None
    parts: Mapping[str, str] = {"runner": "dice"}

    def __init__(self, stop_after: int | None = None):
        self.asked: list[str] = []
        self.stop_after = stop_after

    def start(self, params: SamplingParams) -> Any:
        def run(jobs: Sequence[Job]) -> list[list[Response]]:
            return self.sample([job.prompt for job in jobs], [job.key for job in jobs], jobs[0].params or params)

        return Waves(lambda jobs: None, run)

    def sample(self, prompts: Sequence[Sequence[int]], keys: Sequence[int], params: SamplingParams) -> list:
        self.asked += ["".join(map(chr, prompt)) for prompt in prompts]
        if self.stop_after is not None and len(self.asked) > self.stop_after:
            raise KeyboardInterrupt
        return [
            [self._answer(draw) for draw in uniform(torch.tensor(key), torch.arange(params.n)).tolist()] for key in keys
        ]

    def _answer(self, draw: float) -> Response:
        text = f"{int(draw * 1000)}\\boxed{{{int(draw * 3)}}}"
        finished = draw < 0.9
        tokens = np.array([ord(letter) for letter in text] + [0] * finished, dtype=np.int32)
        return Response(tokens, np.full(len(tokens), np.float32(-draw)), None, finished)

    def sync(self, weights: Mapping[str, torch.Tensor]) -> None: ...

    def sleep(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Verdict:
    correct: bool
    reason: str
    extracted: str | None
    seconds: float = 0.0


@dataclass
class LastBox:
    """Right when the boxed text is the gold;
    `also` names a text that counts as right too, as a later grader might decide."""

    fingerprint: str = "last-box"
    also: str = ""
    graded: int = 0

    def grade(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        self.graded += len(pairs)
        found = [(gold, text.rpartition("{")[2].rstrip("}")) for gold, text in pairs]
        return [
            Verdict(answer in (gold, self.also), "exact" if answer == gold else "different", answer)
            for gold, answer in found
        ]


class Ones(Benchmark):
    """A benchmark of `count` problems whose answer is always 1."""

    def load_problems(self) -> list[Problem]:
        return [Problem(f"one-{index}", f"{index}=", "1", "one") for index in range(self.count)]


def ones(count: int = 20, samples: int = 4, **more: object) -> Benchmark:
    settings = {"temperature": 1.0, "max_new_tokens": 16, "procedural": Procedural({}, 0)} | more
    return Ones(title="ones", name="ones", count=count, samples=samples, **settings)  # type: ignore[arg-type]


class Crowd(Dice):
    """The same responses from `side_by_side` rows at a time, of which any may end next. most: rows under way so far."""

    def __init__(self, side_by_side: int, seed: int, stop_after: int | None = None):
        super().__init__(stop_after)
        self.side_by_side, self.random, self.most = side_by_side, random.Random(seed), 0

    def start(self, params: SamplingParams) -> "CrowdQueue":
        return CrowdQueue(self, params)


class CrowdQueue:
    """A few groups at each look, or none."""

    def __init__(self, crowd: Crowd, params: SamplingParams):
        self.crowd, self.params, self.jobs = crowd, params, list[Job]()

    def add(self, jobs: Sequence[Job]) -> None:
        self.jobs += jobs
        self.crowd.most = max(self.crowd.most, sum((job.params or self.params).n for job in self.jobs))

    def finished(self, seconds: float | None = None) -> list[tuple[int, list[Response]]]:
        random_ = self.crowd.random
        random_.shuffle(self.jobs)
        ended = [self.jobs.pop() for _ in range(random_.randrange(min(len(self.jobs), 4) + 1))]
        return [(job.number, *self.crowd.sample([job.prompt], [job.key], job.params or self.params)) for job in ended]

    def abort(self) -> None:
        self.jobs.clear()
