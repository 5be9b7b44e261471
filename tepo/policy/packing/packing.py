"""Packed token layout: no padding, and the prompt of a group stored once.

A group is a prompt and some of its responses. Its flat layout is

    prompt | response 1 without its last token | response 2 without its last token | …

(the last token of a response predicts nothing, so it is not pushed through the model). The first token of every
response is predicted by the last prompt token. With G responses of T tokens and a prompt of P, the model sees
P + G(T - 1) tokens for GT trained ones, against G(P + T) in a padded batch of equal lengths.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

Tokens: TypeAlias = Sequence[int] | np.ndarray


@dataclass(frozen=True, slots=True)
class Packed:
    """A micro-batch of M pushed tokens and N trained ones, S sequences in G groups, all int64."""

    tokens: Tensor  # [M], what the model reads
    positions: Tensor  # [M], each response goes on counting where its prompt ends
    rows: Tensor  # [N], in [0, M): token targets[n] is predicted at rows[n], sequence after sequence
    targets: Tensor  # [N]
    lengths: Tensor  # [S], trained tokens of each sequence; they sum to N
    # on the host, for attention:
    starts: np.ndarray  # [S], where the pushed part of each response lies
    spans: np.ndarray  # [S], how long it is
    groups: np.ndarray  # [S], the group of each response
    prompt_starts: np.ndarray  # [G]
    prompt_spans: np.ndarray  # [G]

    def to(self, device: torch.device | str) -> "Packed":
        """The same micro-batch on another device."""
        moved = {
            field.name: value.to(device, non_blocking=True)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **moved)  # type: ignore[arg-type]


def pack(groups: Sequence[tuple[Tokens, Sequence[Tokens]]]) -> Packed:
    """Lay out groups (prompt, responses) flat. Prompts must have at least one token; an empty response trains nothing.

    A group whose responses are spread over several micro-batches is given to each with the responses it has there.
    """
    # The comments follow one group: prompt `p q`, responses `a b c` and `d e`.
    #   tokens     p q a b d        M = 2 + 2 + 1: `c` and `e` predict nothing
    #   positions  0 1 2 3 2        the second response follows the prompt, not the first response
    #   targets    a b c d e        N = 5
    #   rows       1 2 3 1 4        `a` and `d` are both predicted at `q`
    prompt_spans = np.array([len(prompt) for prompt, _ in groups], dtype=np.int64)
    if not len(groups) or prompt_spans.min() < 1:
        raise ValueError("pack needs at least one group, and at least one token in every prompt")
    owner = np.repeat(np.arange(len(groups)), [len(responses) for _, responses in groups])
    lengths = np.array([len(response) for _, responses in groups for response in responses], dtype=np.int64)
    spans = np.maximum(lengths - 1, 0)
    widths = prompt_spans + np.bincount(owner, weights=spans, minlength=len(groups)).astype(np.int64)
    prompt_starts = np.concatenate([[0], np.cumsum(widths)[:-1]])
    before = np.cumsum(spans) - spans  # pushed response tokens before each response, all groups together
    starts = before + np.cumsum(prompt_spans)[owner]

    pieces: list[np.ndarray] = []
    for prompt, responses in groups:
        pieces.append(np.asarray(prompt, dtype=np.int64))
        pieces += [np.asarray(response[:-1], dtype=np.int64) for response in responses]
    targets = _concatenate([np.asarray(response, dtype=np.int64) for _, responses in groups for response in responses])

    tokens = _concatenate(pieces)
    # a place in the flat layout, less where its segment would have begun had the prompt stood right before it
    positions = np.arange(len(tokens)) - np.repeat(
        _interleave(prompt_starts, starts - prompt_spans[owner], owner), _interleave(prompt_spans, spans, owner)
    )
    first = np.cumsum(lengths) - lengths
    rows = np.arange(len(targets)) - np.repeat(first, lengths) + np.repeat(starts - 1, lengths)
    nonempty = lengths > 0  # the first token of a response is predicted by the last of its prompt
    rows[first[nonempty]] = (prompt_starts + prompt_spans - 1)[owner[nonempty]]
    to = torch.from_numpy
    return Packed(
        to(tokens), to(positions), to(rows), to(targets), to(lengths), starts, spans, owner, prompt_starts, prompt_spans
    )


def _concatenate(pieces: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)


def _interleave(prompts: np.ndarray, responses: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """One value per segment in flat order: each prompt's value, then those of its responses."""
    order = np.argsort(np.concatenate([np.arange(len(prompts)), owner]), kind="stable")
    return np.concatenate([prompts, responses])[order]


def split_by_tokens(
    prompt_lengths: Sequence[int], response_lengths: Sequence[int], groups: Sequence[int], budget: int
) -> list[list[int]]:
    """Micro-batches (lists of sequence indices, in order) of at most `budget` pushed tokens each.

    All arguments but the budget are per sequence; sequences of one group share an id and lie side by side. A group is
    cut only when it does not fit a micro-batch of its own; a single sequence above the budget gets one to itself.
    Deterministic: depends on the arguments alone.
    """
    batches: list[list[int]] = []
    used = budget + 1  # forces the first micro-batch
    for _, neighbours in itertools.groupby(range(len(groups)), key=groups.__getitem__):
        members = list(neighbours)
        prompt = prompt_lengths[members[0]]
        costs = [max(response_lengths[i] - 1, 0) for i in members]
        if used + prompt + sum(costs) > budget:
            batches.append([])
            used = 0
        used += prompt
        for index, cost in zip(members, costs, strict=True):
            if used + cost > budget and index != members[0]:
                batches.append([])
                used = prompt
            batches[-1].append(index)
            used += cost
    return batches
