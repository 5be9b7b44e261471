"""The embedded sampler: batched generation inside the training process, on the live weights."""

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from tepo.common.errors import UserError
from tepo.sampling.embedded.decode_forward import KERNELS
from tepo.sampling.embedded.decoder import Decoder, check_supported, longest
from tepo.sampling.embedded.generation import Generation
from tepo.sampling.embedded.kv_cache import CPU_BYTES, Arena, gpu_cache_bytes, row_bytes
from tepo.sampling.sampler import Job, Response, Sampler, SamplingParams
from tepo.sampling.stop_tokens import stop_tokens

_KEPT = 64 << 20  # bytes of a buffer that stay allocated between batches
# A step reads the keys and values of all its rows. On a CPU a batch takes up to twice the time a row when they outgrow
# the cache. So it is cut at so many bytes, but not below so many rows, for which a step's fixed cost counts.
_SWIFT, _LEAST = 12 << 20, 128


class TorchSampler(Sampler):
    """Sampler for Hugging Face llama-like models, on the device and in the type of the model.

    Each batch reads the weights of `model` as they are then. It needs, while it runs, a second copy of the layers'
    weights and the key-value cache, and keeps no prefixes between batches. max_rows: sequences generated side by side,
    fewer where their cache is more than `free_bytes`; graphs: on a GPU, steps as CUDA graphs.
    """

    def __init__(self, model: Any, tokenizer: Any, *, max_rows: int = 1024, graphs: bool = True):
        check_supported(model.config)
        self.model, self.max_rows, self.graphs = model, max_rows, graphs
        self.arenas: tuple[Arena, ...] | None = None  # two, see `Generation`
        self.stop = stop_tokens(model, tokenizer)

    def start(self, params: SamplingParams) -> "Waves":
        """See `Sampler.start`. Raises UserError for a negative temperature, for lengths and counts below 1, and for
        filters out of their bounds."""
        if params.n < 1 or params.max_new_tokens < 1 or params.temperature < 0:
            what = f"n is {params.n}, max_new_tokens {params.max_new_tokens}, temperature {params.temperature}"
            raise UserError(what, fix="the first two must be at least 1, the temperature not negative")
        if not (0 < params.top_p <= 1 and params.top_k >= 0 and 0 <= params.min_p <= 1):
            what = f"top_p is {params.top_p}, top_k {params.top_k}, min_p {params.min_p}"
            raise UserError(what, fix="top_p above 0 and at most 1, top_k at least 0, min_p between 0 and 1")
        return Waves(partial(self._check, params), partial(self._batch, params))

    def _batch(self, params: SamplingParams, jobs: Sequence[Job]) -> list[list[Response]]:
        """Groups of as many of the first jobs as fit side by side, of which the first has the longest prompt."""
        params = jobs[0].params or params
        with torch.inference_mode(), sdpa_kernel(KERNELS):
            decoder = Decoder(self.model)
            arenas = self.arenas = self.arenas or tuple(Arena(decoder.dtype, decoder.device) for _ in range(2))
            params = replace(params, stop=tuple({*self.stop, *params.stop}))
            graphs = self.graphs and decoder.device.type == "cuda"
            room = self._room(decoder, len(jobs[0].prompt) + params.max_new_tokens)
            batches = math.ceil(len(jobs) / max(1, room // params.n))
            jobs = jobs[: math.ceil(len(jobs) / batches)]
            groups: list[list[Response]] = [[] for _ in jobs]
            try:
                for first in range(0, params.n, room):
                    part = replace(params, n=min(room, params.n - first))
                    moved = [replace(job, first=job.first + first) for job in jobs]
                    responses = Generation(decoder, arenas, moved, part, graphs=graphs, watch=self.watch).run()
                    for index, group in enumerate(groups):
                        group += responses[index * part.n : (index + 1) * part.n]
            finally:  # also where Ctrl-C ends a response, and others are to follow
                for arena in arenas:
                    arena.reset(keep=_KEPT)
        return groups

    def sync(self, weights: Mapping[str, Tensor]) -> None:
        """Take the trainer's weights, one tensor after another, for a trainer whose model is another object."""
        own_weights = self.model.state_dict()
        if own_weights.keys() != weights.keys():
            raise ValueError(f"weights of another model: they differ in {sorted(own_weights.keys() ^ weights.keys())}")
        for name, value in weights.items():
            own_weights[name].copy_(value)

    def sleep(self) -> None:
        """The weights are the trainer's and the cache lives for a batch: give torch's store of freed memory back, in
        which the cache is one large piece."""
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def close(self) -> None:
        """Give the buffers back."""
        self.arenas = None

    def _room(self, decoder: Decoder, length: int) -> int:
        """Rows of `length` tokens whose cache fits."""
        numbers = 2 * len(decoder.layers) * decoder.kv_heads * decoder.head_dim
        gpu = decoder.device.type == "cuda"
        per_row = row_bytes(numbers, decoder.dtype.itemsize, length, gpu=gpu)
        swift = self.max_rows if gpu else max(_LEAST, _SWIFT // (numbers * decoder.dtype.itemsize * length))
        return max(1, min(self.max_rows, swift, free_bytes(decoder.device) // per_row))

    def _check(self, params: SamplingParams, jobs: Sequence[Job]) -> None:
        """Raise UserError for an empty prompt or a length beyond the model."""
        limit = longest(self.model.config)
        max_new_tokens = max(((job.params or params).max_new_tokens for job in jobs), default=0)
        for job in jobs:
            if len(job.prompt) == 0:
                raise UserError(f"prompt {job.number} is empty", fix="give every prompt at least one token")
            if len(job.prompt) + max_new_tokens > limit:
                what = f"a prompt of {len(job.prompt)} tokens and {max_new_tokens} new ones exceed the {limit}"
                raise UserError(f"{what} the model can attend to", fix="shorter responses, or another model")


class Waves:
    """`tepo.sampling.sampler.Queue`: the jobs of one `add` are a wave, sampled together and with no others; each
    `finished` runs one batch.

    Which rows run together decides the shapes of their products, and so the last bits of their results. So that the
    bits of a response depend on its `add` alone, a wave never takes in rows of another, whatever is queued, finished or
    aborted.

    check: raises UserError for jobs that cannot be sampled. run: samples as many of the first jobs as fit together, at
    least one, and gives their groups.
    """

    def __init__(
        self, check: Callable[[Sequence[Job]], None], run: Callable[[Sequence[Job]], Sequence[list[Response]]]
    ):
        self.check, self.run = check, run
        self.waves: deque[list[Job]] = deque()

    def add(self, jobs: Sequence[Job]) -> None:
        """See `Queue.add`. Raises UserError for an empty prompt or a length beyond the model."""
        self.check(jobs)
        if jobs:
            # Longest first: rows side by side are padded to the longest prompt among them.
            self.waves.append(sorted(jobs, key=lambda job: -len(job.prompt)))

    def finished(self, seconds: float | None = None) -> list[tuple[int, list[Response]]]:
        """The groups of the next batch. It runs to its end however few `seconds` are given."""
        if not self.waves:
            return []
        wave = self.waves[0]
        groups = self.run(wave)
        self.waves[0] = wave[len(groups) :]
        if not self.waves[0]:
            self.waves.popleft()
        return [(job.number, group) for job, group in zip(wave, groups, strict=False)]

    def drop(self, numbers: Collection[int]) -> None:
        """See `Queue.drop`. A wave is dropped only as a whole: a smaller one would be cut into other batches."""
        self.waves = deque(wave for wave in self.waves if not {job.number for job in wave} <= set(numbers))

    def abort(self) -> None:
        """Drop the waves, and what is left of one that was begun."""
        self.waves.clear()


def free_bytes(device: torch.device) -> int:
    """Bytes that the cache may take: on a GPU what is free once torch has given back what it only keeps, less a
    reserve."""
    if device.type != "cuda":
        return CPU_BYTES
    torch.cuda.empty_cache()
    return gpu_cache_bytes(*torch.cuda.mem_get_info(device))
