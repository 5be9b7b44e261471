"""Machines that a run may be planned on. Peak figures are the makers', prices are assumed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tepo.common.errors import UserError, unknown_name
from tepo.training.resources.gpu_cards import A100, A100_40GB, GIB, H100, H200, L40S, PCIE, RTX_4090, Card
from tepo.training.resources.memory import Gpus
from tepo.training.run import Run

_NODE = 8  # GPUs of a node at most
_SMALL = ((1, 1, 60.0), (1, 8, 503.0))  # nodes, GPUs of each, GiB of main memory of each


@dataclass(frozen=True, slots=True)
class Machine:
    """Nodes with GPUs of one kind. host: bytes of main memory of a node."""

    card: Card
    nodes: int
    node_gpus: int
    host: float

    @property
    def ranks(self) -> int:
        return self.nodes * self.node_gpus

    @property
    def name(self) -> str:
        node = f"{self.node_gpus} {self.card.name}"
        return f"{self.nodes} x {node}" if self.nodes > 1 else node

    def of(self, run: Run) -> Gpus:
        """The GPUs that a run's engine uses."""
        ranks = self.ranks if run.engine.several_ranks else 1
        return Gpus(ranks, min(ranks, self.node_gpus), self.card.bytes, card=self.card, host=self.host)


def machines() -> list[Machine]:
    """1 and 8 of each kind; two nodes of 8 of those that train the papers' models. Main memory is assumed: 60 and 200
    GiB beside one GPU, 0.5 and 1.8 TiB beside eight."""
    large = ((1, 1, 200.0), (1, 8, 1843.0), (2, 8, 1843.0))
    return [
        Machine(card, nodes, each, host * GIB)
        for cards, counts in (((RTX_4090, A100_40GB, L40S), _SMALL), ((A100, H100, H200), large))
        for card in cards
        for nodes, each, host in counts
    ]


def card_of(text: str) -> Card:
    """A card that its user describes: `NAME:MEMORY,BANDWIDTH,OPERATIONS,PRICE` in GiB, GB/s, TFLOP/s (dense bf16) and
    dollars an hour. Its GPUs are taken to meet over PCIe. Raises UserError for anything else."""
    name, _, figures = text.partition(":")
    try:
        memory, bandwidth, operations, price = map(float, figures.split(","))
        fits = name.strip() and min(memory, bandwidth, operations) > 0 and 0 <= price < math.inf
    except ValueError:
        fits = False
    if not fits or not math.isfinite(memory + bandwidth + operations):
        fix = "NAME:GiB,GB/s,TFLOP/s,$ an hour, as in --card 'RTX 3090:24,936,71,0.25'"
        raise UserError(f"{text!r} describes no card", where="--card", fix=fix)
    return Card(name.strip(), memory * GIB, operations * 1e12, bandwidth * 1e9, nvlink=PCIE, price=price)


def chosen(found: Sequence[Machine], card: str | None, gpus: int | None) -> list[Machine]:
    """Machines with a card, in any spelling (h100, rtx4090) or described (`card_of`), and with so many GPUs: equal
    nodes of at most 8, with their part of the main memory of a node of 8. Raises UserError for another card."""
    if card and ":" in card:
        described, sizes = card_of(card), {machine.ranks for machine in found}
        found = [Machine(described, 1, ranks, host * GIB) for _, ranks, host in _SMALL if ranks in sizes]
        card = described.name
    cards = {"".join(machine.card.name.lower().split()): machine.card.name for machine in found}
    name = None if card is None else "".join(card.lower().split())
    if name is not None and name not in cards:
        raise unknown_name("card", str(card), cards, where="--card")
    matches = [machine for machine in found if name is None or machine.card.name == cards[name]]
    if gpus in (None, 1):
        return [machine for machine in matches if gpus in (None, machine.ranks)]
    each = next(size for size in range(min(gpus, _NODE), 0, -1) if gpus % size == 0)
    return [
        replace(machine, nodes=gpus // each, node_gpus=each, host=machine.host * each / _NODE)
        for machine in matches
        if machine.ranks == _NODE
    ]
