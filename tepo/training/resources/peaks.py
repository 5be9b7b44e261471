"""What GPUs could do at most, by their makers' data sheets: dense bf16 or fp16 operations a second, with sums in
float32."""

import torch

_PEAKS = {
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA A800-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H800": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA H20": 148e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA GeForce RTX 4090": 165e12,
}
"""By the name that the driver gives: cards that share a part of it differ in their peak."""


def peak_operations(device: torch.device, dtype: str) -> float | None:
    """Of a device for numbers of a type; None for a CPU, an unknown card, and float32."""
    if device.type != "cuda" or dtype not in ("bfloat16", "float16"):
        return None
    return _PEAKS.get(torch.cuda.get_device_name(device))
