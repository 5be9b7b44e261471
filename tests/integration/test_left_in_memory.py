"""What a training leaves in memory: nothing of the model, the optimiser or the sampler, whoever trains and samples.

    python -m tests.integration.test_left_in_memory TORCHCODEC '[["sampler=vllm", …], …]'

trains runs one after the other and prints after each the tensors that are alive. TORCHCODEC: `broken`, as where the
system has no ffmpeg, or `importable`: vLLM keeps what importing it has raised, with the frames that were on the stack.
"""

import gc
import json
import sys
from pathlib import Path

import pytest

from tepo.training.run import Run
from tests.support.commands import program
from tests.support.runs import SMALL

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


def main(torchcodec: str, runs: list[list[str]]) -> None:
    import types

    from tepo.config.compose import compose
    from tepo.training.loop import train

    decoders = types.ModuleType("torchcodec.decoders")
    if torchcodec == "importable":
        decoders.AudioDecoder = object  # type: ignore[attr-defined]
        sys.modules["torchcodec"] = types.ModuleType("torchcodec")
    sys.modules["torchcodec.decoders"] = decoders
    for words in runs:
        train(Run(compose(words)))
        sys.stdout.write(f"{json.dumps(alive())}\n")


STAGES = [("engine=deepspeed", f"engine.zero_stage={stage}") for stage in (1, 2, 3)]


@pytest.mark.deepspeed
@pytest.mark.vllm
@pytest.mark.parametrize(
    ("torchcodec", "more"),
    # DeepSpeed last: it makes a rank of the process
    [("broken", [(), VLLM, STAGES[0], *((*VLLM, *stage) for stage in STAGES)]), ("importable", [VLLM])],
)
def test_a_run_leaves_nothing_in_memory(torchcodec: str, more: list[tuple[str, ...]], tmp_path: Path) -> None:
    runs = [[*ONE, *words, f"store={tmp_path / str(place)}"] for place, words in enumerate(more)]
    ended = program("tests.integration.test_left_in_memory", torchcodec, json.dumps(runs)).end()
    lines = [line for line in ended.stdout.splitlines() if line.startswith(("[]", '["'))]  # not DeepSpeed's
    assert lines == ["[]"] * len(runs)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
