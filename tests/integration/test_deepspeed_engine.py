"""A few updates of a tiny model on fixed packed responses, by each stage of DeepSpeed and by the embedded engine."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from tepo.config.compose import compose
from tepo.policy.logprobs.token_statistics import token_statistics
from tepo.policy.model.packed_attention import prepare
from tepo.policy.packing.packing import pack
from tepo.training.engine import optimizer_state
from tepo.training.engine.torch_engine import TorchEngine
from tests.support.commands import Started, ranks
from tests.support.models import engine_model, prompts
from tests.support.runs import write_files

GROUPS = 4  # of two responses each, given to the ranks in turn

sent: Counter[str] = Counter()  # bytes of the full tensors that went into or came out of each kind of collective


def count_bytes(name: str) -> None:
    """Count what a collective is given from now on; DeepSpeed looks it up in torch.distributed."""
    collective = getattr(dist, name)

    def counted(*arguments, **options):
        given = (*arguments, *options.values())
        sent[name] += max(tensor.nbytes for tensor in given if isinstance(tensor, torch.Tensor))
        return collective(*arguments, **options)

    setattr(dist, name, counted)


def batch(update: int, group: int):
    prompt, *responses = prompts(3, 12, seed=100 * update + group)
    packed = pack([(prompt, [responses[0], responses[1][:7]])])
    return packed, torch.tensor([1.0] * 12 + [-0.7] * 7)


def train(options: dict, out: Path, name: str) -> None:
    """Writes the checkpoint in OUT/NAME and, on the first rank, losses, norms and bytes sent in OUT/NAME.json."""
    torch.set_num_threads(1)
    config = compose(
        [f"model.dtype={options.get('dtype', 'float32')}", "train.learning_rate=1e-3", "train.mini_batch_prompts=4"]
    )
    config.engine.zero_stage, config.engine.offload = options.get("zero_stage", 2), options.get("offload", False)
    model = engine_model(0, tied=True).to(getattr(torch, config.model.dtype))
    result: dict = {"size": sum(value.numel() for value in model.parameters())}
    if options.get("checkpointing"):
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    prepare(model)
    source = out / options.get("resume", "")
    if "resume" in options:
        model.load_state_dict(load_file(source / "model.safetensors"))
    if options["kind"] == "deepspeed":
        from tepo.training.engine.deepspeed_engine import DeepSpeedEngine

        engine = DeepSpeedEngine(model, config)
        rank, ranks = engine.comm.rank, engine.comm.world_size
    else:
        engine, rank, ranks = TorchEngine(model, config.train), 0, 1
    if "resume" in options:
        engine.load(source)
    result |= {kind: [] for kind in ("losses", "norms", "moved", "clipped", "skipped", "sent")}
    pieces = options.get("pieces", 1)
    for update in range(*options.get("updates", [0, 3])):
        total = torch.zeros(1)
        sent.clear()
        for group in [*range(rank, GROUPS, ranks)] * pieces:
            packed, advantages = batch(update, group)
            statistics = token_statistics(engine.model, packed)
            loss = -(statistics.logprobs * advantages).sum() / (GROUPS * 19 * pieces)
            if options.get("poison") == update and rank == 0:
                loss = loss * float("inf")
            engine.backward(loss)
            total += loss.detach()
        metrics = engine.step(1e-3)
        result["sent"].append(dict(sent))
        engine.weights()  # as after each rollout
        result["losses"].append(float(total if engine.comm is None else engine.comm.all_sum(total)))
        for kind, key in (("norms", "grad_norm"), ("moved", "update_rms"), ("clipped", "grad_clipped")):
            result[kind].append(float(metrics[f"actor/{key}"]))
        result["skipped"].append(metrics["actor/skipped"])
    weights = {key: value.clone().contiguous() for key, value in engine.weights().items()}  # every rank reads
    (out / name).mkdir(exist_ok=True)
    write_files(out / name, optimizer_state.files(engine.state(), rank))
    if rank == 0:
        save_file(weights, out / name / "model.safetensors")
        (out / f"{name}.json").write_text(json.dumps(result))


def train_all(out: Path, jobs: dict[str, dict]) -> None:
    """One after the other: starting a process costs more than they do."""
    for collective in ("all_reduce", "reduce_scatter_tensor", "all_gather_into_tensor"):
        count_bytes(collective)
    for name, options in jobs.items():
        train(options, out, name)


pytestmark = [pytest.mark.deepspeed, pytest.mark.slow, pytest.mark.disaster]

FIRST, REST = {"updates": [0, 2]}, {"updates": [2, 3]}


def zero(stage: int, **options) -> dict:
    return {"kind": "deepspeed", "zero_stage": stage, **options}


BFLOAT16 = {"dtype": "bfloat16"}
ONE = {  # on one rank
    "embedded": {"kind": "torch"},
    "embedded poisoned": {"kind": "torch", "poison": 1},
    "embedded bf16": {"kind": "torch", **BFLOAT16},
    "zero 3 offloaded": zero(3, offload=True, checkpointing=True),
    "zero 1 bf16 offloaded": zero(1, offload=True, checkpointing=True, **BFLOAT16),
    "first 1 bf16": zero(1, **BFLOAT16, **FIRST),
}
TWO = {  # on two
    **{f"2 x zero {stage}": zero(stage) for stage in (1, 2, 3)},
    **{f"2 x zero {stage} bf16": zero(stage, **BFLOAT16) for stage in (1, 2, 3)},
    **{f"2 x zero {stage} in 4": zero(stage, pieces=2) for stage in (1, 2, 3)},
    "2 x zero 3 poisoned": zero(3, poison=1),
    "first 2": zero(2, **FIRST),
    "first 3": zero(3, **FIRST),
    "first 1 bf16, then 2 x zero 2": zero(2, resume="first 1 bf16", **BFLOAT16, **REST),
    "first 2, then 2 x zero 2": zero(2, resume="first 2", **REST),
    "first 3, then 2 x zero 3": zero(3, resume="first 3", **REST),
}
LAST = {  # on one again
    "first 2, then zero 3": zero(3, resume="first 2", **REST),
    "first 3, then embedded": {"kind": "torch", "resume": "first 3", **REST},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("engines")
    said = Started(train_all, out, ONE).end().stdout
    assert "Max_MA" not in said, said  # of DeepSpeed's talk of memory
    for rank in ranks(train_all, out, TWO):
        rank.end()
    Started(train_all, out, LAST).end()
    return out


def outcome(out: Path, name: str) -> tuple[dict, dict[str, torch.Tensor]]:
    return json.loads((out / f"{name}.json").read_text()), load_file(out / name / "model.safetensors")


def saved_state(folder: Path) -> dict[str, torch.Tensor]:
    """The flat state by `kind.name`, put together from the pieces; each number was written once."""
    pieces: dict[str, list[optimizer_state.Piece]] = {}
    for piece in optimizer_state.read(folder, {}):
        pieces.setdefault(f"{piece.kind}.{piece.name}", []).append(piece)
    state = {}
    for key, parts in pieces.items():
        parts.sort(key=lambda piece: piece.start or 0)
        ends = [(piece.start or 0) + piece.value.numel() for piece in parts]
        assert [piece.start or 0 for piece in parts] == [0, *ends[:-1]]
        state[key] = torch.cat([piece.value.flatten() for piece in parts])
    return state


@pytest.mark.parametrize("name", ["2 x zero 1", "2 x zero 3"])
def test_every_rank_writes_its_own_part(results, name):
    files = sorted((results / name / "optimizer").iterdir())
    assert [file.name[:5] for file in files] == ["00000", "00001"]
    sizes = [file.stat().st_size for file in files]
    assert max(sizes) < 1.3 * min(sizes)
    one, other = saved_state(results / name), saved_state(results / "embedded")
    assert {key: value.numel() for key, value in one.items()} == {key: value.numel() for key, value in other.items()}
    for key, value in other.items():
        torch.testing.assert_close(one[key], value, rtol=1e-3, atol=1e-6)


def agree(one, other, tolerance=1e-4, moved_tolerance=1e-4):
    assert one[0]["clipped"] == other[0]["clipped"]
    assert one[0]["moved"] == pytest.approx(other[0]["moved"], rel=moved_tolerance)
    for key in ("losses", "norms"):
        assert one[0][key] == pytest.approx(other[0][key], rel=tolerance)
    assert one[1].keys() == other[1].keys()
    apart = torch.cat([(one[1][name] - other[1][name]).flatten() for name in one[1]])
    assert apart.norm() < tolerance * torch.cat([value.flatten() for value in other[1].values()]).norm()
    start = engine_model(0, tied=True).state_dict()
    moved = torch.cat([(other[1][name] - start[name]).flatten() for name in other[1]])
    assert apart.norm() < 10 * tolerance * moved.norm()  # the updates themselves


@pytest.mark.parametrize("name", ["zero 3 offloaded", "2 x zero 2", "2 x zero 3"])
def test_every_stage_updates_alike(results, name):
    sampled = "offloaded" in name  # what moved in main memory is estimated from a part of the numbers
    agree(outcome(results, name), outcome(results, "embedded"), moved_tolerance=1e-2 if sampled else 1e-4)
    if name == "2 x zero 2":  # gradients summed after every micro-batch are those summed once an update
        agree(outcome(results, "2 x zero 1"), outcome(results, name), tolerance=1e-6)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_ranks_send_is_what_a_plan_charges(results, stage):
    """In bytes a weight, of the tensors that go round. Stage 1 sums over the ranks once an update, 2 and 3 after each
    micro-batch, and stage 3 gathers weights for each in place of once."""
    for more, micro_batches, size in (("", 2, 4), (" in 4", 4, 4), (" bf16", 2, 2)):
        found, _ = outcome(results, f"2 x zero {stage}{more}")
        for update in found["sent"][1:]:  # ranks meet in the first
            sent = {kind: count / found["size"] for kind, count in update.items()}
            summed = sent.pop("reduce_scatter_tensor" if stage == 3 else "all_reduce")
            assert summed == pytest.approx(4 * (1 if stage == 1 else micro_batches), rel=1e-3)
            times = micro_batches if stage == 3 else 1  # so small a model lies there until the backward
            assert sent["all_gather_into_tensor"] == pytest.approx(size * times, rel=0.1 if stage == 3 else 1e-3)


@pytest.mark.parametrize("name", ["first 2, then zero 3", "first 3, then embedded"])
def test_a_checkpoint_goes_on_with_other_ranks_stages_and_engines(results, name):
    first, (second, weights) = outcome(results, name.partition(",")[0])[0], outcome(results, name)
    agree(
        ({key: first[key] + second[key] for key in ("losses", "norms", "moved", "clipped")}, weights),
        outcome(results, "embedded"),
    )


@pytest.mark.parametrize("stage", [2, 3])
def test_on_as_many_ranks_it_goes_on_bit_for_bit(results, stage):
    resumed, straight = outcome(results, f"first {stage}, then 2 x zero {stage}"), outcome(results, f"2 x zero {stage}")
    assert resumed[0]["losses"] == straight[0]["losses"][2:]
    assert all(torch.equal(resumed[1][name], value) for name, value in straight[1].items())


IN_BFLOAT16 = ["zero 1 bf16 offloaded", "2 x zero 1 bf16", "2 x zero 3 bf16", "first 1 bf16, then 2 x zero 2"]


@pytest.mark.parametrize("name", IN_BFLOAT16)
def test_bfloat16_trains_on_float32_masters(results, name):
    """Updates below bf16's resolution add up in the masters;
    what is left between engines is the rounding of gradients."""
    one, other = saved_state(results / name), saved_state(results / "embedded bf16")
    assert one.keys() == other.keys()
    masters = [name for name in one if name.startswith("master.")]
    assert all(one[name].dtype == torch.float32 for name in masters)
    apart = torch.cat([(one[name] - other[name]).abs().flatten() for name in masters])
    assert apart.median() < 3e-4  # a tenth of what three updates at 1e-3 move


def test_a_gradient_that_is_not_finite_is_left_out(results):
    (one, weights), (other, expected) = (outcome(results, f"{name} poisoned") for name in ("2 x zero 3", "embedded"))
    assert one["skipped"] == other["skipped"] == [0.0, 1.0, 0.0]
    assert [moved > 0 for moved in one["moved"]] == [True, False, True]
    for key, value in expected.items():
        torch.testing.assert_close(weights[key], value, rtol=1e-4, atol=1e-4)
