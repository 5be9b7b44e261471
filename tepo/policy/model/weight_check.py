"""Comparison of the weights in a model's files with the model that its configuration describes, before they are loaded.

transformers fills what is missing with random numbers and leaves out what it does not know, and vLLM opens the files
itself. So the headers of the files are compared first: transformers loads tensors without content, on torch's meta
device, and says what did not fit.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, PreTrainedModel
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging
from transformers.utils.hub import cached_file

from tepo.common.errors import UserError
from tepo.policy.model.model_location import (
    ADAPTERS,
    INDEX,
    WEIGHTS,
    check_no_adapters,
    load_options,
    not_loaded,
    resolve,
    weight_files,
    weight_map,
)

_FEW = 3  # tensors that are named
_LONG = 100  # characters of a name that are shown
_ELSEWHERE = ("transformers_weights", "speculators_config")  # by which transformers and vLLM open other files
_AGAIN = "download or save the model again"

Shapes = Mapping[str, tuple[Path, tuple[int, ...]]]
"""File and shape of each tensor, by its name in the file."""


def check_weights(path: str, revision: str | None = None, trust_remote_code: bool = False) -> dict[str, Any]:
    """Raise UserError unless the files of a model hold each of its tensors once, in its shape, and no others but those
    that its class in transformers declares ignorable. A head that is tied to the embeddings may be absent. The files of
    a hub's model are downloaded first. Returns the options to load it with."""
    source, options = resolve(path), load_options(path, revision, trust_remote_code)
    logging.disable_progress_bar()  # one bar a process: ours
    try:
        config = AutoConfig.from_pretrained(source, **options)
        folder = Path(source) if Path(source).is_dir() else _downloaded(source, options["revision"])
    except UserError:
        raise
    except Exception as error:  # transformers raises many kinds
        raise not_loaded("the model does not load", error, path) from error
    if key := next((key for key in _ELSEWHERE if getattr(config, key, None)), None):
        what, fix = f"config.json has other weights loaded than those beside it ({key})", "take that key out of it"
        raise UserError(what, where=path, fix=fix)
    if getattr(config, "quantization_config", None):
        what = "the weights are quantised, and their tensors are not those of the model"
        raise UserError(what, where=path, fix="take the original in bfloat16 or float32")
    shapes, loud = _shapes(folder), logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)  # it would print its own report of what is wrong
    try:
        kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
        if options["trust_remote_code"] and (code := getattr(config, "auto_map", {}).get("AutoModelForCausalLM")):
            kind = get_class_from_dynamic_module(code, source, revision=options["revision"])
        if kind is None:
            raise ValueError(f"model_type {config.model_type} is no causal language model")
        empty = {name: torch.empty(shape, device="meta") for name, (_, shape) in shapes.items()}
        how: Any = {"device_map": "meta", "output_loading_info": True, "ignore_mismatched_sizes": True}
        model, found = kind.from_pretrained(None, config=config, state_dict=empty, **how)
    except Exception as error:
        raise not_loaded("the model does not load", error, path) from error
    finally:
        logging.set_verbosity(loud)
    prefix = f"{model.base_model_prefix}."
    # transformers takes a tied head for embeddings that are not there, and vLLM does not
    tied = model.all_tied_weights_keys.values()
    parts = {
        "missing": found["missing_keys"] | {name for name in tied if not {name, name.removeprefix(prefix)} & {*shapes}},
        "too many": found["unexpected_keys"],
        "of another shape": [
            f"{name} ({' x '.join(map(str, given))} in place of {' x '.join(map(str, wanted))})"
            for name, given, wanted in found["mismatched_keys"]
        ],
        "under two names": [name for name in shapes if prefix + name in shapes],
    }
    if wrong := "; ".join(f"{len(names)} {how}: {_named(sorted(names))}" for how, names in parts.items() if names):
        what = f"the weights are not those of config.json ({wrong})"
        raise UserError(what, where=path, fix="give the files of one and the same model: download or save it again")
    _check_tied(model, shapes, path)
    return options


def _downloaded(name: str, commit: str) -> Path:
    """The folder of a hub's model in the cache, with all that is opened as its weights."""
    folder = Path(str(cached_file(name, "config.json", revision=commit))).parent
    for file in (ADAPTERS, WEIGHTS, INDEX):
        cached_file(name, file, revision=commit, _raise_exceptions_for_missing_entries=False)
    for path in weight_files(folder):
        cached_file(name, path.name, revision=commit)
    check_no_adapters(folder)
    return folder


def _shapes(folder: Path) -> Shapes:
    """Raises UserError for a damaged file, a tensor in two files, or an index that has one elsewhere."""
    found: dict[str, tuple[Path, tuple[int, ...]]] = {}
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="pt") as tensors:
                here = {name: (file, tuple(tensors.get_slice(name).get_shape())) for name in tensors.keys()}  # noqa: SIM118
        except Exception as error:  # safetensors has a class of its own
            raise not_loaded("the model does not load", error, str(file)) from error
        if twice := sorted(found.keys() & here.keys()):
            what = f"two files hold {_named(twice)}"
            raise UserError(what, where=f"{found[twice[0]][0]}, {file.name}", fix=_AGAIN)
        found |= here
    for name, file in weight_map(folder / INDEX).items() if (folder / INDEX).is_file() else ():
        if name not in found or found[name][0].name != file:
            what = f"the index of the weights names {_named([name])} in {file}, which does not hold it"
            raise UserError(what, where=str(folder / INDEX), fix=_AGAIN)
    return found


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


def _named(names: Collection[str]) -> str:
    few = [name[:_LONG] for name in list(names)[:_FEW]]
    return ", ".join(few) + (f" and {len(names) - _FEW:,} more" if len(names) > _FEW else "")
