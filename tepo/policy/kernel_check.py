"""Kernels against torch on the same bfloat16 inputs: packed attention, the fused log-prob, those of `engine.kernels`.

`tepo doctor` checks those that every run has on a GPU, and a run those that it was told to take; `python -m perf.gpu`
also measures their speed. An error may be twice the one that torch makes in bfloat16.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tepo.common.errors import UserError
from tepo.policy.logprobs.softmax_at_temperature import StatisticsOptions, softmax_statistics
from tepo.policy.model.compiled_layers import compiled, gated, norm, rotated
from tepo.policy.model.kernel_attention import attend, flash4
from tepo.policy.packing.block_layout import Attention, SegmentLayout
from tepo.policy.packing.packing import Packed, pack

_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]  # cuDNN's are slow to plan
Error = tuple[str, float, float]  # of what, the error, what it may be at most
LogProb = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]  # of hidden, weight, targets; and entropy


@dataclass(frozen=True)
class Segments:
    """Packed sequences to attend over."""

    name: str
    groups: tuple[tuple[int, tuple[int, ...]], ...]  # tokens of a prompt and of each of its responses
    heads: tuple[int, int] = (28, 4)  # of queries and of keys
    width: int = 128
    window: int | None = None

    def packed(self, device: str) -> Packed:
        return pack([(np.zeros(prompt), [np.zeros(n) for n in lengths]) for prompt, lengths in self.groups]).to(device)

    def tensors(self, count: int, device: str) -> tuple[list[Tensor], Tensor]:
        """Queries, keys and values [count, heads, width], and the weights of the sum that is differentiated."""
        torch.manual_seed(0)
        sizes = (self.heads[0], self.heads[1], self.heads[1])
        inputs = [torch.randn(count, heads, self.width, device=device).bfloat16() for heads in sizes]
        return inputs, torch.randn(count, self.heads[0], self.width, device=device)


_MIXED = ((300, (1900, 700, 1200, 256)), (120, (350, 1024, 640, 90)))
SEGMENTS = (Segments("mixed lengths", _MIXED), Segments("window 512", _MIXED, window=512))


def attention_errors(case: Segments, device: str, kernel: Callable[..., Tensor] | None = None) -> Iterator[Error]:
    """Errors of output and gradients against float32, sequence by sequence. kernel: by default the usual one."""
    packed = case.packed(device)
    how = Attention(SegmentLayout(packed), case.width**-0.5, case.window)
    inputs, weight = case.tensors(len(packed.tokens), device)
    ours, plain = partial(kernel or attend, how=how), partial(sequences, packed=packed, how=how)
    values, rounded = (with_gradients(way, inputs, weight) for way in (ours, plain))
    exact = with_gradients(plain, [tensor.float() for tensor in inputs], weight)
    names = "output", "gradient of queries", "gradient of keys", "gradient of values"
    for name, value, other, right in zip(names, values, rounded, exact, strict=True):
        yield f"{case.name}: error, {name}", _relative(value, right), 2 * _relative(other, right)


def sequences(query: Tensor, key: Tensor, value: Tensor, packed: Packed, how: Attention) -> Tensor:
    """[M, Hq, D]: every prompt and every response with its prompt by itself, through SDPA with all heads written
    out."""
    key, value = (tensor.repeat_interleave(query.shape[1] // key.shape[1], 1) for tensor in (key, value))
    out = torch.zeros_like(query)
    prompts = [np.arange(s, s + n) for s, n in zip(packed.prompt_starts, packed.prompt_spans, strict=True)]
    owners = zip(packed.starts, packed.spans, packed.groups, strict=True)
    responses = [(np.arange(start, start + span), prompts[group]) for start, span, group in owners if span]
    for own_rows, before in [(prompt, prompt[:0]) for prompt in prompts] + responses:
        rows = torch.from_numpy(np.concatenate([before, own_rows])).to(query.device)
        q, k, v = (tensor[rows].transpose(0, 1)[None] for tensor in (query, key, value))
        mask = None
        if how.window:  # [1, 1, L, L]: true where a key is at most `window - 1` back
            ones = torch.ones(len(rows), len(rows), dtype=torch.bool, device=query.device)
            mask = (ones.tril() & ones.triu(1 - how.window))[None, None]
        with sdpa_kernel(_KERNELS):
            segment_out = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=how.scale)
        out = out.index_copy(0, rows[len(before) :], segment_out[0].transpose(0, 1)[len(before) :])
    return out


def with_gradients(function: Callable[..., Tensor], inputs: list[Tensor], weight: Tensor) -> list[Tensor]:
    """Output, and the gradients of its weighted sum."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad((out * weight.to(out.dtype)).sum(), leaves)]


def naive(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Logits, log-softmax in float32 at least, gather; the entropy detached, as in training."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    logp = torch.log_softmax((hidden @ weight.t()).to(wide), dim=-1)  # no name for the logits: they are let go
    with torch.no_grad():
        entropy = -(logp.exp() * logp).sum(-1)
    return logp.gather(1, targets[:, None])[:, 0], entropy


def fused(budget: int | None = None, entropy_gradient: bool = False) -> LogProb:
    """The fused op with a tile of logits of `budget` bytes, by default the device's."""
    options = StatisticsOptions(budget=budget, entropy_gradient=entropy_gradient)
    return lambda hidden, weight, targets: softmax_statistics(hidden, weight, targets, options)[:2]


def logprob_inputs(shape: tuple[int, int, int], device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states [N, H], output matrix [V, H] and targets [N] of a shape (N, V, H); logits of standard deviation
    2."""
    tokens, vocabulary, width = shape
    torch.manual_seed(0)
    hidden = 2 * torch.randn(tokens, width, device=device, dtype=torch.bfloat16)
    weight = torch.randn(vocabulary, width, device=device, dtype=torch.bfloat16) / width**0.5
    return hidden.requires_grad_(), weight.requires_grad_(), torch.randint(0, vocabulary, (tokens,), device=device)


def logprob_errors(
    device: str, function: LogProb | None = None, shape: tuple[int, int, int] | None = None
) -> Iterator[Error]:
    """Errors of log-prob, entropy and gradients against float64. shape: as `logprob_inputs`."""
    usual = (64, 3000, 32) if device == "cpu" else (512, 20_000, 512)
    hidden, weight, targets = logprob_inputs(shape or usual, device)
    wide_hidden, wide_weight = (tensor.detach().double().requires_grad_() for tensor in (hidden, weight))

    def values(way: LogProb, hidden: Tensor, weight: Tensor) -> list[Tensor]:
        logprobs, entropies = way(hidden, weight, targets)
        assert entropies is not None
        gradients = torch.autograd.grad(logprobs.sum(), (hidden, weight))
        return [tensor.detach().double() for tensor in (logprobs, entropies, *gradients)]

    ours, plain = (values(way, hidden, weight) for way in (function or fused(4 << 20), naive))
    names = "log-prob, rms", "entropy, rms", "gradient of hidden, relative", "gradient of weight, relative"
    for name, value, other, right in zip(names, ours, plain, values(naive, wide_hidden, wide_weight), strict=True):
        scale = len(right) ** 0.5 if name.endswith("rms") else float(right.norm())
        yield f"error, {name}", float((value - right).norm()) / scale, 2 * float((other - right).norm()) / scale


def layer_errors(device: str, way: Callable[[Any], Any] = compiled) -> Iterator[Error]:
    """Errors of norm, gate and rotation and of their gradients, as `way` makes them, against float32."""
    torch.manual_seed(0)
    rows, heads, width = 300, 4, 64

    def draw(*sizes: int) -> Tensor:
        return torch.randn(*sizes, device=device).bfloat16()

    angles = draw(1, rows, width).float()

    def turned(function: Any) -> Callable[..., Tensor]:
        def run(query: Tensor, key: Tensor) -> Tensor:
            angled = (part.bfloat16().to(query.dtype) for part in (angles.cos(), angles.sin()))
            return torch.cat(function(query, key, *angled), 1)

        return run

    cases: tuple[tuple[str, Any, Any, list[Tensor]], ...] = (
        ("norm", norm, lambda function: partial(function, eps=1e-6), [draw(1, rows, width), draw(width)]),
        ("gate", gated, lambda function: function, [draw(1, rows, width), draw(1, rows, width)]),
        ("rotation", rotated, turned, [draw(1, heads, rows, width), draw(1, 2, rows, width)]),
    )
    for name, function, call, inputs in cases:
        weight = torch.randn_like(call(function)(*inputs), dtype=torch.float32)
        ours = with_gradients(call(way(function)), inputs, weight)
        rounded = with_gradients(call(function), inputs, weight)
        exact = with_gradients(call(function), [tensor.float() for tensor in inputs], weight)
        parts = "output", "first gradient", "second gradient"
        for part, value, other, right in zip(parts, ours, rounded, exact, strict=True):
            yield f"{name}: error, {part}", _relative(value, right), 2 * _relative(other, right)


def check_kernels(kernels: Sequence[str], sizes: Any, device: str) -> None:
    """Raise UserError where a kernel that `engine.kernels` names does not run here, or is less exact than it has to be.
    sizes: the configuration of the model, whose heads and windows are tried."""
    heads = sizes.num_attention_heads, getattr(sizes, "num_key_value_heads", None) or sizes.num_attention_heads
    width = getattr(sizes, "head_dim", None) or sizes.hidden_size // sizes.num_attention_heads
    case = Segments("all keys", ((60, (190, 70, 120)), (12, (35, 102))), heads, width)
    cases = [case, *([replace(case, name="window 50", window=50)] if getattr(sizes, "sliding_window", None) else [])]
    checks: dict[str, Callable[[], Iterator[Error]]] = {
        "flash4": lambda: chain.from_iterable(attention_errors(case, device, flash4) for case in cases),
        "layers": lambda: layer_errors(device),
    }
    for name in kernels:
        try:
            with torch.random.fork_rng():  # the run's own stays as it is
                figures = [(what, error, bound) for what, error, bound in checks[name]() if not error <= bound]
            wrong = [f"{what} {error:.2g}, at most {bound:.2g}" for what, error, bound in figures]
        except Exception as error:  # whatever a kernel, a driver or a compiler may raise
            wrong = [f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"]
        if wrong:
            what = f"{name} does not hold here against torch: {'; '.join(wrong)}"
            raise UserError(what, where=f"engine.kernels=[{','.join(kernels)}]", fix=f"leave {name} out")


def _relative(value: Tensor, exact: Tensor) -> float:
    return float((value.to(exact.dtype) - exact).norm() / exact.norm())


CHECKS: dict[str, Callable[[], Iterator[Error]]] = {
    "packed attention": lambda: chain.from_iterable(attention_errors(case, "cuda") for case in SEGMENTS),
    "fused log-prob": lambda: logprob_errors("cuda"),
}
