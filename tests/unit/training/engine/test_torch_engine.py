import pytest
import torch

from tepo.config.compose import compose
from tepo.training.engine import update_rms
from tepo.training.engine.torch_engine import TorchEngine


class _One(torch.nn.Module):
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
    metrics = engine.step(1e-3)
    assert (metrics["actor/grad_norm"], metrics["actor/skipped"]) == (1.0, 0.0)


def test_the_first_update_by_hand() -> None:
    """Adam's is the sign of the gradient, and decay is of the weight."""
    engine = TorchEngine(_One(torch.float32), compose(["train.weight_decay=0.1"]).train)
    engine.backward(engine.model.weight.sum())
    assert float(engine.step(1e-3)["actor/update_rms"]) == pytest.approx(1e-3 + 0.1 * 1e-3, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("decay", "chunk"), [(0.0, 1 << 24), (0.5, 1 << 24), (0.5, 4)])
def test_the_size_of_an_update_is_what_the_weights_moved(
    dtype: torch.dtype, decay: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over all parameters, of which one has no gradient, however few numbers are looked at at a time."""
    monkeypatch.setattr(update_rms, "_CHUNK", chunk)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 3), torch.nn.Linear(2, 2)).to(dtype)
    engine = TorchEngine(model, compose([f"train.weight_decay={decay}", "train.grad_clip=0.5"]).train)
    for scale in (1.0, -3.0, 0.01):
        before = [master.detach().clone() for master in engine.masters.values()]
        loss = model[:2](torch.ones(4, 7, dtype=dtype)).square().sum() * scale
        engine.backward(loss)
        metrics = engine.step(1e-2)
        moved = [now.detach() - old for now, old in zip(engine.masters.values(), before, strict=True)]
        expected = torch.cat([part.flatten() for part in moved]).double().square().mean().sqrt()
        assert float(metrics["actor/update_rms"]) == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize(("scale", "clipped"), [(0.5, 0.0), (1.0, 0.0), (3.0, 1.0), (float("inf"), 0.0)])
def test_a_norm_above_the_bound_counts_as_clipped(scale: float, clipped: float) -> None:
    """The norm itself is that before clipping; an update that is left out is not clipped."""
    engine = TorchEngine(_One(torch.float32), compose(["train.grad_clip=1"]).train)
    engine.backward(engine.model.weight.sum() * scale)
    metrics = engine.step(1e-3)
    assert metrics["actor/grad_clipped"] == clipped
    assert metrics["actor/grad_norm"] == scale


@pytest.mark.parametrize("beta2", [0.999, 0.9, 0.0])
def test_the_second_moment_decays_as_configured(beta2: float) -> None:
    """Gradients 1 and 2, by hand: m = 0.1 (0.9 + 2) and v = (1 - b) (b + 4), both corrected for their start at 0."""
    engine = TorchEngine(_One(torch.float32), compose([f"train.adam_beta2={beta2}", "train.grad_clip=inf"]).train)
    engine.backward(engine.model.weight.sum())
    engine.step(1e-3)
    engine.backward(engine.model.weight.sum() * 2)
    moved = float(engine.step(1e-3)["actor/update_rms"])
    first = (0.1 * 0.9 + 0.1 * 2) / (1 - 0.9**2)
    second = (1 - beta2) * (beta2 + 4) / (1 - beta2**2)
    assert moved == pytest.approx(1e-3 * first / second**0.5, rel=1e-5)
