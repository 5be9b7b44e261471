"""A model as the files that `from_pretrained` and vLLM load, shared out among the ranks that write them."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from huggingface_hub import split_state_dict_into_shards_factory
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
    gathered = weights if isinstance(weights, Streamed) else None
    sizes = {name: gathered.bytes(name) if gathered else weights[name].nbytes for name in _untied(policy, weights)}
    split = split_state_dict_into_shards_factory(
        sizes,
        get_storage_size=lambda size: size,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=min(_FILE_BYTES, max(sum(sizes.values()) // ranks + 1, _WORTH_SHARING)),
    )
    if split.is_sharded and rank == 0:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        write_json(folder / "model.safetensors.index.json", index)
    for number, (file, group) in enumerate(split.filename_to_tensors.items()):
        on_this_rank = number % ranks == rank
        tensors: dict[str, Tensor] = {}
        for tensor in group if on_this_rank or gathered else ():  # every rank takes part, one tensor after another
            value = weights[tensor]
            if on_this_rank:
                tensors[tensor] = value.to("cpu", copy=True) if gathered else value
            del value
        if on_this_rank:
            yield TensorFile(file, tensors, copied=bool(gathered))


def _untied(policy: Policy, weights: Mapping[str, Tensor]) -> list[str]:
    """One name of each tensor: of two the one that every reader knows, as vLLM takes no lm_head of a tied model."""
    tied = getattr(policy.model, "_tied_weights_keys", None) or ()
    first: dict[object, str] = {}
    for name in sorted(weights, key=lambda name: name in tied):  # stable
        if isinstance(weights, Streamed):
            same: object = weights.same(name)
        else:
            same = weights[name].data_ptr(), tuple(weights[name].shape)
        first.setdefault(same, name)
    chosen = set(first.values())
    return [name for name in weights if name in chosen]
