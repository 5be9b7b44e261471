"""Running sums of an objective's metrics, on the device until someone asks for the means."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tepo.objectives.batch import Comm


@dataclass(frozen=True)
class Metrics:
    """Sums with their denominators under verl's names (float64 [K] each), and maxima. Add those of micro-batches and mini-batches
    with `+`; a mean over tokens is then over all of them, `actor/pg_loss` and other totals are means over mini-batches."""

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
        return ((name, (self.sums[place], self.counts[place])) for place, name in enumerate(self.names))

    def means(self, comm: Comm | None = None) -> dict[str, float]:
        """Plain numbers over all ranks. The only place that waits for the device."""
        sums, counts, maxima = self.sums, self.counts, self.maxima
        if comm is not None:
            sums, counts = comm.all_sum(sums), comm.all_sum(counts)
            maxima = {name: torch.cat(comm.all_gather(value.reshape(1))).max() for name, value in maxima.items()}
        means = (sums / counts.clamp(min=1e-12)).tolist()
        return dict(zip(self.names, means, strict=True)) | {name: float(value) for name, value in maxima.items()}


def token_metrics(means: dict[str, Tensor], totals: dict[str, Tensor], maxima: dict[str, Tensor], share: Tensor) -> Metrics:
    """Metrics of one (micro-)batch. means: per-token values [N] to average; totals: scalars already divided by the mini-batch's
    denominators; maxima: per-token values [N]; share: this batch's part of the mini-batch, so that totals of micro-batches add up."""
    with torch.no_grad():
        some = next(iter(means.values()))
        sums = torch.stack([value.detach().to(some.dtype) for value in means.values()]).sum(1, dtype=torch.float64)
        whole = torch.stack([value.detach().double() for value in totals.values()])
        counts = torch.cat([sums.new_full((len(means),), float(some.shape[0])), share.expand(len(totals)).to(sums.dtype)])
        tops = {name: value.detach().max() if value.shape[0] else value.new_tensor(-torch.inf) for name, value in maxima.items()}
        return Metrics((*means, *totals), torch.cat([sums, whole]), counts, tops)
