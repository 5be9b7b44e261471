"""What a training leaves in memory: nothing of the model, the optimiser or the sampler, whoever trains and samples.

    python -m tests.integration.test_left_in_memory TORCHCODEC OVERRIDES…

trains a run and prints the tensors that are alive afterwards. TORCHCODEC: `broken`, as where the system has no ffmpeg,
or `importable`: vLLM keeps what importing it has raised, with the frames that were on the stack.
"""

import gc
import json
import sys
from pathlib import Path

import pytest

from tests.integration.commands import program
from tests.unit.training.small import SMALL

pytestmark = pytest.mark.disaster
FEW = 2000  # numbers: the smallest matrix of the base has more
VLLM = ("sampler=vllm", "sampler.memory_fraction=0.06")
ONE = (*SMALL, "train.steps=1", "model.dtype=bfloat16")


def alive() -> list[str]:
    """Tensors of more than a few numbers. vLLM keeps shapes of weights, as tensors without any, and for its next engine
    the table of positions."""
    import torch

    gc.collect()
    tables = [one for one in gc.get_objects() if type(one).__name__ == "RotaryEmbedding"]
    kept = {id(tensor) for table in tables for tensor in table.buffers()}
    found = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor) and not one.is_meta]
    found = [one for one in found if one.numel() > FEW and id(one) not in kept]
    return [f"{type(one).__name__} {one.dtype} {tuple(one.shape)}" for one in found]


def main(torchcodec: str, *words: str) -> None:
    import types

    from tepo.config.compose import compose
    from tepo.training.loop import train

    decoders = types.ModuleType("torchcodec.decoders")
    if torchcodec == "importable":
        decoders.AudioDecoder = object  # type: ignore[attr-defined]
        sys.modules["torchcodec"] = types.ModuleType("torchcodec")
    sys.modules["torchcodec.decoders"] = decoders
    train(compose(list(words)))
    sys.stdout.write(json.dumps(alive()))


PAIRS = [
    pytest.param("broken", (), id="torch-torch"),
    pytest.param("broken", VLLM, id="torch-vllm", marks=pytest.mark.vllm),
    pytest.param("importable", VLLM, id="torch-vllm-torchcodec", marks=pytest.mark.vllm),
    *(
        pytest.param(
            "broken",
            ("engine=deepspeed", f"engine.zero_stage={stage}", *sampler),
            id=f"deepspeed{stage}-{'vllm' if sampler else 'torch'}",
            marks=[pytest.mark.deepspeed, *([pytest.mark.vllm] if sampler else [])],
        )
        for stage in (2, 3)
        for sampler in ((), VLLM)
    ),
]


@pytest.mark.parametrize(("torchcodec", "pair"), PAIRS)
def test_nothing_is_left(torchcodec: str, pair: tuple[str, ...], tmp_path: Path) -> None:
    words = (*ONE, *pair, f"store={tmp_path}")
    ended = program("tests.integration.test_left_in_memory", torchcodec, *words).end(300)
    assert json.loads(ended.stdout.splitlines()[-1]) == []


if __name__ == "__main__":
    main(*sys.argv[1:])
