"""Part deepspeed: one rank (NCCL on a GPU) in bfloat16, ZeRO 2 and 3, against the embedded engine: losses, gradient
norms, weights.

Three updates of a two-layer model, each of two micro-batches and an empty one, which a rank without work pushes. Then a
third update from a state that ZeRO 2 saved after the second, by ZeRO 3 and by the embedded engine; and a step with the
optimiser in main memory.
"""

import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from perf.gpu.models import Case, model_of, run_config
from perf.gpu.record import Figure, named
from perf.gpu.runs import need
from perf.gpu.timing import allocated, once
from tepo.policy.logprobs.token_statistics import token_statistics
from tepo.policy.packing.packing import Packed, pack
from tepo.store.checkpoint_files import write_files
from tepo.training.engine import optimizer_state
from tepo.training.engine.torch_engine import TorchEngine

_RATE, _UPDATES, _LENGTHS = 1e-3, 3, (96, 40)
_LOSS, _NORM, _WEIGHTS = 0.02, 0.05, 0.3  # relative bounds; of the weights, to how far they moved
Weights = dict[str, torch.Tensor]


class Trained(NamedTuple):
    """Losses and gradient norms of some updates, and the weights after them."""

    losses: list[float]
    norms: list[float]
    weights: Weights


def deepspeed(device: str, small: bool) -> Iterator[Figure]:
    """All comparisons, the embedded engine first."""
    need("deepspeed")
    shape = "small" if small else "two layers"
    start = _copied(model_of(shape, device).state_dict())
    engine = engine_of("torch", shape, device)
    embedded = train(engine, device, 0, _UPDATES)
    engine.close()
    with tempfile.TemporaryDirectory() as name:
        for stage in (2, 3):
            engine = engine_of("deepspeed", shape, device, stage)
            first = train(engine, device, 0, 2)
            if stage == 2:
                write_files(Path(name), optimizer_state.files(engine.state()))
                kept = first.weights
            last = train(engine, device, 2, _UPDATES)
            whole = Trained(first.losses + last.losses, first.norms + last.norms, last.weights)
            yield from named(f"ZeRO {stage}", compare(whole, embedded, start))
            engine.close()
            del engine
            yield Figure(f"ZeRO {stage}: allocated after close", "MiB", allocated(device) / 2**20, 256.0, "<=")
        for kind, title in (("deepspeed", "ZeRO 3"), ("torch", "the embedded engine")):
            engine = engine_of(kind, shape, device, 3, weights=kept)
            engine.load(Path(name))
            right = Trained(embedded.losses[2:], embedded.norms[2:], embedded.weights)
            found = train(engine, device, 2, _UPDATES)
            yield from named(f"saved by ZeRO 2, loaded by {title}", compare(found, right, start))
            engine.close()
            del engine
    engine = engine_of("deepspeed", shape, device, offload=True)
    train(engine, device, 0, 1)
    packed, advantages = batch(0, 0, device)
    engine.backward((token_statistics(engine.model, packed).logprobs * advantages).sum())
    yield Figure("offloaded step", "s", once(lambda: engine.step(_RATE), device))
    engine.close()


def engine_of(
    kind: str, shape: str, device: str, stage: int = 2, offload: bool = False, weights: Weights | None = None
) -> Any:
    """An engine over the same random model."""
    gc.collect()
    config, model = run_config(Case(shape, 512, 16, 1024, False)), model_of(shape, device)
    config.engine.kind, config.engine.zero_stage, config.engine.offload = "deepspeed", stage, offload
    if weights is not None:
        model.load_state_dict(weights)
    if kind == "torch":
        return TorchEngine(model, config.train)
    from tepo.training.engine.deepspeed_engine import DeepSpeedEngine

    return DeepSpeedEngine(model, config)


def batch(update: int, number: int, device: str) -> tuple[Packed, torch.Tensor]:
    """A group of two responses as a micro-batch, and its advantages [N]."""
    draw = torch.Generator().manual_seed(10 * update + number)
    prompt, *responses = [torch.randint(2, 512, (n,), generator=draw).numpy() for n in (16, *_LENGTHS)]
    signs = torch.cat([torch.full((n,), sign) for n, sign in zip(_LENGTHS, (1.0, -0.7), strict=True)])
    return pack([(prompt, responses)]).to(device), signs.to(device)


def train(engine: Any, device: str, first: int, last: int) -> Trained:
    """Some updates: two micro-batches and an empty one each."""
    losses, norms = [], []
    for update in range(first, last):
        total = torch.zeros((), device=device)
        for number in range(2):
            packed, advantages = batch(update, number, device)
            loss = -(token_statistics(engine.model, packed).logprobs * advantages).sum() / (2 * sum(_LENGTHS))
            engine.backward(loss)
            total += loss.detach()
        engine.backward(token_statistics(engine.model, packed).logprobs[:0].sum())
        norms.append(engine.step(_RATE)["actor/grad_norm"])
        losses.append(float(total))
    return Trained(losses, norms, _copied(engine.weights()))


def _copied(weights: Weights) -> Weights:
    return {name: value.detach().to("cpu", copy=True) for name, value in weights.items()}


def compare(found: Trained, right: Trained, start: Weights) -> Iterator[Figure]:
    """Distances between the ends of two trainings; each must stay within its bound."""
    pairs = ("loss", found.losses, right.losses, _LOSS), ("gradient norm", found.norms, right.norms, _NORM)
    for what, ours, theirs, bound in pairs:
        apart = max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(ours, theirs, strict=True))
        yield Figure(f"{what} apart from the embedded engine's", "relative", apart, bound, "<=")
    flat = [torch.cat([w[key].float().flatten() for key in start]) for w in (found.weights, right.weights, start)]
    apart = float((flat[0] - flat[1]).norm() / (flat[1] - flat[2]).norm())
    yield Figure("weights apart, to how far they moved", "relative", apart, _WEIGHTS, "<=")
