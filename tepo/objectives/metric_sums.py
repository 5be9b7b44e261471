"""Running sums of an objective's metrics, on the device until someone asks for the means."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tepo.objectives.batch import Collectives
from tepo.objectives.selection import largest


@dataclass(frozen=True)
class Metrics:
    """Sums with their denominators under verl's names (float64 [K] each), and maxima. Add those of micro-batches and
    mini-batches with `+`; a mean over tokens is then over all of them, `actor/pg_loss` and other totals are means over
    mini-batches."""

    names: tuple[str, ...]
    sums: Tensor
    counts: Tensor
    maxima: dict[str, Tensor]

    def __add__(self, other: "Metrics") -> "Metrics":
        assert self.names == other.names, "metrics of different objectives do not add"
        maxima = {name: torch.maximum(value, other.maxima[name]) for name, value in self.maxima.items()}
        return Metrics(self.names, self.sums + other.sums, self.counts + other.counts, maxima)

    def items(self) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
        """(name, (sum, denominator)) of every mean."""
        return ((name, (self.sums[index], self.counts[index])) for index, name in enumerate(self.names))

    def means(self, comm: Collectives | None = None) -> dict[str, float]:
        """Plain numbers over all ranks; a maximum over no token is left out. The only place that waits for the
        device."""
        sums, counts, maxima = self.sums, self.counts, self.maxima
        if comm is not None:
            sums, counts = comm.all_sum(sums), comm.all_sum(counts)
            maxima = {name: largest(value.reshape(1), comm) for name, value in maxima.items()}
        means = dict(zip(self.names, (sums / counts.clamp(min=1e-12)).tolist(), strict=True))
        tops = ((name, float(value)) for name, value in maxima.items())
        return means | {name: value for name, value in tops if value != -math.inf}


@torch.no_grad()
def token_metrics(
    means: Mapping[str, Tensor],
    totals: Mapping[str, Tensor],
    maxima: Mapping[str, Tensor],
    counted: Tensor | None,
    tokens: Tensor,
) -> Metrics:
    """Metrics of one (micro-)batch. means, maxima: per-token values [N]; totals: scalars already divided by the
    mini-batch's denominators; counted: bool [N], the tokens in the loss (None: all); tokens: how many the mini-batch
    has over all ranks."""
    own = tokens.new_full((), len(next(iter(means.values())))) if counted is None else counted.sum()
    kept = means.values() if counted is None else [torch.where(counted, value, 0) for value in means.values()]
    sums = torch.stack([value.detach().sum(dtype=torch.float64) for value in kept])
    summed = torch.stack(list(totals.values())).double()
    counts = torch.cat([own.double().expand(len(means)), (own / tokens.clamp(min=1)).double().expand(len(totals))])
    tops = {name: largest(value.detach(), None) for name, value in maxima.items()}
    return Metrics((*means, *totals), torch.cat([sums, summed]), counts, tops)
