import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.config.run_config import EngineConfig
from tepo.sampling import backends as samplers
from tepo.training.engine import backends as engines
from tepo.training.engine import optimizer_state, update_rms
from tepo.training.engine.torch_engine import TorchEngine
from tepo.training.loop import train
from tepo.training.run import Run
from tests.support.commands import program
from tests.support.models import engine_model
from tests.support.runs import COPYING, assert_same_run, own_backends, tiny, write_files

PLAIN, EIGHT_BIT, OFFLOAD = "engine.optimizer=adamw", "engine.optimizer=adamw_8bit", "engine.offload=true"
OPTIMISERS = [PLAIN, OFFLOAD, pytest.param(EIGHT_BIT, marks=pytest.mark.bitsandbytes)]
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


def masters(engine: TorchEngine) -> Tensor:
    return torch.cat([master.detach().flatten() for master in engine.masters.values()])


def write_state(engine: TorchEngine, folder: Path) -> None:
    write_files(folder, optimizer_state.files(engine.state()))


def one_weight(*words: str, dtype: torch.dtype = torch.float32) -> TorchEngine:
    """An engine of a model that has a single weight, which is 1."""
    model = torch.nn.Linear(1, 1, bias=False, dtype=dtype)
    torch.nn.init.ones_(model.weight)
    return TorchEngine(model, compose(list(words)).train)


def step(engine: TorchEngine, *gradients: float) -> dict[str, float]:
    """An update by the sum of these gradients of that weight."""
    for gradient in gradients:
        engine.backward((engine.model.weight * gradient).sum())
    return {name: float(value) for name, value in engine.step(1e-3).items()}


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_gradients_of_many_micro_batches_add_up(dtype: torch.dtype) -> None:
    """1 + 256 / 512: in bfloat16 itself 1 + 1/512 is 1."""
    assert step(one_weight(dtype=dtype), 1.0, *[2.0**-9] * 256)["actor/grad_norm"] == pytest.approx(1.5, abs=1e-6)


def test_updates_below_the_resolution_of_bfloat16_add_up_too() -> None:
    engine = one_weight(dtype=torch.bfloat16)
    for _ in range(8):
        step(engine, 1.0)
    assert float(engine.masters["weight"].detach()) == pytest.approx(1 - 8e-3, rel=1e-4)
    assert float(engine.model.weight.detach()) == pytest.approx(1 - 8e-3, abs=2e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("decay", "chunk"), [(0.0, 1 << 24), (0.5, 4)])
def test_the_size_of_an_update_is_what_the_weights_moved(
    dtype: torch.dtype, decay: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over all parameters, of which one has no gradient, however few numbers are looked at at a time."""
    monkeypatch.setattr(update_rms, "_CHUNK", chunk)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 3), torch.nn.Linear(2, 2)).to(dtype)
    engine = TorchEngine(model, compose([f"train.weight_decay={decay}", "train.grad_clip=0.5"]).train)
    for scale in (1.0, -3.0, 0.01):
        before = masters(engine)
        engine.backward(model[:2](torch.ones(4, 7, dtype=dtype)).square().sum() * scale)
        moved = float(engine.step(1e-2)["actor/update_rms"])
        assert moved == pytest.approx(float((masters(engine) - before).double().square().mean().sqrt()), rel=1e-4)


@pytest.mark.parametrize(("scale", "clipped"), [(1.0, 0.0), (3.0, 1.0), (float("inf"), 0.0)])
def test_a_norm_above_the_bound_counts_as_clipped(scale: float, clipped: float) -> None:
    """The norm itself is that before clipping; an update that is left out is not clipped."""
    engine = one_weight("train.grad_clip=1", dtype=torch.bfloat16)
    metrics = step(engine, scale)
    assert (metrics["actor/grad_clipped"], metrics["actor/grad_norm"]) == (clipped, scale)
    assert metrics["actor/skipped"] == (scale == float("inf"))
    assert step(engine, 1.0)["actor/skipped"] == 0.0


def test_the_second_moment_decays_as_configured() -> None:
    """Gradients 1 and 2, by hand: m = 0.1 (0.9 + 2) and v = (1 - b) (b + 4), both corrected for their start at 0."""
    beta2 = 0.9
    engine = one_weight(f"train.adam_beta2={beta2}", "train.grad_clip=inf")
    step(engine, 1.0)
    first = (0.1 * 0.9 + 0.1 * 2) / (1 - 0.9**2)
    second = (1 - beta2) * (beta2 + 4) / (1 - beta2**2)
    assert step(engine, 2.0)["actor/update_rms"] == pytest.approx(1e-3 * first / second**0.5, rel=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_offload_changes_no_bit_on_a_cpu(dtype: torch.dtype) -> None:
    plain, offloaded = engine_of(PLAIN, dtype), engine_of(OFFLOAD, dtype)
    for seed in range(2):
        first, second = update(plain, seed), update(offloaded, seed)
        assert float(first.pop("actor/update_rms")) == pytest.approx(float(second.pop("actor/update_rms")), rel=1e-6)
        assert first == second
    assert bits(plain) == bits(offloaded)


def test_an_offloaded_update_is_measured_by_a_sample_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within one in fifty."""
    monkeypatch.setattr(update_rms, "_BLOCK", 1 << 10)
    model = torch.nn.Linear(1 << 17, 3, bias=False)
    torch.nn.init.zeros_(model.weight)
    gradient = torch.randn(model.weight.shape, generator=torch.Generator().manual_seed(0))
    offloaded = TorchEngine(model, compose([]).train, EngineConfig(offload=True))
    for number in range(2):
        before = masters(offloaded)
        moved = offloaded.update({"weight": gradient / (1 + number)}, 1e-3)
        assert float(moved) == pytest.approx(float((masters(offloaded) - before).double().square().sum()), rel=0.02)
        assert torch.equal(model.weight, offloaded.masters["weight"])


@pytest.mark.bitsandbytes
def test_8bit_moments_move_the_weights_as_adamw_within_a_twentieth() -> None:
    """And the size of each update is what the masters moved."""
    plain, rounded = engine_of(PLAIN, torch.bfloat16), engine_of(EIGHT_BIT, torch.bfloat16)
    start = masters(plain)
    for seed in range(5):
        before = masters(rounded)
        update(plain, seed)
        moved = float(update(rounded, seed)["actor/update_rms"])
        assert moved == pytest.approx(float((masters(rounded) - before).double().square().mean().sqrt()), rel=1e-5)
    assert 0.0 < (masters(rounded) - masters(plain)).norm() < 0.05 * (masters(plain) - start).norm()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("word", OPTIMISERS)
def test_the_state_resumes_bit_for_bit(word: str, dtype: torch.dtype, tmp_path: Path) -> None:
    engine = engine_of(word, dtype)
    for seed in range(2):
        update(engine, seed)
    write_state(engine, tmp_path)
    resumed = engine_of(word, dtype)
    resumed.model.load_state_dict(engine.model.state_dict())
    resumed.load(tmp_path)
    assert bits(resumed) == bits(engine)
    assert update(engine, 2) == update(resumed, 2)
    assert bits(resumed) == bits(engine)


def test_an_offloaded_state_is_that_of_adamw(tmp_path: Path) -> None:
    offloaded, plain = engine_of(OFFLOAD, torch.bfloat16), engine_of(PLAIN, torch.bfloat16)
    update(offloaded, 0)
    write_state(offloaded, tmp_path)
    plain.model.load_state_dict(offloaded.model.state_dict())
    plain.load(tmp_path)
    update(offloaded, 1)
    update(plain, 1)
    assert bits(plain) == bits(offloaded)


def test_a_master_that_is_not_all_there_is_refused(tmp_path: Path) -> None:
    """Training would go on from the weight as bfloat16 rounds it."""
    engine = engine_of(PLAIN, torch.bfloat16)
    update(engine, 0)
    write_state(engine, tmp_path)
    (file,) = (tmp_path / "optimizer").iterdir()
    tensors = load_file(file)
    name = next(name for name in tensors if name.startswith("master."))
    save_file(tensors | {name: tensors[name][:1].clone()}, file)
    with pytest.raises(UserError, match="not all of the float32 weights"):
        engine_of(PLAIN, torch.bfloat16).load(tmp_path)


@pytest.mark.bitsandbytes
@pytest.mark.parametrize(("writer", "reader"), [(PLAIN, EIGHT_BIT), (EIGHT_BIT, PLAIN)])
def test_the_state_of_another_optimiser_is_refused(writer: str, reader: str, tmp_path: Path) -> None:
    engine = engine_of(writer)
    update(engine, 0)
    write_state(engine, tmp_path)
    with pytest.raises(UserError, match="of another optimiser"):
        engine_of(reader).load(tmp_path)


OBJECTIVES = ("tepo_max_entropy", "steer")


def test_updates_on_a_gpu_that_is_not_there() -> None:
    found = json.loads(program("tests.unit.training.engine.pretend_gpu", *OBJECTIVES).end().stdout.splitlines()[-1])
    assert found == {
        "flash": True,  # the GPU's attention is taken
        "waits": {name: [] for name in OBJECTIVES},  # no micro-batch makes the host wait
        # torch's fused AdamW reads the step count where the weights are: in main memory it is an illegal access
        "resumed": ["exp_avg gpu:0", "exp_avg_sq gpu:0", "master gpu:0", "step gpu:0"],
        "offloaded": ["exp_avg cpu", "exp_avg_sq cpu", "master cpu", "step cpu", "weight gpu:0"],
        # `mm` without `out` would make a float32 temporary for every tile: 235 MB at 16k tokens of width 3,584
        "products": ["aten.addmm.dtype_out", "aten.mm.dtype_out"],
        # torch 2.9's `addmm` refuses to add half precision to float32: every update in bfloat16 would end there
        "products before torch 2.10": ["aten.mm.dtype", "aten.mm.dtype_out"],
    }


ENGINE = """
from contextlib import nullcontext

from tepo.training.engine.torch_engine import TorchEngine


class Backend:
    shares_weights = several_ranks = True
    packages = {}

    def check_settings(self, config, ranks):
        pass

    def check_available(self, config):
        pass

    def loading(self, config, source, device):
        return nullcontext()

    def open(self, config, policy):
        return TorchEngine(policy.model, config.train)


BACKEND = Backend()
"""


def test_an_engine_and_a_sampler_that_are_added_as_files_train_to_the_same_weights(tmp_path: Path) -> None:
    """As those they are made of: the sampler's copy gets every update."""
    few = ("train.steps=2", "train.prompts_per_step=2", "train.mini_batch_prompts=1")
    usual = train(Run(tiny(tmp_path / "runs", *few)))
    added = ((samplers, "sampler", "copied", COPYING.format(remote=False)), (engines, "engine", "own", ENGINE))
    with own_backends(tmp_path, *added):
        folder = train(Run(tiny(tmp_path / "runs", *few, "sampler=copied", "engine=own")))
    assert folder != usual
    assert_same_run(folder, usual)
