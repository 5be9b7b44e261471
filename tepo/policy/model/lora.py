"""LoRA: a frozen model with a trained addition of low rank to each linear layer, W + alpha / rank * B A.

Hu et al. 2021 (arXiv 2106.09685). Which layers, alpha and how A and B begin: Schulman and Thinking Machines Lab, "LoRA
Without Regret", 2025; so do TRL's guide and peft's `all-linear`, which leaves embeddings and output matrix alone.

peft makes the layers and runs the trainer's passes. What reads weights by itself (the embedded sampler, `full_state`)
takes them from `weight_of`, merged anew from the frozen weight. So the frozen weights never change, and no rounding
adds up.
"""

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tepo.common.errors import UserError
from tepo.common.files import parse_json
from tepo.common.randomness import derive
from tepo.common.text import install_line
from tepo.policy.model.model_location import unreadable
from tepo.policy.model.weight_check import check_finite

_WEIGHTS, _CONFIG = "adapter_model.safetensors", "adapter_config.json"  # peft's


def check_installed() -> None:
    """Raise UserError when there is no peft; importing it would take seconds."""
    if importlib.util.find_spec("peft") is None:
        fix = f"{install_line('lora')}, or model.lora_rank=0"
        raise UserError("peft is not installed", where="model.lora_rank", fix=fix)


def add_adapters(model: nn.Module, rank: int, alpha: float, seed: int) -> None:
    """Freeze the weights of a model and add adapters in their type to its linear layers but the output matrix.

    They change nothing yet: B is 0. A is uniform within 1 / sqrt(inputs), drawn on the CPU from `seed`. Raises
    UserError without peft.
    """
    check_installed()
    from peft import LoraConfig, inject_adapter_in_model

    dtype = next(model.parameters()).dtype
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear"), model)  # type: ignore[arg-type]
    for number, (name, parameter) in enumerate(_adapters(model).items()):
        parameter.data = torch.zeros_like(parameter, dtype=dtype)
        if "lora_A" in name:
            draw = torch.Generator().manual_seed(derive(seed, "lora", number))
            bound = parameter.shape[1] ** -0.5
            parameter.data.copy_(torch.empty(parameter.shape).uniform_(-bound, bound, generator=draw))


def weight_of(linear: Any) -> Tensor:
    """The weight [out, in] that a linear layer multiplies by. Of one whose adapter is on: merged, summed in float32 and
    rounded once to the type of the frozen weight."""
    if not hasattr(linear, "lora_A") or linear.disable_adapters:
        return linear.weight
    weight, a, b = linear.base_layer.weight, linear.lora_A["default"].weight, linear.lora_B["default"].weight
    wide = torch.promote_types(weight.dtype, torch.float32)
    return torch.addmm(weight.to(wide), b.to(wide), a.to(wide), alpha=linear.scaling["default"]).to(weight.dtype)


@torch.no_grad()
def full_state(model: nn.Module) -> dict[str, Tensor]:
    """The state_dict under the names of a model without adapters: their layers merged, the other tensors live.
    `lm_head.weight` is spelled out: tied models leave it out of `named_parameters`, and samplers that keep their own
    copy would silently go on with the old one."""
    adapters = _adapters(model)
    state = {plain_name(name): value.detach() for name, value in model.state_dict().items() if name not in adapters}
    merged = {f"{name}.weight": weight_of(layer) for name, layer in _adapted_layers(model)}
    return state | merged


@torch.no_grad()
def merge(weights: Mapping[str, Tensor], adapter: Mapping[str, Tensor], scale: float) -> None:
    """Add `scale` B A to the weights [out, in] of an adapter's layers in place: the same bits on every machine, with
    any number of threads.

    adapter: LAYER.lora_A [rank, in] and LAYER.lora_B [out, rank] in bfloat16; scale: of at most a dozen bits, such as
    2.5. So each product is exact in float64, where they are added element by element in the order of the rank: a matrix
    product would add in an order of its own. The sum is rounded to the type of the weight."""
    for layer in (name.removesuffix(".lora_A") for name in adapter if name.endswith(".lora_A")):
        weight, a, b = weights[f"{layer}.weight"], adapter[f"{layer}.lora_A"], adapter[f"{layer}.lora_B"]
        total = weight.double()
        for row, column in zip(a.double(), b.double().T, strict=True):
            total.addr_(column, row, alpha=scale)
        weight.copy_(total)


def unload(model: nn.Module) -> dict[str, Tensor]:
    """Merge the adapters, rounded to bfloat16, into their layers, which are plain ones from then on. Returns them as
    `merge` takes them, none of a model without."""
    layers = _adapted_layers(model)
    adapter = {
        f"{name}.lora_{part}": getattr(layer, f"lora_{part}")["default"].weight.detach().bfloat16()
        for name, layer in layers
        for part in "AB"
    }
    weights = {f"{name}.weight": layer.base_layer.weight for name, layer in layers}
    for scale in {layer.scaling["default"] for _, layer in layers}:  # one for all
        merge(weights, adapter, scale)
    for name, layer in layers:
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, layer.base_layer)
    return adapter


def rescale(model: nn.Module, scale: float) -> None:
    """Give the adapters another weight than they were trained with, in place of alpha / rank."""
    for _, layer in _adapted_layers(model):
        layer.scaling["default"] = scale


def plain_name(name: str) -> str:
    """A parameter's name in the model without adapters."""
    return name.replace(".base_layer.", ".")


@contextlib.contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """The model as it was before training, for passes without gradient. A model without adapters stays as it is."""
    layers = [layer for _, layer in _adapted_layers(model)]
    try:
        for layer in layers:
            layer.enable_adapters(False)
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def save_adapters(model: Any, folder: Path, base: str, revision: str | None) -> None:
    """Write the adapters as peft reads them. base, revision: the model that they were trained on."""
    config = model.peft_config["default"]
    config.base_model_name_or_path, config.task_type = base, "CAUSAL_LM"
    config.revision = revision or getattr(model.config, "_commit_hash", None)  # a branch of the hub may move
    config.target_modules = sorted(config.target_modules)  # a set: its order changes from process to process
    config.save_pretrained(folder)
    tensors = {_peft_name(name): value.detach().cpu().contiguous() for name, value in _adapters(model).items()}
    save_file(tensors, folder / _WEIGHTS, {"format": "pt"})


@torch.no_grad()
def load_adapters(model: nn.Module, folder: Path) -> None:
    """Take the adapters that `save_adapters` wrote. Raises UserError for those of another model or rank, and for
    numbers that are not finite."""
    adapters = _adapters(model)
    try:
        saved = load_file(folder / _WEIGHTS)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else unreadable(folder / _WEIGHTS).what
        what, fix = f"the adapters cannot be read: {reason}", "resume from another checkpoint"
        raise UserError(what, where=str(folder / _WEIGHTS), fix=fix) from error
    if {name: value.shape for name, value in saved.items()} != {_peft_name(n): p.shape for n, p in adapters.items()}:
        fix = "resume with the run's own model and rank"
        what = "the adapters belong to another model or rank, or some are missing"
        raise UserError(what, where=str(folder), fix=fix)
    check_finite(saved, str(folder / _WEIGHTS))
    for name, parameter in adapters.items():
        parameter.copy_(saved[_peft_name(name)])


def base_revision(folder: Path) -> str | None:
    """The commit of the hub's model that saved adapters were trained on."""
    return parse_json((folder / _CONFIG).read_bytes())["revision"]


def _adapted_layers(model: nn.Module) -> list[tuple[str, Any]]:
    return [(name, module) for name, module in model.named_modules() if hasattr(module, "lora_A")]


def _adapters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of all adapters."""
    return {name: parameter for name, parameter in model.named_parameters() if ".lora_" in name}


def _peft_name(name: str) -> str:
    return f"base_model.model.{name.replace('.default.', '.')}"
