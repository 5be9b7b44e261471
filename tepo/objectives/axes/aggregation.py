"""Aggregation axis: the weight of each token in the sum. Denominators are those of the whole mini-batch and all ranks.

Empty responses count in no denominator. TEPO Table 5 and Table 3 Panel D."""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from tepo.common.schema import option
from tepo.objectives.axes.overlong import length_limit
from tepo.objectives.axis import Kind, Line, Needs, Part
from tepo.objectives.batch import Comm, TokenBatch, all_sum, gather

OVERS = ("mini_batch", "group", "micro_batch")
OVER = option(
    "mini_batch",
    "the set that is averaged: mini_batch; group: a mean within each prompt's group, then over groups; "
    "micro_batch: as older verl (comparison only: depends on the split)",
    source="TEPO Algorithm 1, 'total valid tokens' (reading A9)",
    choices=OVERS,
)


class Aggregation(Kind, Protocol):
    """The weight of each token, from the number of tokens and of responses. over: the set that is averaged."""

    @property
    def over(self) -> str: ...

    def scale(self, batch: TokenBatch, per_token: Tensor, per_sequence: Tensor) -> Tensor:
        """[N], or a scalar, from 1/N and 1/B, each a scalar or [N]."""


class _Sums:
    """Members of an aggregation that follow from its `sums` in J, and from the set `over` that is averaged."""

    sums: Line
    over: str

    @property
    def constants(self) -> str:
        """Constants beside the sets, for the explanation."""
        return ""

    @property
    def needs(self) -> Needs:
        return Needs(group_ids=self.over == "group")

    @property
    def explained(self) -> Part:
        line = self.sums
        where = {
            "mini_batch": "of the whole mini-batch, all ranks",
            "group": "of a prompt's group",
            "micro_batch": "of each micro-batch (as older verl)",
        }[self.over]
        if self.over == "group":
            line = Line(f"1/groups sum_g {line.text}", rf"\frac{{1}}{{|\mathcal{{G}}|}}\sum_g {line.latex}")
        sets = Line(
            f"T_i: tokens of response i; N: tokens, B: non-empty responses {where}{self.constants}",
            r"T_i = |y_i|,\quad N = \sum_i T_i,\quad B = \#\{i : T_i > 0\}",
        )
        return Part(line, (sets,))


@dataclass(frozen=True)
class TokenMean(_Sums):
    """1/N for each of the N tokens. DAPO 3.3, TEPO Eq. 4."""

    sums = Line("1/N sum_i sum_t", r"\frac{1}{N}\sum_i\sum_t")
    over: str = OVER

    def scale(self, batch: TokenBatch, per_token: Tensor, per_sequence: Tensor) -> Tensor:
        return per_token


@dataclass(frozen=True)
class SeqMeanTokenMean(_Sums):
    """1/(B T_i): the mean over responses of the mean over their tokens. GRPO, GSPO."""

    sums = Line("1/B sum_i 1/T_i sum_t", r"\frac{1}{B}\sum_i\frac{1}{T_i}\sum_t")
    over: str = OVER

    def scale(self, batch: TokenBatch, per_token: Tensor, per_sequence: Tensor) -> Tensor:
        return per_sequence / batch.lengths.clamp(min=1).to(per_sequence.dtype)[batch.sequence]


@dataclass(frozen=True)
class SeqMeanTokenSum(_Sums):
    """1/B: the mean over responses of the sum over their tokens. TEPO Table 5; LUSPO."""

    sums = Line("1/B sum_i sum_t", r"\frac{1}{B}\sum_i\sum_t")
    over: str = OVER

    def scale(self, batch: TokenBatch, per_token: Tensor, per_sequence: Tensor) -> Tensor:
        return per_sequence


@dataclass(frozen=True)
class SeqMeanTokenSumNorm(_Sums):
    """1/(B C) with a constant C. Dr.GRPO 2503.20783."""

    sums = Line("1/(B C) sum_i sum_t", r"\frac{1}{B\,C}\sum_i\sum_t")
    constant: float | None = option(
        None, "C; none: the length limit", source="Dr.GRPO: the generation budget", low=1e-6
    )
    over: str = OVER

    def scale(self, batch: TokenBatch, per_token: Tensor, per_sequence: Tensor) -> Tensor:
        return per_sequence / (self.constant or length_limit(batch, "aggregation.constant"))

    @property
    def needs(self) -> Needs:
        return replace(super().needs, max_new_tokens=self.constant is None)

    @property
    def constants(self) -> str:
        return f", C = {self.constant:g}" if self.constant else ", C = the length limit"


KINDS: dict[str, type[Aggregation]] = {
    "token_mean": TokenMean,
    "seq_mean_token_mean": SeqMeanTokenMean,
    "seq_mean_token_sum": SeqMeanTokenSum,
    "seq_mean_token_sum_norm": SeqMeanTokenSumNorm,
}


def count(batch: TokenBatch, comm: Comm | None) -> Tensor:
    """Tokens and non-empty sequences over all ranks, float64 [2]."""
    return all_sum(torch.stack([batch.lengths.sum(), (batch.lengths > 0).sum()]).double(), comm)


def token_scale(options: Aggregation, batch: TokenBatch, totals: Tensor, comm: Comm | None) -> Tensor:
    """Weight of each token [N] in the mini-batch's loss. totals: from `count`. For `over: micro_batch` see
    `micro_batch_scale`."""
    if options.over == "group":
        return _group_scale(options, batch, comm)
    dtype = batch.advantages.dtype
    scale = options.scale(batch, (1 / totals[0].clamp(min=1)).to(dtype), (1 / totals[1].clamp(min=1)).to(dtype))
    return scale.expand(batch.advantages.shape[0])


def micro_batch_scale(options: Aggregation, batch: TokenBatch, totals: Tensor) -> Tensor:
    """The formula on this micro-batch alone, weighted by its share of the mini-batch's sequences,
    as verl's dp_actor up to v0.7."""
    own = count(batch, None)
    return token_scale(options, batch, own, None) * (own[1] / totals[1].clamp(min=1)).to(batch.advantages.dtype)


def _group_scale(options: Aggregation, batch: TokenBatch, comm: Comm | None) -> Tensor:
    """1/groups times the formula within each group; groups may be spread over ranks."""
    ids = batch.want("group_ids", "aggregation.over: group")
    everyone, lengths = gather(ids, comm), gather(batch.lengths, comm)
    groups, index = torch.unique(everyone, return_inverse=True)
    zeros = batch.advantages.new_zeros(groups.shape[0], dtype=torch.float64)
    tokens = zeros.index_add(0, index, lengths.double())
    sequences = zeros.index_add(0, index, (lengths > 0).double())
    number = (sequences > 0).sum().clamp(min=1)
    mine = torch.searchsorted(groups, ids)[batch.sequence]
    dtype = batch.advantages.dtype
    return options.scale(
        batch,
        (1 / (number * tokens.clamp(min=1))).to(dtype)[mine],
        (1 / (number * sequences.clamp(min=1))).to(dtype)[mine],
    )
