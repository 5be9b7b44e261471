"""A program for test_planned_layout.py, as a rank: runs one after the other, and a look at the weights in this rank's
part of its sampling engine whenever they were handed over.

    python -m tests.integration.planned_layout_run OUT '{"NAME": ["seed=1", "sampler=vllm", …], …}'

Each rank writes OUT/NAME_RANK.json, a list of looks: names of tensors that differ in a bit from the trainer's, of those
that are others than at the look before, a hash of the trainer's, requests so far. In the run LOST the last rank is
killed where it would sample the second step, so that its neighbour waits for it inside of vLLM.
"""

import hashlib
import json
import os
import signal
import sys
from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tepo.config.compose import compose
from tepo.sampling.vllm.vllm_sampler import import_vllm
from tepo.training.distributed import liveness, process_group
from tepo.training.loop import train
from tepo.training.run import Run
from tepo.training.setup import TrainState

LOST = "lost"
SOON = 30.0  # in place of SILENT
_MERGED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj"}
_MERGED |= {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}


def keep_weights() -> None:
    """Have vLLM's CPU build keep the weights that it packs for its kernels, however it packs them on this CPU."""
    import_vllm()
    from vllm.model_executor.layers import utils

    packed = utils.dispatch_cpu_unquantized_gemm
    utils.dispatch_cpu_unquantized_gemm = lambda layer, remove_weight: packed(layer, remove_weight=False)


def part_of(state: Any) -> dict[str, Tensor]:
    """The trainer's weights, cut for this rank and put together as vLLM's modules have them."""
    ranks, parts = state.sampler.ranks, dict[str, list[Tensor]]()
    for name, value in state.engine.weights().items():
        kind = name.split(".")[-2]
        if "norm" not in kind:
            value = value.chunk(ranks.size, dim=1 if kind in ("o_proj", "down_proj") else 0)[ranks.index]
        parts.setdefault(name.replace(kind, _MERGED.get(kind, kind)), []).append(value)
    return {name: torch.cat(values) for name, values in parts.items()}


def copies(model: torch.nn.Module) -> dict[str, Tensor]:
    """Of the parameters."""
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def digest(weights: Any) -> str:
    """Of the bits of all tensors."""
    total = hashlib.sha256()
    for name, value in sorted(weights.items()):
        total.update(name.encode() + value.contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


class Looks:
    """The looks of a run."""

    def __init__(self, lost: bool):
        self.lost, self.before, self.taken = lost, dict[str, Tensor](), list[dict[str, Any]]()

    def take(self, state: Any) -> None:
        expected, (held,) = part_of(state), state.sampler.llm.apply_model(copies)
        names = sorted({*expected, *held})
        differing = [name for name in names if not _same(expected.get(name), held.get(name))]
        moved = [name for name in names if not _same(self.before.get(name), held.get(name))]
        weights = digest(dict(state.engine.weights().items()))
        asked = next(copy(state.sampler.asked))
        self.taken.append({"differing": differing, "moved": moved, "weights": weights, "asked": asked})
        self.before = held
        if self.lost and len(self.taken) == 2 and process_group.rank() == process_group.world_size() - 1:
            state.sampler.llm.llm_engine.step = lambda: os.kill(os.getpid(), signal.SIGKILL)


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and one.dtype == other.dtype and torch.equal(one, other)


def main(out: Path, runs: dict[str, list[str]]) -> None:
    torch.set_num_threads(1)
    keep_weights()
    load_weights = TrainState.load_weights
    for name, words in runs.items():
        looks = Looks(name == LOST)

        def load_and_look(state: Any, looks: Looks = looks, **options: bool) -> None:
            load_weights(state, **options)
            looks.take(state)

        TrainState.load_weights = load_and_look
        liveness.SILENT = SOON
        train(Run(compose(words)))
        (out / f"{name}_{process_group.rank()}.json").write_text(json.dumps(looks.taken))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
