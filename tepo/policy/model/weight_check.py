"""The door for weights: what comes in is compared with the model that its configuration describes, and is of finite
numbers.

transformers fills what is missing with random numbers and leaves out what it does not know, and vLLM opens the files
itself. So the headers of the files are compared first, by transformers' own rules for names and conversions: it loads
tensors without content, on torch's meta device, into a model that is there too. A GGUF file, whose rules are in
transformers' reader alone, is compared after that has read it. `test_weight_doors.py` holds the list of ways in.
"""

import math
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.modeling_utils import LoadStateDictConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging
from transformers.utils.hub import cached_file

from tepo.common.errors import UserError
from tepo.common.text import counted, spelt
from tepo.policy.model.model_location import (
    ADAPTERS,
    AGAIN,
    INDEX,
    WEIGHTS,
    check_no_adapters,
    load_config,
    load_options,
    not_loaded,
    resolve,
    unreadable,
    weight_files,
    weight_map,
)

_FEW = 3  # tensors that are named
_LONG = 100  # characters of a name that are shown
_ORIGINAL = "take the original in bfloat16 or float32"
_REAL = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_ELSEWHERE = ("transformers_weights", "speculators_config")  # by which transformers and vLLM open other files

Shapes = Mapping[str, tuple[Path, tuple[int, ...]]]
"""File and shape of each tensor, by its name in the file."""


_PASSED = set[tuple[Path, bool, frozenset[Any]]]()  # folders as they were when nothing was wrong with them


def check_weights(path: str, revision: str | None = None, trust_remote_code: bool = False) -> dict[str, Any]:
    """Raise UserError unless the files of a model hold each of its tensors once, in its shape and of finite numbers,
    and no others. A head that is tied to the embeddings may be absent; what the model's class in transformers declares
    ignorable is named in a line on stderr. The files of a hub's model are downloaded first, and all are read; a folder
    is looked at again only when a file of it has changed. Returns the options to load it with."""
    source, options = resolve(path), load_options(path, revision, trust_remote_code)
    logging.disable_progress_bar()  # one bar a process: ours
    if not (folder := Path(source)).is_dir():
        _check(path, revision, source, options)
    elif (state := (folder.absolute(), trust_remote_code, _state(folder))) not in _PASSED:
        _check(path, revision, source, options)
        _PASSED.add(state)
    return options


def _state(folder: Path) -> frozenset[Any]:
    """The files of a folder as they now are."""
    states = [(file.name, file.stat()) for file in folder.iterdir() if file.is_file()]
    return frozenset((name, of.st_size, of.st_mtime_ns, of.st_ctime_ns, of.st_ino) for name, of in states)


def _check(path: str, revision: str | None, source: str, options: Mapping[str, Any]) -> None:
    """Raise UserError as `check_weights`."""
    config = load_config(path, revision, options["trust_remote_code"])
    if key := next((key for key in _ELSEWHERE if getattr(config, key, None)), None):
        what, fix = f"config.json has other weights loaded than those beside it ({key})", "take that key out of it"
        raise UserError(what, where=path, fix=fix)
    if getattr(config, "quantization_config", None):
        what = "the weights are quantised, and their tensors are not those of the model"
        raise UserError(what, where=path, fix=_ORIGINAL)
    try:
        folder = Path(source) if Path(source).is_dir() else _downloaded(source, options["revision"])
        shapes = _shapes(folder)
        model = _without_content(config, source, options)
        comparison = _compare(model, shapes)
    except UserError:
        raise
    except Exception as error:  # transformers raises many kinds
        raise not_loaded("the model does not load", error, path) from error
    comparison.check("config.json", shapes, path)
    whole = {name for name, value in model.state_dict().items() if not value.is_floating_point()}
    apart = {*comparison.ignorable, *whole}
    _check_numbers(folder, apart | {name.removeprefix(f"{model.base_model_prefix}.") for name in apart})
    _check_tied(model, shapes, path)
    if comparison.ignorable:
        _say_once(f"{path}: left out, as the model has no use for them: {_named(comparison.ignorable)}\n")


def check_gguf(
    model: PreTrainedModel, missing: Collection[str], sizes: Mapping[str, int], odd: Collection[str], file: Path
) -> None:
    """Raise UserError unless a GGUF file holds all tensors of the model that transformers has read from it, and no
    others. missing: those that transformers has made up; of other shapes and of what it leaves out it says nothing.
    sizes: how many numbers each tensor of the file has, by its name there. odd: names that are none of the model's."""
    state, layout = model.state_dict(), _without_content(model.config, "", {"trust_remote_code": False}).state_dict()
    shapes = {name: (tuple(state[name].shape), tuple(value.shape)) for name, value in layout.items()}
    read = {value.data_ptr(): value.numel() for name, value in state.items() if name not in missing}  # tied ones once
    _Found(
        model,
        missing=sorted(missing),
        unexpected=sorted(odd or sizes) if sum(read.values()) != sum(sizes.values()) else [],
        reshaped={name: pair for name, pair in shapes.items() if len({*pair}) > 1},
    ).check("its metadata", sizes, str(file))
    check_finite(state, str(file))


def check_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    """Raise UserError for weights that are not finite."""
    for name, value in tensors.items():
        if value.is_floating_point() and (fault := fault_of(value)):
            raise _no_weights(name, fault, where)


def _check_numbers(folder: Path, apart: Collection[str]) -> None:
    """Raise UserError for files of weights with tensors that are no finite real numbers, but for those `apart`."""
    for file in weight_files(folder):
        state = file.stat()
        for name, fault in _faults(file.absolute(), state.st_size, state.st_mtime_ns, state.st_ino).items():
            if name not in apart:
                raise _no_weights(name, fault, str(file))


def _no_weights(name: str, fault: str, where: str) -> UserError:
    fix = _ORIGINAL if "torch." in fault else "take them from before the training that diverged, or download them again"
    return UserError(f"{name[:_LONG]} is {fault}", where=where, fix=fix)


@lru_cache(maxsize=1024)
def _faults(file: Path, *state: int) -> dict[str, str]:
    """What is wrong with the numbers of a file, by tensor. A file is read again only when it has changed: each GB takes
    about a tenth of a second of one core."""
    with safe_open(file, framework="pt") as tensors:
        named = ((name, tensors.get_tensor(name)) for name in tensors.keys())  # noqa: SIM118
        return {name: fault for name, value in named if (fault := fault_of(value))}


def fault_of(value: Tensor) -> str:
    """What is wrong with the numbers of a tensor of weights; empty where nothing is."""
    if value.dtype not in _REAL:
        return f"of {value.dtype}: quantised, or no weights"
    if not value.numel() or all(map(math.isfinite, (bound.item() for bound in value.aminmax()))):
        return ""  # `isfinite` takes twenty times as long
    return f"not finite: {int((~value.isfinite()).sum()):,} of {value.numel():,} numbers are NaN or infinite"


def _downloaded(name: str, commit: str) -> Path:
    """The folder of a hub's model in the cache, with all that is opened as its weights."""
    folder = Path(str(cached_file(name, "config.json", revision=commit))).parent
    for file in (ADAPTERS, WEIGHTS, INDEX):
        cached_file(name, file, revision=commit, _raise_exceptions_for_missing_entries=False)
    for path in weight_files(folder):
        cached_file(name, path.name, revision=commit)
    check_no_adapters(folder)
    return folder


def _without_content(config: Any, source: str, options: Mapping[str, Any]) -> PreTrainedModel:
    """The model of a configuration on the meta device."""
    code = getattr(config, "auto_map", {}).get("AutoModelForCausalLM")
    kind: Any
    if code and options["trust_remote_code"]:
        kind = get_class_from_dynamic_module(code, source, revision=options["revision"])
    elif type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    else:
        raise ValueError(f"model_type {config.model_type} is no causal language model")
    with torch.device("meta"):
        return kind(config)


def _shapes(folder: Path) -> Shapes:
    """Raises UserError for a damaged file, a tensor in two files, or an index that has one elsewhere."""
    shapes: dict[str, tuple[Path, tuple[int, ...]]] = {}
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="pt") as tensors:
                here = {name: (file, tuple(tensors.get_slice(name).get_shape())) for name in tensors.keys()}  # noqa: SIM118
        except Exception as error:  # safetensors has a class of its own
            raise unreadable(file) from error
        if twice := sorted(shapes.keys() & here.keys()):
            what = f"two files hold {_named(twice)}"
            raise UserError(what, where=f"{shapes[twice[0]][0]}, {file.name}", fix=AGAIN)
        shapes |= here
    for name, file in weight_map(folder / INDEX).items() if (folder / INDEX).is_file() else ():
        if name not in shapes or shapes[name][0].name != file:
            what = f"the index of the weights names {_named([name])} in {file}, which does not hold it"
            raise UserError(what, where=str(folder / INDEX), fix=AGAIN)
    return shapes


@dataclass(frozen=True)
class _Found:
    """Names of tensors."""

    model: PreTrainedModel
    missing: Collection[str]
    unexpected: Collection[str]
    reshaped: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]  # with their shapes in the file and in the model
    ignorable: Collection[str] = ()  # by the model's class
    unreadable: Collection[str] = ()
    twice: Collection[str] = ()

    def check(self, settings: str, names: Collection[str], where: str) -> None:
        """Raise UserError where anything is wrong. settings: where the sizes are from. names: of the tensors there."""
        if wrong := self.wrong():
            what = f"the weights are not those of {settings}: {self.cause(names)} ({wrong})"
            raise UserError(
                what, where=where, fix="give the files of one and the same model: download or save it again"
            )

    def wrong(self) -> str:
        """All that is wrong with the tensors; empty where nothing is."""
        shapes = [
            f"{name} ({' x '.join(map(str, file_shape))} in place of {' x '.join(map(str, model_shape))})"
            for name, (file_shape, model_shape) in self.reshaped.items()
        ]
        parts = {
            "missing": self.missing,
            "too many": self.unexpected,
            "of another shape": shapes,
            "not to be put together": self.unreadable,
            "under two names": self.twice,
        }
        return "; ".join(f"{len(names)} {how}: {_named(names)}" for how, names in parts.items() if names)

    def cause(self, names: Collection[str]) -> str:
        """The likely cause, in words."""
        config, every = self.model.config, self.model.state_dict()
        model_layers, file_layers = _layers(every), _layers(names)
        if self.twice:
            return "they hold a tensor with the prefix of the model and without it"
        if any("lora_" in name for name in self.unexpected):
            return "they are adapters, or a model with adapters that are not merged"
        if len(self.missing) >= len(every) - 1:
            return "they are those of another model"
        if self.reshaped:
            file_shape, model_shape = next(iter(self.reshaped.values()))
            if file_shape[1:] == model_shape[1:] and model_shape[:1] == (getattr(config, "vocab_size", None),):
                return f"it says vocab_size {model_shape[0]}, they have {counted(file_shape[0], 'row')}"
            return "it is that of a model of another size"
        if model_layers != file_layers:
            return f"it says {counted(model_layers, 'layer')}, they have {file_layers}"
        if self.missing and all(name.startswith("lm_head.") for name in self.missing):
            return "they were saved without their head, or it lacks tie_word_embeddings: true"
        if self.missing:
            return "half a download, or a model that was saved in part"
        return "they are those of another model, or of one with parts of its own"


def _compare(model: PreTrainedModel, shapes: Shapes) -> _Found:
    """Load the tensors without their content, as transformers would."""
    empty = {name: torch.empty(shape, device="meta") for name, (_, shape) in shapes.items()}
    conversions: Any = get_model_conversion_mapping(model)
    load = LoadStateDictConfig(device_map={"": "meta"}, weight_mapping=conversions)
    info, _ = convert_and_load_state_dict_in_model(model, empty, load)
    absent, unknown = set(info.missing_keys), set(info.unexpected_keys)
    model._adjust_missing_and_unexpected_keys(info)
    return _Found(
        model,
        missing=sorted(absent - model.all_tied_weights_keys.keys() - info.conversion_errors.keys()),
        unexpected=sorted(info.unexpected_keys),
        ignorable=sorted(unknown - info.unexpected_keys),
        reshaped={
            name: (tuple(file_shape), tuple(model_shape))
            for name, file_shape, model_shape in sorted(info.mismatched_keys)
        },
        unreadable=sorted(info.conversion_errors),
        twice=sorted(name for name in shapes if f"{model.base_model_prefix}.{name}" in shapes),
    )


def _check_tied(model: PreTrainedModel, shapes: Shapes, path: str) -> None:
    """Raise UserError for a head that config.json ties to the embeddings, and that the files have otherwise: of the two
    each reader takes another one."""
    prefix = f"{model.base_model_prefix}."
    for pair in model.all_tied_weights_keys.items():
        names = [name for full in pair for name in {full, full.removeprefix(prefix)} if name in shapes]
        tensors = []
        for name in names:
            with safe_open(shapes[name][0], framework="pt") as file:
                tensors.append(file.get_tensor(name))
        if len(tensors) == 2 and not (tensors[0].dtype == tensors[1].dtype and torch.equal(*tensors)):
            what = f"config.json says that {names[0]} is {names[1]} (tie_word_embeddings), and the files have two"
            raise UserError(what, where=path, fix="tie_word_embeddings: false, if the model was trained so")


def _layers(names: Collection[str]) -> int:
    """Number of layers that names of tensors speak of."""
    return len({match[1] for name in names if (match := re.search(r"\.(\d+)\.", f".{name}"))})


def _named(names: Collection[str]) -> str:
    few = [name[:_LONG] for name in list(names)[:_FEW]]
    return ", ".join(few) + (f" and {len(names) - _FEW:,} more" if len(names) > _FEW else "")


@cache
def _say_once(line: str) -> None:
    sys.stderr.write(spelt(line))
