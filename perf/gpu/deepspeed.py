"""DeepSpeed on one rank (NCCL on a GPU) in bfloat16, ZeRO 2 and 3, against the embedded engine: losses, gradient
norms, weights.

Three updates of a two-layer model, each of two micro-batches and an empty one, which a rank without work pushes. Then a
third update from a state that ZeRO 2 saved after the second, by ZeRO 3 and by the embedded engine; and the step with
the optimiser in main memory, with one thread and with as many as there are cores.
"""

import gc
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from perf.gpu.part import LEFT_MIB, allocated
from perf.gpu.runs import need
from tepo.config.run_config import RunConfig
from tepo.policy.logprobs.token_statistics import token_statistics
from tepo.policy.packing.packing import Packed, pack
from tepo.store.checkpoint_files import write_files
from tepo.training.engine import optimizer_state
from tepo.training.engine.torch_engine import TorchEngine
from tepo.training.probes.models import SHAPES, Case, model_of, run_config
from tepo.training.probes.probe_record import Figure
from tepo.training.probes.timing import wait

_SHAPE = "two layers"
_SIZES = {"hidden_size": 1792, "intermediate_size": 9472, "num_attention_heads": 14, "vocab_size": 8192}
_RATE, _UPDATES, _LENGTHS = 1e-3, 3, (96, 40)
_BOUNDS = {"loss": 0.02, "gradient norm": 0.05, "weights": 0.3}  # relative; of the weights, to how far they moved


@dataclass
class Trained:
    """Losses and gradient norms of some updates, and the weights after them."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)


def measure(device: str, small: bool) -> Iterator[Figure]:
    """All comparisons, the embedded engine first."""
    need("deepspeed")
    SHAPES[_SHAPE] = ("qwen2", SHAPES["small"][1] | ({} if small else _SIZES))
    start = {name: value.detach().to("cpu", copy=True) for name, value in model_of(_SHAPE, device).state_dict().items()}
    engine = engine_of("torch", device)
    embedded = train(engine, device, 0, _UPDATES)
    engine.close()
    with tempfile.TemporaryDirectory() as name:
        for stage in (2, 3):
            engine = engine_of("deepspeed", device, stage)
            found = train(engine, device, 0, 2)
            if stage == 2:
                state, kept = Path(name), found.weights
                write_files(state, optimizer_state.files(engine.state()))
            found = join(found, train(engine, device, 2, _UPDATES))
            yield from compare(f"ZeRO {stage}", found, embedded, start)
            engine.close()
            del engine
            yield Figure(f"ZeRO {stage}: allocated after close", "MiB", allocated(device) / 2**20, LEFT_MIB, "<=")
        for kind in ("deepspeed", "torch"):
            engine = engine_of(kind, device, 3, weights=kept)
            engine.load(state)
            last = Trained(embedded.losses[2:], embedded.norms[2:], embedded.weights)
            title = "saved by ZeRO 2, loaded by " + ("ZeRO 3" if kind == "deepspeed" else "the embedded engine")
            yield from compare(title, train(engine, device, 2, _UPDATES), last, start)
            engine.close()
            del engine
    yield from offloaded(device)


def engine_of(
    kind: str, device: str, stage: int = 2, offload: bool = False, weights: dict[str, torch.Tensor] | None = None
) -> Any:
    """An engine over the same random model."""
    gc.collect()
    config = configuration(stage, offload)
    model = model_of(_SHAPE, device)
    if weights is not None:
        model.load_state_dict(weights)
    if kind == "torch":
        return TorchEngine(model, config.train)
    from tepo.training.engine.deepspeed_engine import DeepSpeedEngine

    return DeepSpeedEngine(model, config)


def configuration(stage: int, offload: bool) -> RunConfig:
    """Configuration of a run with DeepSpeed."""
    config = run_config(Case(_SHAPE, 512, 16, 1024, False))
    config.engine.kind, config.engine.zero_stage, config.engine.offload = "deepspeed", stage, offload
    return config


def batch(update: int, number: int, device: str) -> tuple[Packed, torch.Tensor]:
    """A group of two responses as a micro-batch, and its advantages [N]."""
    draw = torch.Generator().manual_seed(10 * update + number)
    words = min(512, SHAPES[_SHAPE][1]["vocab_size"])
    prompt, *responses = [torch.randint(2, words, (n,), generator=draw).numpy() for n in (16, *_LENGTHS)]
    signs = torch.cat([torch.full((n,), sign) for n, sign in zip(_LENGTHS, (1.0, -0.7), strict=True)])
    return pack([(prompt, responses)]).to(device), signs.to(device)


def train(engine: Any, device: str, first: int, last: int) -> Trained:
    """Some updates: two micro-batches and an empty one each."""
    found = Trained()
    for update in range(first, last):
        total = torch.zeros((), device=device)
        for number in range(2):
            packed, advantages = batch(update, number, device)
            loss = -(token_statistics(engine.model, packed).logprobs * advantages).sum() / (2 * sum(_LENGTHS))
            engine.backward(loss)
            total += loss.detach()
        engine.backward(token_statistics(engine.model, packed).logprobs[:0].sum())
        found.norms.append(engine.step(_RATE)["actor/grad_norm"])
        found.losses.append(float(total))
    found.weights = {name: value.detach().to("cpu", copy=True) for name, value in engine.weights().items()}
    return found


def join(one: Trained, other: Trained) -> Trained:
    """The updates of both, one after the other."""
    return Trained(one.losses + other.losses, one.norms + other.norms, other.weights)


def compare(name: str, found: Trained, expected: Trained, start: dict[str, torch.Tensor]) -> Iterator[Figure]:
    """Distances between the ends of two trainings; each must stay within its bound."""
    pairs = {"loss": (found.losses, expected.losses), "gradient norm": (found.norms, expected.norms)}
    for what, (ours, theirs) in pairs.items():
        apart = max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(ours, theirs, strict=True))
        yield Figure(f"{name}: {what} apart from the embedded engine's", "relative", apart, _BOUNDS[what], "<=")
    flat = [torch.cat([w[key].float().flatten() for key in start]) for w in (found.weights, expected.weights, start)]
    apart = float((flat[0] - flat[1]).norm() / (flat[1] - flat[2]).norm())
    yield Figure(f"{name}: weights apart, to how far they moved", "relative", apart, _BOUNDS["weights"], "<=")


def offloaded(device: str) -> Iterator[Figure]:
    """Seconds of a step whose optimiser is in main memory, by threads."""
    engine, cores = engine_of("deepspeed", device, 2, offload=True), len(os.sched_getaffinity(0))
    before, taken = torch.get_num_threads(), {}
    train(engine, device, 0, 1)
    for threads in dict.fromkeys((1, min(16, cores))):
        torch.set_num_threads(threads)
        packed, advantages = batch(0, 0, device)
        engine.backward((token_statistics(engine.model, packed).logprobs * advantages).sum())
        wait(device)
        begin = time.perf_counter()
        engine.step(_RATE)
        wait(device)
        taken[threads] = time.perf_counter() - begin
    torch.set_num_threads(before)
    million = sum(value.numel() for value in engine.weights().values()) / 1e6
    engine.close()
    for threads, spent in taken.items():
        note = f"{million:.0f} million weights"
        yield Figure(f"offloaded step, {threads} threads, to one", "s", spent, taken[1], note=note)
