"""Values settled once per mini-batch, over all micro-batches and ranks: denominators and selections of tokens."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from tepo.objectives.axes.penalty import Selection
from tepo.objectives.batch import TokenBatch
from tepo.objectives.inputs import numbers_of
from tepo.objectives.segments import indices_of, token_indices


@dataclass(frozen=True)
class Plan:
    """Denominators and selections for sequences with these `lengths` [S] and their N tokens, detached.

    totals: tokens and non-empty sequences in the loss, over all ranks, float64 [2]. salt: varies random draws. scale:
    weight of each token in the sums [N]; weight: of the weight axis [N], None where all are 1; correction: of the
    correction axis [N], the same. filtered: whether sequences were left out. penalties: what each of the row's
    penalties selects. None also stands for what each micro-batch makes by itself."""

    lengths: Tensor
    totals: Tensor
    salt: int
    filtered: bool = False
    scale: Tensor | None = None
    weight: Tensor | None = None
    correction: Tensor | None = None
    penalties: tuple[Selection | None, ...] = ()

    @cached_property
    def counts(self) -> list[int]:
        """`lengths` on the host, read once."""
        return self.lengths.tolist()

    def select(self, sequences: Any) -> "Plan":
        """The plan of the given sequences, as `TokenBatch.select`."""
        chosen, indices = indices_of(self.lengths, self.counts, numbers_of(sequences, len(self.counts), self))
        return self._each(self.lengths[chosen], lambda value: value[indices])

    def spread(self, batch: TokenBatch, kept: Tensor) -> "Plan":
        """The plan of a batch whose sequences `kept` are this plan's; 0 on the tokens of the others."""
        indices, size = token_indices(batch.lengths, kept), batch.advantages.shape[0]
        return self._each(batch.lengths, lambda value: value.new_zeros(size).index_copy(0, indices, value.contiguous()))

    def _each(self, lengths: Tensor, change: Callable[[Tensor], Tensor]) -> "Plan":
        """With each tensor per token changed."""

        def changed(value: Tensor | None) -> Tensor | None:
            return None if value is None else change(value)

        penalties = [part and Selection(change(part.mask), changed(part.scale)) for part in self.penalties]
        scale, weight, correction = (changed(value) for value in (self.scale, self.weight, self.correction))
        own = tuple(penalties)
        return replace(self, lengths=lengths, scale=scale, weight=weight, correction=correction, penalties=own)
