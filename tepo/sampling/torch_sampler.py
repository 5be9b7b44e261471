"""The embedded sampler: batched generation inside the training process, on the live weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tepo.errors import UserError
from tepo.randomness import mix, uniform
from tepo.sampling.base import Response
from tepo.sampling.cache import KeyValueCache
from tepo.sampling.decoder import Decoder

_FUSE_BELOW = 1 << 28  # bytes of weights: above, the fused copies would cost memory and gain nothing
_GROWTH = 64  # columns added to the cache at a time
_MASKED = -1e30  # finite, so that a row without any visible column gives no NaN


class TorchSampler:
    """`tepo.sampling.base.Sampler` for Hugging Face llama-like models, on the device and in the type of the model.

    The weights are the model's own: in-place updates by an optimiser are seen by the next `sample`. max_rows: sequences
    generated at a time; cache_bytes: bound on the key-value cache, which lowers max_rows for long responses.
    """

    def __init__(self, model: Any, tokenizer: Any, *, max_rows: int = 1024, cache_bytes: int = 4 << 30):
        self.model = model
        weight_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        self.decoder = Decoder(model, fuse=weight_bytes < _FUSE_BELOW)
        self.max_rows, self.cache_bytes = max_rows, cache_bytes
        self.stop = sorted(_stop_tokens(model, tokenizer))

    def sample(self, prompts: Sequence[Sequence[int]], keys: Sequence[int], *, n: int, temperature: float, max_new_tokens: int) -> list[list[Response]]:
        """See `Sampler.sample`. Raises UserError for empty prompts, lengths beyond the model, a negative temperature."""
        _check(self.model.config, prompts, keys, n, temperature, max_new_tokens)
        results: list[list[Response | None]] = [[None] * n for _ in prompts]
        with torch.inference_mode():
            self.decoder.refresh()
            longest_first = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
            slots = [(i, j) for i in longest_first for j in range(n)]
            while slots:
                room = self._rows(len(prompts[slots[0][0]]) + max_new_tokens)
                chunk, slots = slots[:room], slots[room:]
                responses = _Generation(self.decoder, prompts, keys, chunk, temperature, max_new_tokens, self.stop).run()
                for (i, j), response in zip(chunk, responses, strict=True):
                    results[i][j] = response
        return results  # type: ignore[return-value]

    def sync(self, weights: Mapping[str, Tensor]) -> None:
        """Load the trainer's weights when its model is another object; strict, apart from a tied `lm_head.weight`."""
        self.model.load_state_dict(weights)

    def close(self) -> None:
        """Nothing is held between calls."""

    def _rows(self, length: int) -> int:
        """Rows whose cache fits the budget."""
        d = self.decoder
        per_row = 2 * len(d.layers) * d.kv_heads * d.head_dim * length * d.dtype.itemsize
        return max(1, min(self.max_rows, self.cache_bytes // per_row))


@dataclass(slots=True)
class _Rows:
    """What is known of each live row: where its prompt starts (left padding), its random key, its slot, whether it ended."""

    start: Tensor
    key: Tensor
    slot: Tensor
    done: Tensor
    mask: Tensor | None


class _Generation:
    """One chunk of rows from prompts to responses."""

    def __init__(self, decoder: Decoder, prompts, keys, chunk: list[tuple[int, int]], temperature: float, max_new_tokens: int, stop: list[int]):
        self.decoder, self.temperature, self.max_new_tokens = decoder, temperature, max_new_tokens
        device = decoder.device
        unique = list(dict.fromkeys(i for i, _ in chunk))
        place = {i: p for p, i in enumerate(unique)}
        self.width = max(len(prompts[i]) for i in unique)
        padded = np.zeros((len(unique), self.width), dtype=np.int64)
        for p, i in enumerate(unique):
            padded[p, self.width - len(prompts[i]) :] = prompts[i]
        self.prompts = torch.from_numpy(padded).to(device)
        self.starts = torch.tensor([self.width - len(prompts[i]) for i in unique], device=device)
        self.expand = torch.tensor([place[i] for i, _ in chunk], device=device)
        base = torch.tensor([keys[i] for i, _ in chunk], dtype=torch.int64, device=device)
        self.key = mix(base, torch.tensor([j for _, j in chunk], dtype=torch.int64, device=device))
        self.stop = torch.tensor(stop, device=device)
        self.cos, self.sin = decoder.rope(self.width + max_new_tokens)
        self.steps: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def run(self) -> list[Response]:
        """Generate; responses in the order of the chunk."""
        hidden, cache = self._prefill()
        start = self.starts[self.expand]
        padded = bool((start > 0).any())
        columns = torch.arange(self.width + self.max_new_tokens, device=start.device)
        mask = torch.where(columns < start[:, None], _MASKED, 0.0) if padded else None
        rows = _Rows(start, self.key, torch.arange(len(start), device=start.device), torch.zeros_like(start, dtype=torch.bool), mask)
        for step in range(self.max_new_tokens):
            tokens = self._choose(self.decoder.logits(hidden), rows, step)
            if step == self.max_new_tokens - 1:
                break
            live, tokens = self._compact(rows, tokens, cache, self.width + step)
            if live == 0:
                break
            column = self.width + step
            if column == cache.capacity:
                cache = cache.resized(torch.arange(live, device=start.device), column + _GROWTH, column)
            position = column - rows.start if padded else torch.tensor([column], device=start.device)
            cos, sin = self.cos[position, None], self.sin[position, None]
            mask = None if rows.mask is None else rows.mask.repeat_interleave(self.decoder.kv_heads, 0)[:, None]
            hidden = self.decoder.step(tokens, column, cos, sin, mask, cache)
        return self._responses()

    def _prefill(self) -> tuple[Tensor, KeyValueCache]:
        """Each prompt once, then one row per sample."""
        positions = (torch.arange(self.width, device=self.starts.device) - self.starts[:, None]).clamp_min(0)
        mask = None
        if bool((self.starts > 0).any()):
            columns = torch.arange(self.width, device=self.starts.device)
            hidden_columns = (columns[None, None, :] > columns[None, :, None]) | (columns[None, None, :] < self.starts[:, None, None])
            mask = torch.where(hidden_columns[:, None], _MASKED, 0.0).to(self.decoder.dtype)
        cache = self.decoder.cache(len(self.prompts), self.width)
        hidden = self.decoder.prefill(self.prompts, self.cos[positions], self.sin[positions], mask, cache)
        return hidden[self.expand], cache.resized(self.expand, self.width + min(self.max_new_tokens, _GROWTH), self.width)

    def _choose(self, logits: Tensor, rows: _Rows, step: int) -> Tensor:
        """Draw one token a row by inverting the cumulative distribution, and note its log-probability and entropy."""
        if self.temperature not in (0.0, 1.0):
            logits = logits / self.temperature
        probabilities = logits.softmax(-1)
        if self.temperature == 0.0:
            tokens = logits.argmax(-1, keepdim=True)
        else:
            cumulative = probabilities.cumsum(-1)
            point = uniform(rows.key, torch.tensor(step, device=rows.key.device)).float()[:, None] * cumulative[:, -1:]
            tokens = torch.searchsorted(cumulative, point)
        entropies = torch.special.entr(probabilities).sum(-1)
        self.steps.append((rows.slot, tokens[:, 0], probabilities.gather(1, tokens)[:, 0], entropies))
        rows.done = rows.done | torch.isin(tokens[:, 0], self.stop)
        return tokens[:, 0]

    def _compact(self, rows: _Rows, tokens: Tensor, cache: KeyValueCache, used: int) -> tuple[int, Tensor]:
        """Fill the places of finished rows with rows from the end, when enough have finished."""
        count, finished = len(rows.done), int(rows.done.sum())
        if finished == 0 or (finished < count and finished * 16 < count):
            return count, tokens
        live = count - finished
        target = rows.done[:live].nonzero()[:, 0]
        source = (~rows.done[live:]).nonzero()[:, 0] + live
        cache.move(source, target, used)
        order = torch.arange(live, device=target.device)
        order[target] = source
        rows.start, rows.key, rows.slot, rows.done = rows.start[order], rows.key[order], rows.slot[order], rows.done[order]
        rows.mask = None if rows.mask is None else rows.mask[order]
        return live, tokens[order]

    def _responses(self) -> list[Response]:
        """Sort the flat record by row and cut each at its end."""
        slot, tokens, probabilities, entropies = (torch.cat(parts) for parts in zip(*self.steps, strict=True))
        order = slot.argsort(stable=True)
        ended = torch.isin(tokens, self.stop)[order].cpu().numpy()
        tokens_np = tokens[order].to(torch.int32).cpu().numpy()
        logprobs = probabilities[order].log().cpu().numpy()
        entropies_np = entropies[order].cpu().numpy()
        bounds = np.concatenate([[0], torch.bincount(slot).cumsum(0).cpu().numpy()])
        responses = []
        for low, high in pairwise(bounds.tolist()):
            first = int(ended[low:high].argmax())
            finished = bool(ended[low + first])
            high = low + first + 1 if finished else high
            responses.append(Response(tokens_np[low:high], logprobs[low:high], entropies_np[low:high], finished))
        return responses


def _stop_tokens(model: Any, tokenizer: Any) -> set[int]:
    """End-of-sequence ids of the tokenizer and of the model's generation settings."""
    generation = getattr(model, "generation_config", None)
    ids = [tokenizer.eos_token_id, getattr(generation, "eos_token_id", None)]
    return {int(i) for entry in ids if entry is not None for i in (entry if isinstance(entry, list) else [entry])}


def _check(config, prompts, keys, n: int, temperature: float, max_new_tokens: int) -> None:
    if len(prompts) != len(keys):
        raise ValueError(f"{len(prompts)} prompts but {len(keys)} keys")
    if n < 1 or max_new_tokens < 1 or temperature < 0:
        raise UserError(f"n {n}, max_new_tokens {max_new_tokens}, temperature {temperature}: the first two must be at least 1, the last not negative")
    if any(len(prompt) == 0 for prompt in prompts):
        raise UserError("an empty prompt", fix="give every prompt at least one token")
    longest = max((len(prompt) for prompt in prompts), default=0) + max_new_tokens
    if longest > config.max_position_embeddings:
        raise UserError(f"prompt and response of {longest} tokens exceed the model's {config.max_position_embeddings}", fix="lower max_new_tokens")
