"""GPUs by their makers' data sheets: the one table behind plans and MFU."""

from dataclasses import dataclass, replace

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU, by its maker's figures.

    bytes: that a process finds free on an empty one. operations: dense bf16 or fp16 with sums in float32, a second.
    bandwidth: bytes a second of its memory. nvlink, network: bytes a second one way to other GPUs of its node (NVLink,
    or PCIe 4) and of other nodes (400 Gbit/s a GPU). price: dollars an hour, assumed; 0 for one that no plan proposes.
    """

    name: str
    bytes: float
    operations: float
    bandwidth: float
    nvlink: float = 450e9
    network: float = 50e9
    price: float = 0.0


RTX_4090 = Card("RTX 4090", 23.5 * GIB, 165e12, 1.01e12, 32e9, price=0.4)
A100_40GB = Card("A100 40GB", 39.4 * GIB, 312e12, 1.56e12, 300e9, price=1.1)
L40S = Card("L40S", 44.4 * GIB, 362e12, 0.86e12, 32e9, price=0.9)
A100 = Card("A100", 79.1 * GIB, 312e12, 2.0e12, 300e9, price=1.5)
H100 = Card("H100", 79.1 * GIB, 989e12, 3.35e12, price=2.5)
H200 = Card("H200", 139.8 * GIB, 989e12, 4.8e12, price=3.5)
H20 = Card("H20", 95 * GIB, 148e12, 4.0e12)

PCIE = 32e9
CARDS = {
    "NVIDIA A100-SXM4-40GB": A100_40GB,
    "NVIDIA A100-SXM4-80GB": A100,
    "NVIDIA A100-PCIE-40GB": replace(A100_40GB, nvlink=PCIE),
    "NVIDIA A100 80GB PCIe": replace(A100, bandwidth=1.94e12, nvlink=PCIE),
    "NVIDIA A800-SXM4-80GB": replace(A100, nvlink=200e9),
    "NVIDIA H100 80GB HBM3": H100,
    "NVIDIA H100 PCIe": replace(H100, operations=756e12, bandwidth=2.0e12, nvlink=PCIE),
    "NVIDIA H100 NVL": replace(H100, operations=835e12, bandwidth=3.9e12, nvlink=300e9),
    "NVIDIA H800": replace(H100, nvlink=200e9),
    "NVIDIA H200": H200,
    "NVIDIA H20": H20,
    "NVIDIA L40S": L40S,
    "NVIDIA GeForce RTX 4090": RTX_4090,
}  # by the name that the driver gives: cards that share a part of it differ in their figures


def peak_operations(driver_name: str, dtype: str) -> float | None:
    """Peak operations a second of a card with numbers of a type; None for an unknown card, and for float32."""
    card = CARDS.get(driver_name)
    return card.operations if card and dtype in ("bfloat16", "float16") else None
