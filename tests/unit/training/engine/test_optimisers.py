import importlib.metadata
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.config.run_config import EngineConfig
from tepo.training.engine import optimizer_state
from tepo.training.engine.backends import engine_backend
from tepo.training.engine.torch_engine import TorchEngine
from tepo.training.loop import train
from tepo.training.run import Run
from tests.support.models import engine_model
from tests.support.runs import small, write_files

EIGHT_BIT, OFFLOAD = "engine.optimizer=adamw_8bit", "engine.offload=true"
OPTIMISERS = ["engine.optimizer=adamw", OFFLOAD, pytest.param(EIGHT_BIT, marks=pytest.mark.bitsandbytes)]
DTYPES = [torch.float32, torch.bfloat16]


def engine_of(word: str, dtype: torch.dtype = torch.float32) -> TorchEngine:
    config = compose([word, "train.weight_decay=0.1", "train.learning_rate=1e-3"])
    return TorchEngine(engine_model(0, tied=True).to(dtype), config.train, config.engine)


def update(engine: TorchEngine, seed: int) -> dict[str, float | Tensor]:
    """Of two micro-batches."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(2):
        tokens = torch.randint(3, 128, (4, 24), generator=generator)
        engine.backward(engine.model(input_ids=tokens, labels=tokens).loss)
    return engine.step(1e-3)


def bits(engine: TorchEngine) -> dict[str, bytes]:
    """Of the weights and their masters."""
    tensors = engine.weights() | {f"master {name}": master.detach() for name, master in engine.masters.items()}
    return {name: value.contiguous().view(torch.uint8).numpy().tobytes() for name, value in tensors.items()}


@pytest.mark.parametrize("dtype", DTYPES)
def test_offload_changes_no_bit_on_a_cpu(dtype: torch.dtype) -> None:
    plain, offloaded = engine_of("engine.optimizer=adamw", dtype), engine_of(OFFLOAD, dtype)
    for seed in range(3):
        first, second = update(plain, seed), update(offloaded, seed)
        assert float(first.pop("actor/update_rms")) == pytest.approx(float(second.pop("actor/update_rms")), rel=1e-6)
        assert first == second
    assert bits(plain) == bits(offloaded)


def test_an_offloaded_update_is_measured_by_a_sample_of_it() -> None:
    """Within one in fifty."""
    model = torch.nn.Linear(1 << 22, 3, bias=False)
    torch.nn.init.zeros_(model.weight)
    gradient = torch.randn(model.weight.shape, generator=torch.Generator().manual_seed(0))
    offloaded = TorchEngine(model, compose([]).train, EngineConfig(offload=True))
    for number in range(5):
        before, gradients = offloaded.masters["weight"].detach().clone(), {"weight": gradient / (1 + number)}
        moved = offloaded.update(gradients, 1e-3)
        exact = (offloaded.masters["weight"].detach() - before).double().square().sum()
        assert float(moved) == pytest.approx(float(exact), rel=0.02)
        assert torch.equal(model.weight, offloaded.masters["weight"])


@pytest.mark.bitsandbytes
@pytest.mark.parametrize("dtype", DTYPES)
def test_8bit_moments_move_the_weights_as_adamw_within_a_twentieth(dtype: torch.dtype) -> None:
    plain, rounded = engine_of("engine.optimizer=adamw", dtype), engine_of(EIGHT_BIT, dtype)
    start = torch.cat([master.detach().flatten().clone() for master in plain.masters.values()])
    for seed in range(5):
        update(plain, seed)
        update(rounded, seed)
    ends = [torch.cat([m.detach().flatten() for m in engine.masters.values()]) for engine in (plain, rounded)]
    distance, way = (ends[1] - ends[0]).norm(), (ends[0] - start).norm()
    assert 0.0 < distance < 0.05 * way


@pytest.mark.bitsandbytes
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_size_of_an_8bit_update_is_what_the_masters_moved(dtype: torch.dtype) -> None:
    engine = engine_of(EIGHT_BIT, dtype)
    for seed in range(3):
        before = [master.detach().clone() for master in engine.masters.values()]
        moved = float(update(engine, seed)["actor/update_rms"])
        parts = [(now.detach() - old).flatten() for now, old in zip(engine.masters.values(), before, strict=True)]
        assert moved == pytest.approx(float(torch.cat(parts).double().square().mean().sqrt()), rel=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("word", OPTIMISERS)
def test_the_state_resumes_bit_for_bit(word: str, dtype: torch.dtype, tmp_path: Path) -> None:
    engine = engine_of(word, dtype)
    for seed in range(2):
        update(engine, seed)
    write_files(tmp_path, optimizer_state.files(engine.state()))
    resumed = engine_of(word, dtype)
    resumed.model.load_state_dict(engine.model.state_dict())
    resumed.load(tmp_path)
    assert bits(resumed) == bits(engine)
    first, second = update(engine, 2), update(resumed, 2)
    assert first == second
    assert bits(resumed) == bits(engine)


def test_an_offloaded_state_is_that_of_adamw(tmp_path: Path) -> None:
    offloaded, plain = engine_of(OFFLOAD, torch.bfloat16), engine_of("engine.optimizer=adamw", torch.bfloat16)
    update(offloaded, 0)
    write_files(tmp_path, optimizer_state.files(offloaded.state()))
    plain.model.load_state_dict(offloaded.model.state_dict())
    plain.load(tmp_path)
    update(offloaded, 1)
    update(plain, 1)
    assert bits(plain) == bits(offloaded)


@pytest.mark.parametrize("rows", [0, 1])
def test_a_master_that_is_not_all_there_is_refused(tmp_path: Path, rows: int) -> None:
    """Training would go on from the weight as bfloat16 rounds it."""
    engine = engine_of("engine.optimizer=adamw", torch.bfloat16)
    update(engine, 0)
    write_files(tmp_path, optimizer_state.files(engine.state()))
    (file,) = (tmp_path / "optimizer").iterdir()
    tensors = load_file(file)
    name = next(name for name in tensors if name.startswith("master."))
    save_file(tensors | {name: tensors[name][:rows].clone()}, file)
    with pytest.raises(UserError, match="not all of the float32 weights"):
        engine_of("engine.optimizer=adamw", torch.bfloat16).load(tmp_path)


@pytest.mark.bitsandbytes
def test_the_state_of_another_optimiser_is_refused(tmp_path: Path) -> None:
    words = ("engine.optimizer=adamw", EIGHT_BIT)
    for writer, reader in (words, words[::-1]):
        folder = tmp_path / writer
        folder.mkdir()
        engine = engine_of(writer)
        update(engine, 0)
        write_files(folder, optimizer_state.files(engine.state()))
        with pytest.raises(UserError, match="of another optimiser"):
            engine_of(reader).load(folder)


def test_8bit_moments_are_refused_where_they_are_not_updated() -> None:
    with pytest.raises(UserError, match="8-bit moments are updated on the GPU"):
        engine_backend("torch").check_settings(compose([EIGHT_BIT, OFFLOAD]), 1)


def test_bitsandbytes_that_is_missing_or_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(UserError, match="bitsandbytes is not installed") as caught:
        train(Run(small(tmp_path, EIGHT_BIT, "model.path=nobody/nothing", f"model.revision={40 * '0'}")))
    assert "[bitsandbytes]" in caught.value.fix
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.49.2")
    with pytest.raises(UserError, match=r"bitsandbytes 0\.49\.2 is too old"):
        engine_backend("torch").check_available(compose([EIGHT_BIT]))
