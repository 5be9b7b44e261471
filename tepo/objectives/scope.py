"""A place where values are computed: what is given there, and the dtype and shape that values have.

A value is a number, or a tensor of one dimension: [S] one a response, [N] one a token, [S, K] one a named reward.
Values of responses, and all of a rollout, are float64; those of tokens in the loss have the dtype of the batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tepo.formula.language import HANDED
from tepo.objectives.batch import Collectives, Groups, TokenBatch
from tepo.objectives.group_statistics import group_sum

Value = Any  # float | Tensor
LOGPROB_FLOOR = -1e5  # stands for log 0 (a token off the policy's support): finite, and without gradient


def finite_logprobs(logprobs: Tensor) -> Tensor:
    """Log-probs with -inf replaced by a finite floor (no gradient there). NaN stays NaN, to be caught by the
    trainer."""
    return logprobs.clamp(min=LOGPROB_FLOOR)


@dataclass
class Scope:
    """A rollout or a (micro-)batch, and what was computed of it once."""

    source: Groups | TokenBatch
    dtype: torch.dtype
    comm: Collectives | None = None
    salt: int = 0  # of random draws
    reader: str = ""  # who misses what is not given, in messages
    totals: Tensor | None = None  # N and B of the mini-batch
    leaves: Mapping[str, Tensor] = field(default_factory=dict)  # outputs of the model whose gradient is wanted
    made: dict[str, Any] = field(default_factory=dict)

    @property
    def lengths(self) -> Tensor:
        return self.source.lengths

    @property
    def per_token(self) -> bool:
        """Tell whether values of responses are held one a token, in the dtype of the batch, as they are in a loss."""
        return isinstance(self.source, TokenBatch)

    def _dtype(self, per: str) -> torch.dtype:
        return torch.float64 if per == "response" and not self.per_token else self.dtype

    # what is given ----------------------------------------------------------------------------------------------------
    def given(self, name: str) -> Value:
        """The value of a given name, made once."""
        if name not in self.made:
            of_source = self._of_rollout if isinstance(self.source, Groups) else self._of_batch
            self.made[name] = of_source(name, self.source)  # type: ignore[arg-type]
        return self.made[name]

    def _of_rollout(self, name: str, groups: Groups) -> Value:
        match name:
            case "R":
                return groups.rewards.double()
            case "R_k":
                return groups.rewards.double()[:, None] if groups.named is None else groups.named.double()
            case "weight_k":
                return groups.lengths.new_tensor(groups.weights or [1.0], dtype=torch.float64)[None]
            case "G":
                index, number = self.groups(groups.lengths)
                return group_sum(torch.ones_like(index, dtype=torch.float64), index, number)
            case "H_old":
                return groups.old_entropies.double()  # type: ignore[union-attr]
        return self._of_either(name)

    def _of_batch(self, name: str, batch: TokenBatch) -> Value:
        match name:
            case "logp":
                return finite_logprobs(self._field("logprobs"))
            case "logp_old" | "logp_sampler" | "logp_initial":
                return finite_logprobs(self._field(f"{name.removeprefix('logp_')}_logprobs"))
            case "d":
                return self.given("logp") - self.given("logp_old")
            case "H" | "H_old" | "kl_old" | "kl_initial":
                return self._field({"H": "entropies", "H_old": "old_entropies"}.get(name, "full_kl"))
            case "dH":
                return self._field("entropies").detach() - self._field("old_entropies")
            case "N" | "B":
                assert self.totals is not None
                return self.totals[0 if name == "N" else 1].clamp(min=1)
            case name if name == HANDED:
                return batch.advantages
        return self._of_either(name)

    def _of_either(self, name: str) -> Value:
        source = self.source
        match name:
            case "T":
                return self.spread(source.lengths)
            case "t":
                return (source.positions + 1).to(self.dtype)
            case "finished":
                assert source.finished is not None
                return self.spread(source.finished)
        assert name == "L", name
        assert source.max_new_tokens is not None
        return float(source.max_new_tokens)

    def _field(self, name: str) -> Tensor:
        assert isinstance(self.source, TokenBatch)
        return self.leaves[name] if name in self.leaves else self.source.want(name, self.reader)

    # dtype and shape --------------------------------------------------------------------------------------------------
    def spread(self, value: Tensor) -> Tensor:
        """A value of each response [S] as it is held here."""
        return value.index_select(0, self.source.sequence).to(self.dtype) if self.per_token else value.double()

    def typed(self, value: Value, per: str) -> Value:
        """A condition as 0 or 1 in the dtype of its place; everything else as it is."""
        return value.to(self._dtype(per)) if isinstance(value, Tensor) and value.dtype == torch.bool else value

    def number(self, value: Value, per: str) -> Tensor:
        """A number as a tensor without dimensions in the dtype of its place: torch would take float32."""
        if isinstance(value, Tensor):
            return value
        return torch.full((), value, dtype=self._dtype(per), device=self.lengths.device)

    def lift(self, value: Value, per: str, to: str) -> Value:
        """A response's value on each of its tokens, or on each of its named rewards."""
        if per != "response" or to == per or self.per_token or not isinstance(value, Tensor) or value.dim() == 0:
            return value
        if to == "named":
            return value[:, None]
        lifted = value.index_select(0, self.source.sequence)
        return lifted if value.dtype == torch.bool else lifted.to(self.dtype)

    def groups(self, value: Tensor) -> tuple[Tensor, int]:
        """The number of each value's group, and how many groups there are. value: [S], [S, K] or [N]."""
        assert isinstance(self.source, Groups)
        if "(groups)" not in self.made:
            found, index = torch.unique(self.source.group_ids, return_inverse=True)
            self.made["(groups)"] = index, found.shape[0]
        index, count = self.made["(groups)"]
        return (index if value.shape[0] == self.lengths.shape[0] else index[self.source.sequence]), count

    def columns(self) -> tuple[Tensor, int]:
        """The number of each token's (group, position), and how many there are."""
        if "(columns)" not in self.made:
            index, _ = self.groups(self.lengths)
            width = self.lengths.max().clamp(min=1) if self.lengths.shape[0] else 1
            places = index[self.source.sequence] * width + self.source.positions
            found, column = torch.unique(places, return_inverse=True)
            self.made["(columns)"] = column, found.shape[0]
        return self.made["(columns)"]
