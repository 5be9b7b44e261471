"""Attention structure of a packed micro-batch: which queries see which keys, as padded rectangles ("blocks").

A prompt is one segment and each response another. A segment attends causally to itself, and a response to all of its
prompt. Segments of similar length share a block, so little of a rectangle is padding;
nothing else in the model is padded.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from tepo.policy.packing.packing import Packed

_FULL_ENOUGH = 0.75  # a block ends where segments get shorter than this share of its longest …
_LEAST = 24  # … and it holds this many (each block costs some thirty small kernel launches a layer)


class SegmentBlock:
    """B segments of at most Q queries over at most P prompt keys (pushed to the right) and Q own keys; K = P + Q."""

    def __init__(
        self, layout_queries: int, layout_keys: int, spans: np.ndarray, prompts: np.ndarray, device: torch.device
    ):
        self.size, self.width, self.prompt_width = len(spans), int(spans.max()), int(prompts.max())  # B, Q, P
        # slices of the padded query and key rows of the whole layout, B*Q and B*K long
        self.queries = slice(layout_queries, layout_queries + self.size * self.width)
        self.keys = slice(layout_keys, layout_keys + self.size * (self.prompt_width + self.width))
        self._prompts, self._device = prompts, device
        self._masks: dict[tuple[int | None, torch.dtype], Tensor] = {}

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """[B, Q, K]: what is added to the scores, 0 or -inf;
        with a window, keys `window` or more back are out of sight."""
        if (window, dtype) not in self._masks:
            keys = np.arange(-self.prompt_width, self.width)
            distance = np.arange(self.width)[:, None] - keys[None, :]
            in_sight = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
            existing_keys = keys[None, :] >= -self._prompts[:, None]
            allowed = torch.from_numpy(in_sight[None] & existing_keys[:, None]).to(self._device, non_blocking=True)
            self._masks[window, dtype] = torch.zeros((), dtype=dtype, device=self._device).where(allowed, -torch.inf)
        return self._masks[window, dtype]


class SegmentLayout:
    """Blocks and the maps between the M flat rows and their padded rows."""

    def __init__(self, packed: Packed):
        device = packed.tokens.device
        starts = np.concatenate([packed.prompt_starts, packed.starts])
        spans = np.concatenate([packed.prompt_spans, packed.spans])
        prompt_starts = np.concatenate([packed.prompt_starts, packed.prompt_starts[packed.groups]])
        prompts = np.concatenate([np.zeros_like(packed.prompt_spans), packed.prompt_spans[packed.groups]])
        self.blocks: list[SegmentBlock] = []
        query_rows, key_rows, key_slots, prompt_slots = [], [], [], []
        queries = keys = 0
        for members in _buckets(spans, prompts):
            block = SegmentBlock(queries, keys, spans[members], prompts[members], device)
            own_rows = _rectangle(starts[members], spans[members], block.width)
            before = _rectangle(prompt_starts[members], prompts[members], block.prompt_width, right=True)
            slots = keys + np.arange(block.size * (block.prompt_width + block.width)).reshape(block.size, -1)
            query_rows.append(own_rows.reshape(-1))
            key_rows.append(np.concatenate([before, own_rows], axis=1).reshape(-1))
            key_slots.append(slots[:, block.prompt_width :][own_rows >= 0])
            prompt_slots.append(slots[:, : block.prompt_width][before >= 0])
            queries, keys = block.queries.stop, block.keys.stop
            self.blocks.append(block)
        # most queries and most keys of a segment, padding apart
        self.longest, self.longest_key = int(spans.max()), int((spans + prompts).max())
        self._segments = starts, spans, prompt_starts, prompts

        def put(values: np.ndarray) -> Tensor:
            return torch.from_numpy(values).to(device, non_blocking=True)  # the host need not wait for a GPU

        every_query, every_key = np.concatenate(query_rows), np.concatenate(key_rows)
        of_prompts, real = np.concatenate(prompt_slots), np.flatnonzero(every_query >= 0)
        order = np.argsort(every_query[real])
        # the flat row behind each padded row, 0 behind padding
        self.query_rows, self.key_rows = put(np.maximum(every_query, 0)), put(np.maximum(every_key, 0))
        self.padding = put(np.flatnonzero(every_query < 0))  # padded query rows with nothing behind
        # [M], the padded row of each flat row as a query and as a key of its own segment
        self.query_slots, self.key_slots = put(real[order]), put(np.concatenate(key_slots)[order])
        # flat and padded rows of prompt keys that responses see
        self.prompt_rows, self.prompt_slots = put(every_key[of_prompts]), put(of_prompts)

    @cached_property
    def ragged(self) -> "Ragged":
        """The same structure without padding."""
        starts, spans, prompt_starts, prompts = self._segments
        order = np.argsort(starts[spans > 0], kind="stable")
        starts, spans, prompt_starts, prompts = (
            values[spans > 0][order] for values in (starts, spans, prompt_starts, prompts)
        )
        rows = [
            np.concatenate([np.arange(p, p + m), np.arange(s, s + n)])
            for s, n, p, m in zip(starts, spans, prompt_starts, prompts, strict=True)
        ]
        device = self.query_rows.device
        offsets = [
            torch.from_numpy(np.concatenate([[0], np.cumsum(values)]).astype(np.int32)).to(device, non_blocking=True)
            for values in (spans, spans + prompts)
        ]
        return Ragged(torch.from_numpy(np.concatenate(rows)).to(device, non_blocking=True), *offsets)


@dataclass(frozen=True, slots=True)
class Ragged:
    """Segments end to end, for variable-length kernels. Queries are the flat rows as they are."""

    key_rows: Tensor  # [L], flat rows of the keys that each segment sees
    query_offsets: Tensor  # int32 [segments + 1], where each segment's queries begin
    key_offsets: Tensor  # the same of its keys


def _buckets(spans: np.ndarray, prompts: np.ndarray) -> list[np.ndarray]:
    """Segments with at least one query, longest first, cut into blocks; prompts (nothing before them) apart."""
    buckets = []
    for chosen in (prompts == 0, prompts > 0):
        members = np.flatnonzero(chosen & (spans > 0))
        members = members[np.argsort(-spans[members], kind="stable")]
        while len(members):
            short = np.flatnonzero(spans[members] < _FULL_ENOUGH * spans[members[0]])
            cut = max(short[0], _LEAST) if len(short) else len(members)
            cut = len(members) if len(members) - cut < _LEAST else cut
            buckets.append(members[:cut])
            members = members[cut:]
    return buckets


def _rectangle(starts: np.ndarray, spans: np.ndarray, width: int, right: bool = False) -> np.ndarray:
    """Flat rows [B, width], -1 for padding, real entries pushed to the left or the right."""
    offsets = np.arange(width)[None, :] - ((width - spans)[:, None] if right else 0)
    return np.where((offsets >= 0) & (offsets < spans[:, None]), starts[:, None] + offsets, -1)


@dataclass(frozen=True, slots=True)
class Attention:
    """Way in which queries meet keys."""

    layout: SegmentLayout
    scale: float  # of the scores
    window: int | None = None  # the sliding window, in tokens
