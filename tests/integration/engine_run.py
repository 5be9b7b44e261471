"""A program for the tests: a few updates of a tiny model on fixed packed responses, alone or as a rank.

    python -m tests.integration.engine_run OUT '{"name": {"kind": "deepspeed", "zero_stage": 2, …}, …}'

Runs the jobs one after the other (starting a process costs more than they do).
Each writes OUT/name/result.json (rank 0): losses, norms, bytes sent; and its checkpoint in OUT/name/checkpoint.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from tepo.config.compose import compose
from tepo.policy.logprobs.token_statistics import token_statistics
from tepo.policy.model.packed_attention import prepare
from tepo.policy.packing.packing import pack
from tepo.training.engine import optimizer_state
from tepo.training.engine.torch_engine import TorchEngine
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


def train(options: dict, out: Path) -> None:
    torch.set_num_threads(1)
    config = compose(
        [f"model.dtype={options.get('dtype', 'float32')}", "train.learning_rate=1e-3", "train.mini_batch_prompts=4"]
    )
    config.engine.zero_stage, config.engine.offload = options.get("zero_stage", 2), options.get("offload", False)
    model = engine_model(0, tied=True).to(getattr(torch, config.model.dtype))
    size = sum(value.numel() for value in model.parameters())
    if options.get("checkpointing"):
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    prepare(model)
    source = options.get("resume")
    if source:
        source = Path(sys.argv[1]) / source / "checkpoint"
        model.load_state_dict(load_file(source / "model.safetensors"))
    if options["kind"] == "deepspeed":
        from tepo.training.engine.deepspeed_engine import DeepSpeedEngine

        engine = DeepSpeedEngine(model, config)
        rank, ranks = engine.comm.rank, engine.comm.world_size
    else:
        engine, rank, ranks = TorchEngine(model, config.train), 0, 1
    if source:
        engine.load(source)
    lists = ("losses", "norms", "moved", "clipped", "skipped", "sent")
    result: dict = {"size": size} | {name: [] for name in lists}
    pieces = options.get("pieces", 1)
    first, last = options.get("updates", [0, 3])
    for update in range(first, last):
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
        result["norms"].append(metrics["actor/grad_norm"])
        result["moved"].append(float(metrics["actor/update_rms"]))
        result["clipped"].append(metrics["actor/grad_clipped"])
        result["skipped"].append(metrics["actor/skipped"])
    weights = {name: value.clone().contiguous() for name, value in engine.weights().items()}  # every rank reads
    folder = out / "checkpoint"
    folder.mkdir(parents=True, exist_ok=True)
    write_files(folder, optimizer_state.files(engine.state(), rank))
    if rank == 0:
        save_file(weights, folder / "model.safetensors")
        (out / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    for collective in ("all_reduce", "reduce_scatter_tensor", "all_gather_into_tensor"):
        count_bytes(collective)
    for name, job in json.loads(sys.argv[2]).items():
        train(job, Path(sys.argv[1]) / name)
