"""A place where values are computed: what is given there, and the dtype and shape that values have.

A value is a number, or a tensor of one dimension: [S] one per response, [N] one per token, [S, K] one per named reward.
Values of responses, and all of a rollout, are float64; those of tokens in the loss have the dtype of the batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tepo.formula.language import GIVEN, HANDED
from tepo.objectives.batch import Collectives, Groups, TokenBatch

Value = Any  # float | Tensor
LOGPROB_FLOOR = -1e5  # stands for log 0 (a token off the policy's support): finite, and without gradient


@dataclass
class Scope:
    """A rollout or a (micro-)batch, and what was computed of it once."""

    source: Any  # Groups | TokenBatch
    dtype: torch.dtype
    comm: Collectives | None = None
    salt: int = 0  # of random draws
    totals: Tensor | None = None  # N and B of the mini-batch
    counted: Tensor | None = None  # tokens in the loss [N]; None for all
    leaves: Mapping[str, Tensor] = field(default_factory=dict)  # outputs of the model whose gradient is wanted
    made: dict[str, Any] = field(default_factory=dict)

    @property
    def lengths(self) -> Tensor:
        return self.source.lengths

    @property
    def per_token(self) -> bool:
        """Tell whether values of responses are held one per token, in the dtype of the batch, as they are in a loss."""
        return isinstance(self.source, TokenBatch)

    def _dtype(self, per: str) -> torch.dtype:
        return torch.float64 if per == "response" and not self.per_token else self.dtype

    # what is given ----------------------------------------------------------------------------------------------------
    def given(self, name: str) -> Value:
        """The value of a given name, made once."""
        if name not in self.made:
            self.made[name] = self._rewards(name, self.source) if name in ("R", "R_k", "weight_k") else self._made(name)
        return self.made[name]

    def _rewards(self, name: str, groups: Groups) -> Tensor:
        if name == "weight_k":
            weights = groups.lengths.new_tensor(groups.weights or [1.0], dtype=torch.float64)
            return weights.expand(groups.lengths.shape[0], -1)
        if name == "R" or groups.named is None:
            return groups.rewards.double() if name == "R" else groups.rewards.double()[:, None]
        return groups.named.double()

    def _made(self, name: str) -> Value:
        source = self.source
        match name:
            case "G":
                index, number = self.groups(source.lengths)
                ones = torch.ones_like(index, dtype=torch.float64)
                return ones.new_zeros(number).index_add(0, index, ones)[index]
            case "d":
                return self.given("logp") - self.given("logp_old")
            case "dH":
                return self.given("H").detach() - self.given("H_old")
            case "N" | "B":
                assert self.totals is not None
                return self.totals[0 if name == "N" else 1].clamp(min=1)
            case "T" | "finished":
                value = source.lengths if name == "T" else source.finished
                return value.index_select(0, source.sequence).to(self.dtype) if self.per_token else value.double()
            case "t":
                return (source.positions + 1).to(self.dtype)
            case "L":
                return self.number(float(source.max_new_tokens), "response").double()
        key = "advantages" if name == HANDED else GIVEN[name].field
        value = self.leaves[key] if key in self.leaves else getattr(source, key)
        if name.startswith("logp"):  # NaN stays NaN, to be caught by the trainer
            return value.clamp(min=LOGPROB_FLOOR)
        return value if self.per_token else value.double()

    # dtype and shape --------------------------------------------------------------------------------------------------
    def typed(self, value: Value, per: str) -> Value:
        """A condition as 0 or 1 in the dtype of its place; everything else as it is."""
        return value.to(self._dtype(per)) if isinstance(value, Tensor) and value.dtype == torch.bool else value

    def number(self, value: Value, per: str) -> Tensor:
        """A number as a tensor without dimensions in the dtype of its place, where torch would take float32; a
        condition as 0 or 1."""
        if isinstance(value, Tensor):
            return self.typed(value, per)
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
        if "(groups)" not in self.made:
            unique_ids, index = torch.unique(self.source.group_ids, return_inverse=True)
            self.made["(groups)"] = index, unique_ids.shape[0]
        index, count = self.made["(groups)"]
        return (index if value.shape[0] == self.lengths.shape[0] else index[self.source.sequence]), count

    def columns(self) -> tuple[Tensor, int]:
        """The number of each token's (group, position), and how many there are."""
        if "(columns)" not in self.made:
            index, _ = self.groups(self.lengths)
            width = self.lengths.max().clamp(min=1) if self.lengths.shape[0] else 1
            places = index[self.source.sequence] * width + self.source.positions
            unique_places, column = torch.unique(places, return_inverse=True)
            self.made["(columns)"] = column, unique_places.shape[0]
        return self.made["(columns)"]
