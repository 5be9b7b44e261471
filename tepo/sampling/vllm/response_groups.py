"""Parts of both vLLM samplers: what is asked for a response, and groups whose responses come one by one."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from tepo.common.errors import UserError
from tepo.common.randomness import derive
from tepo.sampling.sampler import Job, Response, SamplingParams


def sample_seed(key: int, index: int) -> int:
    """vLLM's seed of response `index` of the prompt with this key, in [0, 2^63).

    vLLM itself gives response i of n the seed s + i, so neighbouring prompt seeds share responses, and torch's CPU
    generator keeps only the low 32 bits. A hash per response needs no stride and has no such neighbours.
    """
    return derive(key, "vllm response", index) & (2**63 - 1)


class ResponseGroups:
    """Groups of responses in flight. A greedy group is drawn as one response and given `n` times."""

    def __init__(self, params: SamplingParams):
        self.params = params
        self.drawn: dict[int, tuple[SamplingParams, dict[int, Response]]] = {}

    def of(self, job: Job) -> SamplingParams:
        """Sampling parameters of a job."""
        return job.params or self.params

    def check(self, jobs: Sequence[Job], max_length: int) -> None:
        """Raises UserError when a prompt leaves too little room; vLLM would cut the response without a word."""
        for job in jobs:
            if len(job.prompt) + self.of(job).max_new_tokens > max_length:
                what = f"a prompt of {len(job.prompt)} tokens and {self.of(job).max_new_tokens} new ones do not fit"
                where = "train.max_prompt_tokens, train.max_new_tokens"
                fix = "make the sampler's length their sum, or drop overlong prompts (data.overlong_prompts=drop)"
                raise UserError(f"{what} into the sampler's {max_length}", where=where, fix=fix)

    def request(self, job: Job, index: int, stop_tokens: Sequence[int]) -> dict[str, Any]:
        """vLLM's sampling parameters of a response. stop_tokens: of the model."""
        params = self.of(job)
        return {
            "seed": sample_seed(job.key, index),
            "temperature": params.temperature,
            # said even where they leave nothing out: a server may have defaults of its own
            "min_p": params.min_p,
            "top_k": params.top_k,
            "top_p": params.top_p,
            "max_tokens": params.max_new_tokens,
            "logprobs": 0,
            "ignore_eos": True,  # the ids that stop are those given here, never those that vLLM finds in the files
            "stop_token_ids": sorted({*stop_tokens, *params.stop}),
        }

    def begin(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, int]]:
        """Every response to draw: its job and its index."""
        for job in jobs:
            self.drawn[job.number] = self.of(job), {}
            for index in range(job.first, job.first + _draws(self.of(job))):
                yield job, index

    def drop(self, numbers: Collection[int]) -> None:
        """Forget jobs, of which some may not be in flight."""
        self.drawn = {number: group for number, group in self.drawn.items() if number not in numbers}

    def put(self, number: int, index: int, response: Response) -> list[tuple[int, list[Response]]]:
        """Take a response; its group, where that is now complete."""
        params, responses = self.drawn[number]
        responses[index] = response
        if len(responses) < _draws(params):
            return []
        del self.drawn[number]
        return [(number, [responses[index] for index in sorted(responses)] * (params.n // len(responses)))]


def _draws(params: SamplingParams) -> int:
    return params.n if params.temperature > 0 else 1


def to_response(tokens: Sequence[int], logprobs: Sequence[float], reason: str) -> Response:
    """A Response from vLLM's fields; `reason` is "stop" or "length"."""
    assert len(tokens) == len(logprobs), "vLLM gave more than the sampled token's log-prob"
    return Response(np.asarray(tokens, np.int32), np.asarray(logprobs, np.float32), None, reason == "stop")
