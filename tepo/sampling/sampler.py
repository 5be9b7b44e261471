"""Interface of every sampler. Implementations: `torch_sampler` (embedded), `vllm_sampler`, `vllm_server`; an evaluation
takes `served` for one, with text in place of tokens."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Response:
    """One sampled response of T tokens."""

    tokens: np.ndarray  # int32 [T], with the end-of-sequence token when `finished`
    logprobs: np.ndarray  # float32 [T], of the distribution that it was drawn from (greedy: the policy's at 1)
    entropies: np.ndarray | None  # float32 [T] in nats, of the same distribution; None from vLLM, which gives none
    finished: bool  # False when cut at the length limit

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def logprob(self) -> float:
        """Of the whole response, in nats."""
        return float(self.logprobs.sum(dtype="float64"))


def response_texts(responses: Sequence[Response], tokenizer: Any) -> list[str]:
    """Their texts, without special tokens and without what ended them, which may be a token that is none."""
    tokens = [response.tokens[: len(response.tokens) - response.finished].tolist() for response in responses]
    return list(tokenizer.batch_decode(tokens, skip_special_tokens=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of the draws.

    A token is drawn from the softmax at the temperature, less the tokens that the filters leave out, in vLLM's order:
    each looks at what the ones before it left, scaled to 1. Tokens of equal probability are left out together or not
    at all. A greedy response takes no notice of them.
    """

    n: int  # responses for each prompt
    temperature: float  # 0 is greedy
    max_new_tokens: int  # the length limit, end-of-sequence included
    stop: tuple[int, ...] = ()  # ids that end a response beside the model's own: the end of a chat template's turn
    min_p: float = 0.0  # in [0, 1]; leaves out what has less than so much of the probability of the likeliest
    top_k: int = 0  # leaves out all but so many of the likeliest; 0: none
    top_p: float = 1.0  # in (0, 1]; leaves out what those likelier than it reach this sum without


@dataclass(frozen=True, slots=True)
class Job:
    """A group to sample, or a part of one."""

    number: int  # the caller's name for it, unlike that of any other in flight
    prompt: Sequence[int]  # token ids
    key: int  # signed 64-bit (`randomness.derive`)
    first: int = 0  # index of its first response, where it is a part of a group
    params: SamplingParams | None = None  # where not those of the queue; the same for all jobs of an `add`


class Queue(Protocol):
    """Groups in flight at a sampler, with the weights it holds: abort or finish them before its next `sync`.
    Response i of a group is a function of (weights, prompt, key, i) alone."""

    def add(self, jobs: Sequence[Job]) -> None:
        """Start `params.n` responses for each job, beside those in flight."""
        ...

    def finished(self, seconds: float | None = None) -> list[tuple[int, list[Response]]]:
        """(number, responses) of the groups that became complete since the last call, each once, in any order.

        Waits until there is one, and gives [] when nothing is in flight. With `seconds` it returns after about that
        long whatever there is, so that ranks can meet.
        """
        ...

    def drop(self, numbers: Collection[int]) -> None:
        """Give up these jobs, and free their memory. Those that cannot be given up without a change to others, which
        are decoded with them, are returned nevertheless."""
        ...

    def abort(self) -> None:
        """Give up all that is in flight; nothing of it is returned later, and its memory is free. The queue can be used
        again."""
        ...


Score: TypeAlias = Callable[[Sequence[tuple[Sequence[int], Sequence[int]]]], list[np.ndarray] | None]
"""Log-probs (float32 [T], temperature 1) of given responses after given prompts, made without a prefix cache; None
while the sampler sleeps."""


class Sampler(Protocol):
    """Groups of responses from the current policy. Samplers inherit what they do not say otherwise."""

    side_by_side: int | None = None
    """Responses that it decodes at a time, on all of its engines, whatever is added when. None where the jobs of an
    `add` are decoded by themselves, and the last bits of a response depend on all of them."""
    score: Score | None = None
    """None for a sampler that cannot."""
    parts: Mapping[str, str] = MappingProxyType({})
    """Of its engine, by name: what runs may differ with the device, and the responses with it. For the provenance."""
    watch: Callable[[list[int]], None] | None = None
    """Called with the next token of each response that is being decoded, by a sampler that decodes step by step."""

    def start(self, params: SamplingParams) -> Queue:
        """An empty queue. One queue of a sampler has groups in flight at a time."""
        ...

    def sample(
        self, prompts: Sequence[Sequence[int]], keys: Sequence[int], params: SamplingParams
    ) -> list[list[Response]]:
        """`params.n` responses for each prompt (token ids), in the order of the prompts. Response i of a prompt is a
        function of (weights, prompt, its key, i) alone."""
        jobs = [Job(number, prompt, key) for number, (prompt, key) in enumerate(zip(prompts, keys, strict=True))]
        queue, groups = self.start(params), dict[int, list[Response]]()
        try:
            queue.add(jobs)
            while len(groups) < len(jobs):
                groups.update(queue.finished())
        finally:
            queue.abort()  # where it did not come to an end
        return [groups[job.number] for job in jobs]

    def sync(self, weights: "Mapping[str, Tensor]") -> None:
        """Take new weights (a full `state_dict`, `lm_head.weight` present also for tied models)."""
        ...

    def sleep(self) -> None:
        """Give device memory back until the next `sync`, where the sampler has memory of its own here."""
        return

    def close(self) -> None:
        """Give memory, processes and connections back."""
        ...
