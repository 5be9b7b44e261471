"""One batch of rows from prompts to responses: prefill once a prompt, then one token of every live row a step."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from tepo.common.errors import Diverged
from tepo.common.randomness import mix, uniform
from tepo.sampling.embedded.decode_forward import GraphedStep, Stepper, Workspace, prefill
from tepo.sampling.embedded.decoder import Decoder
from tepo.sampling.embedded.filters import filter_logits, filtered
from tepo.sampling.embedded.kv_cache import GROWTH, Arena, KeyValueCache
from tepo.sampling.sampler import Job, Response, SamplingParams

# The columns looked at grow by this many at a time; fewer times where each captures a graph.
_WINDOW, _GRAPHED_WINDOW = 8, GROWTH
_IDLE, _GRAPHED_IDLE = 1 / 16, 1 / 4  # share of the rows that has ended when the others are moved together
_PREFILL = 8192  # prompt tokens read at a time
_LOGITS = 1 << 24  # elements of the logits held at a time


class Generation:
    """`params.n` samples of each job, until one of all ids in `params.stop`; a row is (prompt, sample), the live ones
    come first in the cache. arenas: for the cache, and for what a step computes. graphs: steps as CUDA graphs.

    A row holds its prompt in the columns 0 …, then a gap up to the longest prompt, then its response: so all rows write
    the same column at the same step.
    """

    def __init__(
        self,
        decoder: Decoder,
        arenas: tuple[Arena, ...],
        jobs: Sequence[Job],
        params: SamplingParams,
        *,
        graphs: bool,
        watch: Callable[[list[int]], None] | None = None,
    ):
        self.decoder, self.arenas, self.graphs, self.count, self.watch = decoder, arenas, graphs, params.n, watch
        self.temperature, self.max_new_tokens = params.temperature, params.max_new_tokens
        self.params, self.filtered = params, filtered(params)

        def integers(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=decoder.device)

        self.prompts = [integers(job.prompt) for job in jobs]
        lengths = [len(job.prompt) for job in jobs]
        self.lengths, self.width = integers(lengths).repeat_interleave(params.n), max(lengths)
        columns = torch.arange(self.width, device=decoder.device)
        self.gap = columns >= self.lengths[:, None]
        keys, firsts = (
            integers(values)[:, None] for values in ([job.key for job in jobs], [job.first for job in jobs])
        )
        self.keys = mix(keys, firsts + integers(range(params.n))).flatten()
        self.stops = torch.zeros(len(decoder.head), dtype=torch.bool, device=decoder.device)
        self.stops[integers(params.stop)] = True
        self.turns = decoder.turns(self.width + self.max_new_tokens)[:, None, None]
        self.record: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def run(self) -> list[Response]:
        """The responses: all samples of the first prompt, then of the second …"""
        cache, hidden = self._prefill()
        live = self.lengths.shape[0]
        row, stepper = torch.arange(live, device=hidden.device), None
        done = torch.zeros_like(row, dtype=torch.bool)
        for column in range(self.width, self.width + self.max_new_tokens):
            tokens = self._draw(hidden, row, column - self.width)
            done |= self.stops[tokens]
            finished = int(done.sum())
            if finished == live or column + 1 == self.width + self.max_new_tokens:
                break
            if finished >= live * (_GRAPHED_IDLE if self.graphs else _IDLE):
                live -= finished
                # live rows from the end, and the finished ones among the first that they replace
                source, target = (~done[live:]).nonzero()[:, 0] + live, done[:live].nonzero()[:, 0]
                cache.move(source, target, column)
                row, tokens = (part.index_copy(0, target, part[source])[:live] for part in (row, tokens))
                done, stepper = torch.zeros_like(row, dtype=torch.bool), None
            if column == cache.capacity:
                cache.grow(live, column + GROWTH)
            if stepper is None or column == stepper.window:
                stepper = self._stepper(cache, row, column)
            hidden = stepper.step(tokens, column)
        return self._responses()

    def _prefill(self) -> tuple[KeyValueCache, Tensor]:
        """The cache with a row for every sample, and the hidden states of the last prompt tokens."""
        d, size = self.decoder, max(1, _PREFILL // self.width)
        room = GROWTH if d.device.type == "cpu" else self.max_new_tokens  # untouched memory of a GPU costs nothing
        sizes = (len(d.layers), len(self.lengths), d.kv_heads, self.width + room, d.head_dim)
        cache = KeyValueCache(self.arenas[0], sizes)
        by_prompt = cache.data.unflatten(1, (-1, self.count))[..., : self.width, :, :]
        starts = range(0, len(self.prompts), size)
        hidden = [
            prefill(d, self.arenas[1], self.prompts[i : i + size], self.turns, by_prompt[:, i : i + size])
            for i in starts
        ]
        return cache, torch.cat(hidden).repeat_interleave(self.count, dim=0)

    def _stepper(self, cache: KeyValueCache, row: Tensor, column: int) -> Stepper:
        """The decoder of the live rows, looking at the columns so far and at the next few."""
        step = _GRAPHED_WINDOW if self.graphs else _WINDOW
        window = min(cache.capacity, -(-(column + 1) // step) * step)
        cache.data[:, : len(row), :, column:window] = 0
        hidden = torch.ones(len(row), window, dtype=torch.bool, device=row.device)
        hidden[:, : self.width] = self.gap[row]
        hidden[:, self.width : column] = False
        work = Workspace(self.decoder, self.arenas[1], len(row))
        kind = GraphedStep if self.graphs else Stepper
        return kind(work, cache, hidden, self.lengths[row] - self.width, self.turns)

    def _draw(self, hidden: Tensor, row: Tensor, step: int) -> Tensor:
        """One token a row, its log-probability and entropy noted."""
        if step % GROWTH == 0:
            steps = torch.arange(step, step + GROWTH, device=row.device)
            self.uniforms = uniform(self.keys, steps[:, None]).float()
        points, size = self.uniforms[step % GROWTH].index_select(0, row), max(1, _LOGITS // self.stops.shape[0])
        if row.shape[0] <= size:
            tokens, logprobs, entropies = self._draw_from(self.decoder.logits(hidden), points)
        else:
            parts = [
                self._draw_from(self.decoder.logits(h), u)
                for h, u in zip(hidden.split(size), points.split(size), strict=True)
            ]
            tokens, logprobs, entropies = (torch.cat(part) for part in zip(*parts, strict=True))
        self.record.append((row, tokens, logprobs, entropies))
        if self.watch:
            self.watch(tokens.tolist())
        return tokens

    def _draw_from(self, logits: Tensor, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Invert the cumulative distribution at `points`, or take the most probable token."""
        if self.temperature not in (0.0, 1.0):
            logits = logits / self.temperature
        if self.filtered:
            logits = filter_logits(logits, self.params)
        logprobs = logits.log_softmax(-1)
        probabilities = logprobs.exp()
        if self.temperature == 0.0:
            tokens = logits.argmax(-1, keepdim=True)
        else:
            cumulative = probabilities.cumsum(-1)
            # Scaled to the rounded total, so that the last token of positive probability is the last that can be drawn.
            tokens = torch.searchsorted(cumulative, points[:, None] * cumulative[:, -1:])
            tokens.clamp_(max=logits.shape[-1] - 1)  # NaN: beyond
        return tokens[:, 0], logprobs.gather(1, tokens)[:, 0], probabilities.mul_(logprobs).sum(-1).neg_()

    def _responses(self) -> list[Response]:
        """Sort the record by row and cut each row after its end. Raises Diverged for NaN."""
        row, tokens, logprobs, entropies = (torch.cat(parts) for parts in zip(*self.record, strict=True))
        if not bool(entropies.isfinite().all()):
            what = "the policy's probabilities are not numbers: its weights have diverged"
            raise Diverged(what, where="the embedded sampler", fix="a lower learning rate, from the last checkpoint")
        order = row.argsort(stable=True)
        ended = self.stops[tokens][order].cpu().numpy()
        ids, chosen, spread = [part[order].cpu().numpy() for part in (tokens.int(), logprobs, entropies)]
        bounds = torch.bincount(row).cumsum(0).tolist()
        responses = []
        for low, high in pairwise([0, *bounds]):
            first = int(ended[low:high].argmax())
            finished = bool(ended[low + first])
            high = low + first + 1 if finished else high
            responses.append(Response(ids[low:high], chosen[low:high], spread[low:high], finished))
        return responses
