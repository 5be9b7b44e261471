"""A model as the files that `from_pretrained` and vLLM load, shared out among the ranks that write them."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from torch import Tensor

from tepo.common.files import write_json
from tepo.policy.model.load_policy import Policy
from tepo.store.checkpoint_files import TensorFile
from tepo.training.engine.deepspeed_engine import Streamed

_FILE_BYTES = 5_000_000_000  # of one safetensors file at most, as transformers has it
_WORTH_SHARING = 1_000_000_000  # bytes below which a file is not cut for another rank to write a part of it


def write_beside_weights(policy: Policy, folder: Path) -> None:
    """Configuration and tokenizer."""
    policy.model.config.save_pretrained(folder)
    if policy.model.generation_config is not None:
        policy.model.generation_config.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)


def model_files(
    policy: Policy, weights: Mapping[str, Tensor], folder: Path, rank: int, ranks: int
) -> Iterator[TensorFile]:
    """The files of this rank. Tied weights are stored once; rank 0 writes the index of several files. Every rank reads
    the tensors of all files, one file at a time: under ZeRO-3 they are gathered then."""
    sizes = {name: _bytes(weights, name) for name in _untied(policy, weights)}
    total = sum(sizes.values())
    groups = _cut(sizes, min(_FILE_BYTES, max(total // ranks + 1, _WORTH_SHARING)))
    several = len(groups) > 1
    names = [f"model-{i:05d}-of-{len(groups):05d}.safetensors" for i in range(1, len(groups) + 1)]
    if several and rank == 0:
        index = {tensor: name for name, group in zip(names, groups, strict=True) for tensor in group}
        write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})
    gathered = isinstance(weights, Streamed)
    for number, group in enumerate(groups):
        own = number % ranks == rank
        if gathered:
            tensors = _gather(weights, group, keep=own)
        elif own:
            tensors = {tensor: weights[tensor] for tensor in group}
        if own:
            yield TensorFile(names[number] if several else "model.safetensors", tensors, copied=gathered)


def _gather(weights: Mapping[str, Tensor], names: Iterable[str], *, keep: bool) -> dict[str, Tensor]:
    """Copies in main memory. Every rank takes part, one tensor after another; a rank that keeps none gets none."""
    kept = {}
    for name in names:
        tensor = weights[name]
        if keep:
            kept[name] = tensor.to("cpu", copy=True)
    return kept


def _bytes(weights: Mapping[str, Tensor], name: str) -> int:
    return weights.bytes(name) if isinstance(weights, Streamed) else weights[name].nbytes


def _untied(policy: Policy, weights: Mapping[str, Tensor]) -> list[str]:
    """One name of each tensor: of two the one that every reader knows, as vLLM takes no lm_head of a tied model."""
    tied = getattr(policy.model, "_tied_weights_keys", None) or ()
    first: dict[object, str] = {}
    for name in sorted(weights, key=lambda name: name in tied):  # stable
        same = weights.same(name) if isinstance(weights, Streamed) else _location(weights[name])
        first.setdefault(same, name)
    chosen = set(first.values())
    return [name for name in weights if name in chosen]


def _location(tensor: Tensor) -> tuple[int, tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape)


def _cut(sizes: Mapping[str, int], most: int) -> list[list[str]]:
    """Names in groups of at most `most` bytes, or of one tensor. sizes: bytes by name."""
    groups: list[list[str]] = [[]]
    size = 0
    for name, own in sizes.items():
        if groups[-1] and size + own > most:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += own
    return groups
