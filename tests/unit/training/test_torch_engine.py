"""The embedded engine's arithmetic in bfloat16."""

import pytest
import torch

from tepo.config.compose import compose
from tepo.training.torch_engine import TorchEngine


class _One(torch.nn.Module):
    """One weight."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_gradients_of_many_micro_batches_add_up(dtype: torch.dtype) -> None:
    """1 + 256 / 512: in bfloat16 itself 1 + 1/512 is 1."""
    engine = TorchEngine(_One(dtype), compose([]).train)
    for scale in [1.0] + [2.0**-9] * 256:
        engine.backward((engine.model.weight * scale).sum())
    assert engine.step(1e-3)["actor/grad_norm"] == pytest.approx(1.5, abs=1e-6)


def test_updates_below_the_resolution_of_bfloat16_add_up_too() -> None:
    engine = TorchEngine(_One(torch.bfloat16), compose([]).train)
    for _ in range(8):
        engine.backward(engine.model.weight.sum())
        engine.step(1e-3)
    assert float(engine.masters["weight"].detach()) == pytest.approx(1 - 8e-3, rel=1e-4)
    assert float(engine.model.weight.detach()) == pytest.approx(1 - 8e-3, abs=2e-3)


def test_a_gradient_that_is_not_finite_is_left_out() -> None:
    engine = TorchEngine(_One(torch.bfloat16), compose([]).train)
    engine.backward(engine.model.weight.sum() * float("inf"))
    assert engine.step(1e-3)["actor/skipped"] == 1.0
    engine.backward(engine.model.weight.sum())
    assert engine.step(1e-3) == {"actor/grad_norm": 1.0, "actor/skipped": 0.0}
