"""One batch of rows from prompts to responses: prefill once a prompt, then one token of every live row a step."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from tepo.randomness import mix, uniform
from tepo.sampling.base import Response
from tepo.sampling.decoder import Decoder

GROWTH = 64  # columns added to the cache at a time
_MASKED = -1e30  # finite, so that padding, which sees nothing, gives no NaN
_LOGITS = 1 << 24  # elements of the logits held at a time


class Generation:
    """Rows are (prompt, sample) pairs, numbered by their place in `rows`; live ones occupy the first places of the cache."""

    def __init__(
        self,
        decoder: Decoder,
        prompts: Sequence[Sequence[int]],
        keys: Sequence[int],
        rows: Sequence[tuple[int, int]],
        temperature: float,
        max_new_tokens: int,
        stop: Sequence[int],
    ):
        self.decoder, self.temperature, self.max_new_tokens = decoder, temperature, max_new_tokens
        self.device = device = decoder.device
        used = list(dict.fromkeys(i for i, _ in rows))
        place = {i: p for p, i in enumerate(used)}
        self.width = max(len(prompts[i]) for i in used)
        pads = [self.width - len(prompts[i]) for i in used]
        self.prompts = torch.tensor([[0] * pad + list(prompts[i]) for pad, i in zip(pads, used, strict=True)], device=device)
        self.prompt_starts = torch.tensor(pads, device=device)
        self.prompt_of_row = torch.tensor([place[i] for i, _ in rows], device=device)
        self.padded = any(pads)
        prompt_keys = torch.tensor([keys[i] for i, _ in rows], dtype=torch.int64, device=device)
        self.keys = mix(prompt_keys, torch.tensor([j for _, j in rows], dtype=torch.int64, device=device))
        self.stops = torch.zeros(decoder.head.weight.shape[0], dtype=torch.bool, device=device)
        self.stops[torch.tensor(stop, dtype=torch.int64, device=device)] = True
        self.turns = decoder.turns(self.width + max_new_tokens)
        self.columns = torch.arange(self.width + max_new_tokens, device=device)
        self.record: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def run(self) -> list[Response]:
        """The responses, in the order of the rows."""
        decoder, starts = self.decoder, self.prompt_starts[self.prompt_of_row]
        masks = self._mask(self.columns < starts[:, None])
        cache, hidden = self._prefill()
        row = torch.arange(len(starts), device=self.device)
        start, mask = (starts, masks) if self.padded else (starts[:1], masks[:1])
        done = torch.zeros_like(row, dtype=torch.bool)
        for step in range(self.max_new_tokens):
            tokens = self._draw(hidden, row, step)
            done |= self.stops[tokens]
            if step + 1 == self.max_new_tokens:
                break
            column = self.width + step
            finished = int(done.sum())
            if finished == len(done):
                break
            if finished * 16 >= len(done):
                live = len(done) - finished
                target = done[:live].nonzero()[:, 0]
                source = (~done[live:]).nonzero()[:, 0] + live
                cache.move(source, target, column)
                row = row.index_copy(0, target, row[source])[:live]
                tokens = tokens.index_copy(0, target, tokens[source])[:live]
                done = torch.zeros_like(row, dtype=torch.bool)
                if self.padded:
                    start, mask = starts[row], masks[row]
            if column == cache.capacity:
                cache.grow(len(row), min(column + GROWTH, len(self.columns)))
            hidden = decoder.step(tokens, column, self.turns[column - start], mask, cache)
        return self._responses()

    def _prefill(self):
        """The cache with a row for every sample, and the hidden states of the last prompt tokens."""
        starts = self.prompt_starts[:, None]
        columns = self.columns[: self.width]
        mask = None
        if self.padded:
            mask = self._mask((columns > columns[:, None]) | (columns < starts[..., None]))[:, 0, 0, :, :][:, None]
        cache = self.decoder.cache(len(self.prompts), self.width)
        turns = self.turns[(columns - starts).clamp_min(0).flatten()]
        hidden = self.decoder.prefill(self.prompts, turns, mask, cache)
        capacity = self.width + min(self.max_new_tokens, GROWTH)
        return cache.expanded(self.prompt_of_row, capacity), hidden[self.prompt_of_row]

    def _mask(self, hidden: Tensor) -> Tensor:
        """Additive mask with two more dimensions before the last."""
        return torch.where(hidden, _MASKED, 0.0).to(self.decoder.dtype)[:, None, None]

    def _draw(self, hidden: Tensor, row: Tensor, step: int) -> Tensor:
        """One token a row, its log-probability and entropy noted."""
        if step % GROWTH == 0:
            steps = torch.arange(step, step + GROWTH, device=self.device)
            self.uniforms = uniform(self.keys, steps[:, None]).float()
        points = self.uniforms[step % GROWTH][row]
        size = max(1, _LOGITS // len(self.stops))
        parts = [self._draw_from(self.decoder.logits(h), u) for h, u in zip(hidden.split(size), points.split(size), strict=True)]
        tokens, logprobs, entropies = parts[0] if len(parts) == 1 else (torch.cat(part) for part in zip(*parts, strict=True))
        self.record.append((row, tokens, logprobs, entropies))
        return tokens

    def _draw_from(self, logits: Tensor, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Invert the cumulative distribution at `points`, or take the most probable token."""
        if self.temperature not in (0.0, 1.0):
            logits = logits / self.temperature
        logprobs = logits.log_softmax(-1)
        probabilities = logprobs.exp()
        if self.temperature == 0.0:
            tokens = logits.argmax(-1, keepdim=True)
        else:
            cumulative = probabilities.cumsum(-1)
            # Scaled to the rounded total, so that the last token of positive probability is the last that can be drawn.
            tokens = torch.searchsorted(cumulative, points[:, None] * cumulative[:, -1:])
        return tokens[:, 0], logprobs.gather(1, tokens)[:, 0], -torch.linalg.vecdot(probabilities, logprobs)

    def _responses(self) -> list[Response]:
        """Sort the record by row and cut each row after its end."""
        row, tokens, logprobs, entropies = (torch.cat(parts) for parts in zip(*self.record, strict=True))
        order = row.argsort(stable=True)
        ended = self.stops[tokens][order].cpu().numpy()
        flat = [part[order].cpu().numpy() for part in (tokens.int(), logprobs, entropies)]
        bounds = torch.bincount(row).cumsum(0).tolist()
        responses = []
        for low, high in pairwise([0, *bounds]):
            first = int(ended[low:high].argmax())
            finished = bool(ended[low + first])
            high = low + first + 1 if finished else high
            responses.append(Response(*(part[low:high] for part in flat), finished))
        return responses
