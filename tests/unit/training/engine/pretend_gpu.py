"""The updates of the embedded engine on a GPU that is not there:
torch's fake tensors, which compute nothing but know devices.

Run as a script. Ends with an error where tensors of two devices meet, prints where the host would wait for the GPU, the
device of what a resumed optimiser holds, and the matrix products of the fused op. A device made up under the name `gpu`
stands for CUDA, which this torch may lack.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from perf.gpu.models import Case, model_of, rollout_of, run_config
from tepo.config.compose import compose
from tepo.objectives import load_objective
from tepo.objectives.batch import TokenBatch
from tepo.objectives.objective import Plan
from tepo.policy.logprobs import tile
from tepo.policy.logprobs.softmax_at_temperature import StatisticsOptions, softmax_statistics
from tepo.policy.model.kernel_attention import varlen_available
from tepo.sampling.gap import GapAlarm
from tepo.training.engine import optimizer_state
from tepo.training.engine.torch_engine import TorchEngine
from tepo.training.loop import accumulate
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.rollout_batch import mini_batches
from tepo.training.update import Updater

DEVICE = "gpu:0"
CASE = Case("small", 512, 16, 1024, False)


class Watch(TorchDispatchMode):
    """Notes matrix products, and the places of our code in which the host waits for the device: a value read, or a copy
    that blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.products = set[str](), set[str]()

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options, name = kwargs or {}, str(operator)
        copied = name.startswith("aten._to_copy") and not options.get("non_blocking")
        moved = copied and options.get("device") and args[0].device != torch.device(options["device"])
        if "mm" in name:
            self.products.add(name)
        if moved or "_local_scalar_dense" in name or "nonzero" in name or "_unique" in name:
            frames = (frame for frame in reversed(traceback.extract_stack()) if "/tepo/" in frame.filename)
            self.places.update(f"{Path(frame.filename).name}:{frame.name} {name}" for frame in islice(frames, 1))
        return operator(*args, **options)


def on_device(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`torch.tensor` makes its tensor where no fake device is; move it as a second step."""

    def made(data: Any, *args: Any, device: Any = None, **options: Any) -> Tensor:
        value = make(data, *args, **options)
        return value if device is None else value.to(device)

    return made


def moved(model: nn.Module) -> nn.Module:
    """The model with uninitialised weights on the device; tied ones stay tied."""
    seen: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, value in list(module._parameters.items()):
            if value is not None:
                made = nn.Parameter(torch.empty_like(value, device=DEVICE))
                module._parameters[name] = seen.setdefault(id(value), made)
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = torch.empty_like(buffer, device=DEVICE)
    return model


def waits(updater: Updater, objective: str, rollout: Any) -> list[str]:
    updater.objective = load_objective(objective)
    advantages = torch.empty_like(rollout.sampler_logprobs)
    mini_batch, _ = mini_batches(rollout, advantages, updater.config.train, updater.dealer, 1)
    with Watch() as found:
        accumulate(updater, mini_batch, StepMetrics())
    return sorted(found.places)


def resumed(engine: TorchEngine) -> list[str]:
    """Devices of the optimiser's state after a load, by kind."""
    (name, master), *_ = engine.masters.items()
    shapes = {"step": (), **dict.fromkeys(optimizer_state.KEYS, master.shape)}
    state = [optimizer_state.Piece(kind, name, torch.zeros(shape)) for kind, shape in shapes.items()]
    with mock.patch.object(optimizer_state, "read", return_value=iter(state)):
        engine.load(Path())
    return sorted({f"{piece.kind} {piece.value.device}" for piece in engine.state()})


def offloaded() -> list[str]:
    """Devices of weights and state after an update of an engine that keeps its optimiser in main memory."""
    model, config = nn.Linear(8, 4, dtype=torch.bfloat16, device=DEVICE), compose(["engine.offload=true"])
    engine = TorchEngine(model, config.train, config.engine)
    engine.update({name: torch.empty(p.shape, device=DEVICE) for name, p in engine.parameters.items()}, 1e-3)
    held = [("weight", model.weight), *((piece.kind, piece.value) for piece in engine.state())]
    return sorted({f"{kind} {value.device}" for kind, value in held})


def products(widens: bool) -> list[str]:
    """Those of the fused log-prob and entropy in bfloat16, forward and backward, over several tiles in both directions.

    widens: whether torch's `addmm` does, as from 2.10 on."""
    hidden = torch.empty(600, 16, dtype=torch.bfloat16, device=DEVICE, requires_grad=True)
    weight = torch.empty(5000, 16, dtype=torch.bfloat16, device=DEVICE, requires_grad=True)
    with mock.patch.object(tile, "_ADDMM_WIDENS", widens), Watch() as found:
        targets = torch.zeros(600, dtype=torch.int64, device=DEVICE)
        options = StatisticsOptions(entropy_gradient=True, budget=0)
        logprobs, entropies, _ = softmax_statistics(hidden, weight, targets, options)
        (logprobs.sum() + entropies.sum()).backward()
    return sorted(found.products)


def main() -> None:
    _setup_privateuseone_for_python_backend("gpu")
    fake_tensor.CONSTANT_NUMEL_LIMIT = -1  # else small tensors are also computed for real
    setattr(fake_tensor.FakeTensor, "is_cuda", property(lambda tensor: tensor.device.type == "gpu"))  # noqa: B010  (a type checker knows it as a bool)
    torch.tensor = on_device(torch.tensor)
    for owner in (TokenBatch, Plan):  # read from the device once a mini-batch, not in the loop that is looked at
        setattr(owner, "counts", property(lambda part: [CASE.context - 256] * len(part.lengths)))  # noqa: B010
    setattr(Updater, "check_finite", lambda updater, losses, tokens, step: True)  # noqa: B010
    with (
        fake_tensor.FakeTensorMode(allow_non_fake_inputs=True),
        mock.patch("torch.cuda.get_device_capability", return_value=(9, 0)),
    ):
        model, config = moved(model_of(CASE.shape, "cpu")), run_config(CASE)
        engine = TorchEngine(model, config.train)
        alarm = GapAlarm(1.0, temperature=1.0, dtypes=("bfloat16", "bfloat16"))
        updater = Updater(config, load_objective("tepo"), engine, alarm)
        rollout = rollout_of(CASE, 512, DEVICE)
        found = {
            "flash": varlen_available(torch.empty(1, 1, 16, dtype=torch.bfloat16, device=DEVICE)),
            "waits": {name: waits(updater, name, rollout) for name in sys.argv[1:]},
            "resumed": resumed(engine),
            "offloaded": offloaded(),
            "products": products(True),
            "products before torch 2.10": products(False),
        }
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    # autograd's thread for a device that is not there may still run, and the exit of the interpreter would abort
    os._exit(0)


if __name__ == "__main__":
    main()
