import os
from pathlib import Path

import pytest
import torch

import tepo
from tepo.policy.logprobs.softmax_at_temperature import StatisticsOptions, softmax_statistics
from tests.conftest import TRITON
from tests.support.commands import python

WAYS = pytest.mark.parametrize("budget", [0, 10**9], ids=["chunked", "direct"])


def naive(hidden, weight, targets, temperature=1.0):
    logp = torch.log_softmax(hidden @ weight.t() / temperature, dim=-1)
    return logp.gather(1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def inputs(tokens, vocabulary, width, dtype=torch.float64, spread=1.0):
    torch.manual_seed(tokens)
    return (
        torch.randn(tokens, width, dtype=dtype, requires_grad=True),
        (spread * torch.randn(vocabulary, width, dtype=dtype)).requires_grad_(),
        torch.randint(0, vocabulary, (tokens,)),
    )


def ours(hidden, weight, targets, **options):
    return softmax_statistics(hidden, weight, targets, StatisticsOptions(**options))


def both_gradients(function, hidden, weight, targets, **options):
    logprobs, entropies = function(hidden, weight, targets, **options)[:2]
    weights = torch.linspace(-1, 1, len(hidden), dtype=logprobs.dtype)
    return (
        logprobs.detach(),
        entropies.detach(),
        *torch.autograd.grad((weights * logprobs).sum() + (weights.flip(0) * entropies).sum(), (hidden, weight)),
    )


@WAYS
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("shape", [(37, 300, 8), (5, 4099, 16), (700, 2500, 8)])
def test_values_and_gradients(shape, temperature, budget):
    found = both_gradients(ours, *inputs(*shape), temperature=temperature, entropy_gradient=True, budget=budget)
    for value, expected in zip(found, both_gradients(naive, *inputs(*shape), temperature=temperature), strict=True):
        torch.testing.assert_close(value, expected, atol=1e-10, rtol=1e-8)


@WAYS
def test_gradcheck_of_the_exact_kl(budget):
    hidden, weight, targets = inputs(4, 9, 3)
    reference = torch.log_softmax(torch.randn(4, 9, dtype=torch.float64), -1)
    options = {"temperature": 1.3, "entropy_gradient": True, "reference": reference, "budget": budget}
    assert torch.autograd.gradcheck(lambda h, w: ours(h, w, targets, **options), (hidden, weight))
    logp = torch.log_softmax(hidden @ weight.t() / 1.3, -1)
    found = ours(hidden, weight, targets, temperature=1.3, reference=reference)[2]
    torch.testing.assert_close(found, (logp.exp() * (logp - reference)).sum(-1))
    assert ours(hidden, weight, targets, reference=torch.log_softmax(hidden @ weight.t(), -1))[2].abs().max() < 1e-12


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("cut", [1, 3, 40])
def test_an_exact_kl_is_the_same_cut_by_tokens(cut, dtype):
    """Of all tokens at once, and of `cut` at a time, the last fewer."""
    tokens, vocabulary = 40, 1100
    reference = torch.log_softmax(3 * torch.randn(tokens, vocabulary, generator=torch.Generator().manual_seed(1)), -1)

    def values(budget):
        hidden, weight, targets = inputs(tokens, vocabulary, 16)
        leaves = [value.detach().to(dtype).requires_grad_() for value in (hidden, weight)]
        options = {"temperature": 0.7, "entropy_gradient": True, "reference": reference, "budget": budget}
        found = ours(*leaves, targets, **options)
        scales = (torch.linspace(-1, 1, tokens), 0.3, 2.0)
        loss = sum((scale * value).sum() for scale, value in zip(scales, found, strict=True))
        return *(value.detach() for value in found), *torch.autograd.grad(loss, leaves)

    for value, whole in zip(values(4 * vocabulary * cut), values(10**9), strict=True):
        assert value.dtype == whole.dtype
        close = {} if dtype == torch.float64 else {"atol": 2e-2 * float(whole.abs().max()), "rtol": 0}
        torch.testing.assert_close(value, whole, **close)


@WAYS
def test_what_is_not_asked_for_is_not_made(budget):
    """The entropy has no gradient, there is no KL, and a head that is frozen takes none."""
    hidden, weight, targets = inputs(5, 3000, 4)
    logprobs, entropies, kl = ours(hidden, weight.detach(), targets, budget=budget)
    assert (entropies.requires_grad, kl) == (False, None)
    assert ours(hidden, weight, targets, need_entropy=False, budget=budget)[1] is None
    slope = torch.autograd.grad(naive(hidden, weight, targets)[0].sum(), hidden)
    torch.testing.assert_close(torch.autograd.grad(logprobs.sum(), hidden), slope)


@WAYS
@pytest.mark.parametrize("spread", [0.1, 3.0, 60.0], ids=["flat", "peaked", "certain"])
def test_float32_error_at_most_twice_the_naive_one(spread, budget):
    exact = both_gradients(naive, *inputs(300, 6000, 32, spread=spread))
    hidden, weight, targets = inputs(300, 6000, 32, spread=spread)
    single = [value.detach().float().requires_grad_() for value in (hidden, weight)]
    fused = both_gradients(ours, *single, targets, entropy_gradient=True, budget=budget)
    theirs = both_gradients(naive, *single, targets)
    for name, mine, other, truth in zip(("log-prob", "entropy", "hidden", "weight"), fused, theirs, exact, strict=True):
        error, limit = ((value.double() - truth).square().mean().sqrt().item() for value in (mine, other))
        assert error <= 2 * limit + 1e-12, f"{name}: {error:.2e} against {limit:.2e}"


@WAYS
def test_bfloat16_inputs_accumulate_in_float32(budget):
    hidden, weight, targets = inputs(300, 5000, 64)
    half = [value.detach().bfloat16().requires_grad_() for value in (hidden, weight)]
    exact = both_gradients(naive, *(value.detach().double().requires_grad_() for value in half), targets)
    *values, hidden_slope, weight_slope = both_gradients(ours, *half, targets, entropy_gradient=True, budget=budget)
    assert {values[0].dtype, hidden_slope.dtype, weight_slope.dtype} == {torch.float32, torch.bfloat16}
    torch.testing.assert_close([value.double() for value in values], list(exact[:2]), atol=1e-4, rtol=1e-5)
    for value, expected in zip((hidden_slope, weight_slope), exact[2:], strict=True):
        assert (value.double() - expected).norm() < 0.01 * expected.norm()


SHAPES = """
import os, resource
import torch
from tepo.policy.model.load_policy import load_policy
load_policy("package:laptop", dtype="bfloat16")
weights = [torch.randn(wide, 576).bfloat16() for wide in (576, 1536)]
peaks = []
for rows in range(300, 660):
    for weight in weights:
        torch.nn.functional.linear(torch.randn(rows, 576).bfloat16(), weight)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(peaks[-1] - peaks[60])
"""


def test_products_of_many_shapes_take_no_more_memory() -> None:
    """Kilobytes beyond those of the first sixty numbers of tokens: 15 to 85 MiB, and 570 where all kernels are kept."""
    assert int(python("-c", SHAPES).stdout) < 256 << 10


_INTERPRETED = """
import torch
from tepo.policy.logprobs import tile, tile_triton
from tepo.policy.logprobs.tile_sums import GradientCoefficients, RunningSums
torch.manual_seed(0)
logits = 5 * torch.randn(6, 5000)
targets = torch.tensor([0, 4999, 17, -3, 6000, 4096])
def run(part):
    state = RunningSums.empty(torch.zeros(6, 1))
    for columns in (slice(0, 300), slice(300, 5000)):
        part.accumulate(logits[:, columns].contiguous(), state, targets - columns.start, 0.8)
    return state.finish()
ours, theirs = run(tile_triton), run(tile)
for a, b in zip(ours, theirs):
    torch.testing.assert_close(a[:3], b[:3])
slope = torch.randn(6)
for s in (None, slope):
    coefficients = GradientCoefficients(theirs[2], torch.randn(6), s, torch.randn(6))
    a = tile_triton.gradient(logits.clone(), coefficients, targets, 0.8, torch.float32)
    torch.testing.assert_close(a, tile.gradient(logits.clone(), coefficients, targets, 0.8, torch.float32))
    half = tile_triton.gradient(logits.clone(), coefficients, targets, 0.8, torch.bfloat16)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), a, atol=1e-3, rtol=1e-2)
"""


def with_triton(code: str, cache: Path, **variables: str) -> None:
    where = os.pathsep.join((str(Path(tepo.__file__).parents[1]), TRITON))
    python("-c", code, PYTHONPATH=where, TRITON_CACHE_DIR=str(cache), **variables)


@pytest.mark.triton
def test_triton_kernels_interpreted_on_cpu(tmp_path: Path) -> None:
    with_triton(_INTERPRETED, tmp_path, TRITON_INTERPRET="1")


_COMPILED = """
from types import SimpleNamespace
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction
from tepo.policy.logprobs import tile_triton
from tepo.policy.logprobs.tile_sums import GradientCoefficients, RunningSums
run, done = JITFunction.run, []
JITFunction.run = lambda kernel, *given, warmup, **named: done.append(run(kernel, *given, warmup=True, **named))
def launches():
    for rows, columns in ((32, 4096), (7, 300), (1, 1)):  # of all columns, of the last ones, of `kernels_run`
        logits, targets = torch.zeros(rows, columns), torch.zeros(rows, dtype=torch.int64)
        tile_triton.accumulate(logits, RunningSums.empty(logits), targets, 0.8)
        for slope in (None, torch.zeros(rows)):
            coefficients = GradientCoefficients(torch.zeros(rows), torch.zeros(rows), slope, torch.zeros(rows))
            for dtype in (torch.float32, torch.bfloat16):
                tile_triton.gradient(logits, coefficients, targets, 0.8, dtype)
for card in (80, 89, 90, 100):
    triton.runtime.driver.set_active(SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", card, 32),
        get_current_device=lambda: card,
        get_current_stream=lambda device: 0,
    ))
    launches()
    assert {kernel.metadata.target.arch for kernel in done} == {card}
    assert all(kernel.asm["cubin"].startswith(b"\\x7fELF") for kernel in done)
    kernels = {name for name, one in vars(tile_triton).items() if isinstance(one, JITFunction)}
    assert {kernel.name for kernel in done} == kernels
    assert len({id(kernel) for kernel in done}) == len(done) == 15
    done.clear()
"""


@pytest.mark.triton
@pytest.mark.slow
def test_triton_kernels_compile_for_every_card(tmp_path: Path) -> None:
    """As they are launched, for A100, L40S, H100 and B200: Triton holds the assembler, and no GPU is needed."""
    with_triton(_COMPILED, tmp_path)
    named = {file.name for file in Path(tepo.__file__).parent.rglob("*.py") if "import triton" in file.read_text()}
    assert named == {"tile_triton.py"}
