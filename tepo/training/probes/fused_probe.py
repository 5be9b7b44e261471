"""The fused log-prob and entropy in bfloat16: speed as a share of the measured matmul ceiling, peak memory, accuracy.

Needs torch, and Triton on a GPU. A share counts the products that must be done: 2NVH forward, 6NVH forward + backward
(ours executes 8NVH: the logits are made again).
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from tepo.policy.logprobs.softmax_at_temperature import BUDGET, StatisticsOptions, softmax_statistics
from tepo.training.probes.probe_record import Figure
from tepo.training.probes.timing import ceiling, seconds, wait

Shape = tuple[int, int, int]  # N tokens, V words, H wide
Pair = tuple[Tensor, Tensor | None]
Function = Callable[[Tensor, Tensor, Tensor], Pair]
SIZES: dict[str, Shape] = {"small": (64, 600, 32), "short": (4096, 65_536, 1024), "full": (16_384, 152_064, 3584)}
_EXACT = {"cuda": (512, 20_000, 512), "cpu": (64, 3000, 32)}  # for the comparison with float64
_ERRORS = ("log-prob, rms", "entropy, rms", "gradient of hidden, relative", "gradient of weight, relative")


def figures(device: str, shape: Shape) -> Iterator[Figure]:
    """Ours beside naive, and the errors of both."""
    best = ceiling(shape, device)
    yield Figure("matmul ceiling", "TFLOP/s", best / 1e12)
    for name, function in (("ours", fused()), ("naive", naive)):
        yield from speed(name, measure(function, shape, device), shape, best)
    yield from accuracy(device, fused(4 << 20))


def naive(hidden: Tensor, weight: Tensor, targets: Tensor) -> Pair:
    """Logits, log-softmax in float32, gather, entropy (detached, as in training)."""
    logp = torch.log_softmax((hidden @ weight.t()).float(), dim=-1)
    with torch.no_grad():
        entropy = -(logp.exp() * logp).sum(-1)
    return logp.gather(1, targets[:, None])[:, 0], entropy


def fused(budget: int = BUDGET, entropy_gradient: bool = False) -> Function:
    """The fused op with a tile of logits of `budget` bytes."""

    def run(hidden: Tensor, weight: Tensor, targets: Tensor) -> Pair:
        options = StatisticsOptions(budget=budget, entropy_gradient=entropy_gradient)
        return softmax_statistics(hidden, weight, targets, options)[:2]

    return run


def inputs(shape: Shape, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states [N, H], output matrix [V, H] in bfloat16 and targets [N]; logits of standard deviation 2."""
    tokens, vocabulary, width = shape
    torch.manual_seed(0)
    hidden = 2 * torch.randn(tokens, width, device=device, dtype=torch.bfloat16)
    weight = torch.randn(vocabulary, width, device=device, dtype=torch.bfloat16) / width**0.5
    return hidden.requires_grad_(), weight.requires_grad_(), torch.randint(0, vocabulary, (tokens,), device=device)


def measure(function: Function, shape: Shape, device: str) -> dict[str, float]:
    """Seconds forward and forward + backward, and on a GPU the peak above the inputs in MiB (gradients included)."""
    hidden, weight, targets = inputs(shape, device)

    def both() -> None:
        hidden.grad = weight.grad = None
        logprobs, entropies = function(hidden, weight, targets)
        with_entropy = entropies is not None and entropies.requires_grad
        (logprobs.sum() + entropies.sum() if with_entropy else logprobs.sum()).backward()  # type: ignore[union-attr]

    def forward() -> None:
        with torch.no_grad():
            function(hidden, weight, targets)

    row = {"forward_s": seconds(forward, device), "both_s": seconds(both, device)}
    if device == "cuda":
        hidden.grad = weight.grad = None
        wait(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        both()
        wait(device)
        row["peak_mib"] = (torch.cuda.max_memory_allocated() - before) / 2**20
    return row


def speed(name: str, row: dict[str, float], shape: Shape, best: float) -> Iterator[Figure]:
    """The figures of a measured variant."""
    work = 2.0 * shape[0] * shape[1] * shape[2]
    for what, factor, key in (("forward", 1, "forward_s"), ("forward + backward", 3, "both_s")):
        rate = factor * work / row[key]
        yield Figure(f"{name}: {what}", "TFLOP/s", rate / 1e12, best / 1e12, note=f"{1e3 * row[key]:.1f} ms")
    if "peak_mib" in row:
        least = (shape[0] + shape[1]) * shape[2] * 2 / 2**20
        yield Figure(f"{name}: peak memory", "MiB", row["peak_mib"], least, note="to the gradients alone")


def accuracy(device: str, function: Function, name: str = "ours") -> Iterator[Figure]:
    """Errors against float64 on the same bfloat16 inputs; at most twice those of the naive way."""
    hidden, weight, targets = inputs(_EXACT[device], device)
    wide_hidden, wide_weight = (part.detach().double().requires_grad_() for part in (hidden, weight))
    exact = _values(_wide, wide_hidden, wide_weight, targets)
    fused, plain = (_errors(_values(way, hidden, weight, targets), exact) for way in (function, naive))
    for what, one, other in zip(_ERRORS, fused, plain, strict=True):
        yield Figure(f"{name}: error, {what}", "", one, 2 * other, "<=")


def _wide(hidden: Tensor, weight: Tensor, targets: Tensor) -> Pair:
    logp = torch.log_softmax(hidden @ weight.t(), dim=-1)
    return logp.gather(1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def _values(function: Function, hidden: Tensor, weight: Tensor, targets: Tensor) -> list[Tensor]:
    """Log-probs, entropies, gradients of hidden and weight."""
    logprobs, entropies = function(hidden, weight, targets)
    assert entropies is not None
    gradients = torch.autograd.grad(logprobs.sum(), (hidden, weight))
    return [logprobs.detach().double(), entropies.detach().double(), *(value.double() for value in gradients)]


def _errors(values: list[Tensor], exact: list[Tensor]) -> list[float]:
    absolute = [float((a - b).square().mean().sqrt()) for a, b in zip(values[:2], exact[:2], strict=True)]
    return absolute + [float((a - b).norm() / b.norm()) for a, b in zip(values[2:], exact[2:], strict=True)]
