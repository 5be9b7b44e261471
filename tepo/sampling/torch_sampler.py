"""The embedded sampler: batched generation inside the training process, on the live weights."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from tepo.errors import UserError
from tepo.sampling.cache import Arena
from tepo.sampling.cache_size import CPU_BYTES, gpu_cache_bytes, row_bytes
from tepo.sampling.decoder import Decoder, check_supported, longest
from tepo.sampling.forward import KERNELS
from tepo.sampling.generation import Generation, Shared
from tepo.sampling.sampler import OnGroup, Response, SamplingParams
from tepo.sampling.stop_tokens import stop_tokens

_KEPT = 64 << 20  # bytes of a buffer that stay allocated between calls


class TorchSampler:
    """`tepo.sampling.sampler.Sampler` for Hugging Face llama-like models, on the device and in the type of the model.

    Each `sample` reads the weights of `model` as they are then. It needs, for the call, a second copy of the layers'
    weights and the key-value cache. max_rows: sequences generated side by side; cache_bytes: bound on the cache, which
    lowers that number for long responses (None: what is free at each call, see `free_bytes`); graphs: on a GPU, steps
    as CUDA graphs.
    """

    score = None  # it keeps no prefixes between calls

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_rows: int = 1024,
        cache_bytes: int | None = None,
        graphs: bool = True,
    ):
        check_supported(model.config)
        self.model, self.max_rows, self.cache_bytes, self.graphs = model, max_rows, cache_bytes, graphs
        self.arenas: tuple[Arena, Arena] | None = None
        self.stop = stop_tokens(model, tokenizer)

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        keys: Sequence[int],
        params: SamplingParams,
        *,
        on_group: OnGroup | None = None,
    ) -> list[list[Response]]:
        """See `Sampler.sample`.
        Raises UserError for an empty prompt, a length beyond the model, a negative temperature."""
        self._check(prompts, keys, params)
        results: list[list[Response]] = [[] for _ in prompts]
        with torch.inference_mode(), sdpa_kernel(KERNELS):
            decoder = Decoder(self.model)
            arenas = self.arenas = self.arenas or (
                Arena(decoder.dtype, decoder.device),
                Arena(decoder.dtype, decoder.device),
            )
            graphs = self.graphs and decoder.device.type == "cuda"
            shared = Shared(decoder, arenas, self.stop, graphs)
            # Longest first: rows side by side are padded to the longest prompt among them.
            waiting = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
            cache_bytes = free_bytes(decoder.device) if self.cache_bytes is None else self.cache_bytes
            while waiting:
                room = self._room(decoder, len(prompts[waiting[0]]) + params.max_new_tokens, cache_bytes)
                together = max(1, room // params.n)
                chunk, waiting = waiting[:together], waiting[together:]
                for first in range(0, params.n, room):
                    count = min(room, params.n - first)
                    part, part_keys = [prompts[i] for i in chunk], [keys[i] for i in chunk]
                    responses = Generation(shared, part, part_keys, replace(params, n=count), first).run()
                    for place, i in enumerate(chunk):
                        results[i] += responses[place * count : (place + 1) * count]
                for i in chunk if on_group else ():
                    on_group(i, results[i])  # type: ignore[misc]
            for arena in arenas:
                arena.reset(keep=_KEPT)
        return results

    def sync(self, weights: Mapping[str, Tensor]) -> None:
        """Load the trainer's weights, for a trainer whose model is another object."""
        self.model.load_state_dict(weights)

    def sleep(self) -> None:
        """The weights are the trainer's and the cache lives for a call: give torch's store of freed memory back, in
        which the cache is one large piece."""
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def close(self) -> None:
        """Give the buffers back."""
        self.arenas = None

    def _room(self, decoder: Decoder, length: int, cache_bytes: int) -> int:
        """Rows of `length` tokens whose cache fits."""
        numbers = 2 * len(decoder.layers) * decoder.kv_heads * decoder.head_dim
        per_row = row_bytes(numbers, decoder.dtype.itemsize, length, gpu=decoder.device.type == "cuda")
        return max(1, min(self.max_rows, cache_bytes // per_row))

    def _check(self, prompts: Sequence[Sequence[int]], keys: Sequence[int], params: SamplingParams) -> None:
        if len(prompts) != len(keys):
            raise ValueError(f"{len(prompts)} prompts but {len(keys)} keys")
        if params.n < 1 or params.max_new_tokens < 1 or params.temperature < 0:
            what = f"n is {params.n}, max_new_tokens {params.max_new_tokens}, temperature {params.temperature}"
            raise UserError(what, fix="the first two must be at least 1, the temperature not negative")
        lengths = [len(prompt) for prompt in prompts]
        if 0 in lengths:
            raise UserError(f"prompt {lengths.index(0)} is empty", fix="give every prompt at least one token")
        limit = longest(self.model.config)
        if max(lengths, default=0) + params.max_new_tokens > limit:
            what = (
                f"a prompt of {max(lengths)} tokens and {params.max_new_tokens} new ones "
                f"exceed the {limit} the model can attend to"
            )
            raise UserError(what, fix="lower the response length, or take another model")


def free_bytes(device: torch.device) -> int:
    """Bytes that the cache may take: on a GPU what is free once torch has given back what it only keeps, less a
    reserve."""
    if device.type != "cuda":
        return CPU_BYTES
    torch.cuda.empty_cache()
    return gpu_cache_bytes(*torch.cuda.mem_get_info(device))
