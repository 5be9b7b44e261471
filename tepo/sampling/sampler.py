"""What every sampler gives and takes. Implementations: `torch_sampler` (embedded), `vllm_sampler`, `vllm_server`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Response:
    """One sampled response.

    tokens: int32 [T], including the end-of-sequence token when `finished`. logprobs: float32 [T], log pi(token) of the
    temperature-scaled policy it was drawn from (temperature 1 for greedy). entropies: float32 [T] in nats, full
    vocabulary, or None when the sampler cannot give them (vLLM). finished: False when cut at the length limit.
    """

    tokens: np.ndarray
    logprobs: np.ndarray
    entropies: np.ndarray | None
    finished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to draw.

    n: responses for each prompt. temperature: 0 is greedy. max_new_tokens: the length limit, end-of-sequence included.
    """

    n: int
    temperature: float
    max_new_tokens: int


OnGroup = Callable[[int, list[Response]], None]
"""Takes the place of a prompt and its finished group, while other groups are still being sampled."""

Score: TypeAlias = Callable[[Sequence[tuple[Sequence[int], Sequence[int]]]], list[np.ndarray] | None]
"""Log-probs (float32 [T], temperature 1) of given responses after given prompts, made without a prefix cache; None
while the sampler sleeps."""


class Sampler(Protocol):
    """Groups of responses from the current policy."""

    @property
    def score(self) -> Score | None:
        """None for a sampler that cannot."""
        ...

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        keys: Sequence[int],
        params: SamplingParams,
        *,
        on_group: OnGroup | None = None,
    ) -> list[list[Response]]:
        """`params.n` responses for each prompt (token ids). Response i of a prompt is a function of
        (weights, prompt, its key, i) alone: keys are signed 64-bit (`tepo.randomness.derive`).
        `on_group` is called once for each prompt, from the calling thread, as early as the sampler knows the group."""
        ...

    def sync(self, weights: Mapping[str, Tensor]) -> None:
        """Take new weights (a full `state_dict`, `lm_head.weight` present also for tied models)."""
        ...

    def sleep(self) -> None:
        """Give device memory back until the next `sync`, where the sampler has memory of its own."""
        ...

    def close(self) -> None:
        """Give memory, processes and connections back."""
        ...
