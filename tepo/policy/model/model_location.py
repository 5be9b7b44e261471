"""Location of a policy: a folder, a hub id, `package:NAME` for a base that ships with tepo, or `cache:NAME` for one
that this machine fetched or made; the fingerprint of its files.

A base that does not ship is made by a recipe, and another CPU makes another one. Those that records were trained from
are known by name in `records/bases.json`, so that a run is found among the records where the folder is gone:

    {"base-laptop_1m": {"hash": "9c0f…", "made": {"command": "tepo model warmstart laptop_1m", "cpu": …, "scores": …}}}
"""

import importlib.util
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from json import JSONDecodeError
from pathlib import Path
from typing import Any

from tepo.common import paths, trust
from tepo.common.errors import UserError, unknown_name
from tepo.common.files import content_hash, file_digest, parse_json
from tepo.common.paths import PACKAGE
from tepo.config.own_files import SERVED

BASES = "bases.json"
RECIPE_FILE = "recipe.json"
_HUB_SECONDS = 5.0
_HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")  # old ones have no owner: gpt2
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
CACHE = "cache:"  # what `tepo model fetch` and `tepo model warmstart` put on this machine
_COMMIT = re.compile(r"[0-9a-f]{40}")
AGAIN = "download or save the model again"
WEIGHTS, INDEX, ADAPTERS = "model.safetensors", "model.safetensors.index.json", "adapter_config.json"
_SETTINGS = ("config.json", "generation_config.json", "tokenizer_config.json")
_VOCABULARIES = ("tokenizer.json", "tekken.json", "vocab.json", "vocab.txt", "*.model", "*.tiktoken")


def resolve(path: str) -> str:
    """The folder or hub id behind `path`. Raises UserError for a folder that is not there or not whole, for a base on
    record whose folder is gone, and for a model that others serve."""
    if path.startswith(SERVED):
        what = "a served model only answers requests, and its weights are needed here"
        fix = f"the folder or hub id that is served; `tepo eval … --model {SERVED}URL#NAME` measures it where it is"
        raise UserError(what, where=path, fix=fix)
    if path.startswith("package:"):
        name = path.removeprefix("package:")
        folder = PACKAGE / "assets" / name
        if not name or not folder.is_dir():
            shipped = (entry.name for entry in (PACKAGE / "assets").glob("*/"))
            raise unknown_name("shipped model", name, shipped, where=path)
    elif path.startswith(CACHE):
        folder = cached_folder(path.removeprefix(CACHE))
        if not folder.is_dir():
            provenance = recorded_bases().get(path, {"made": {}})["made"]
            fix = provenance.get("command", f"tepo model fetch {path.removeprefix(CACHE)}")
            raise UserError("that model is not in the cache", where=path, fix=fix)
    else:
        folder = Path(path).expanduser()
        if not folder.exists() and _HUB_ID.fullmatch(path):
            if provenance := recorded_bases().get(path):
                command, cpu = provenance["made"].get("command"), provenance["made"].get("cpu")
                fix = (
                    f"{command}; on another CPU than {cpu} it comes out as another base" if command else "bring it here"
                )
                raise UserError("that base is on record, and its files are not here", where=path, fix=fix)
            return path
    check_folder(folder)
    return str(folder)


def cached_folder(name: str) -> Path:
    """The folder of `cache:NAME`: below TEPO_MODELS, else below the user's cache. Raises UserError for a name that is
    none of a folder."""
    if not _NAME.fullmatch(name):
        raise UserError(f"{name!r} is no name of a model", fix="letters, digits, dots, dashes and underscores")
    return Path(os.environ.get("TEPO_MODELS") or paths.cache() / "models").expanduser() / name


def load_options(path: str, revision: str | None, trust_remote_code: bool) -> dict[str, Any]:
    """Options of every `from_pretrained` of transformers and vLLM, and the one way to code that comes with a model:
    which is executed is logged. Never None: transformers would ask on the terminal. A hub's model is taken at the
    commit that is in its id."""
    commit = pinned(path, revision)
    if trust_remote_code:
        source = Path(resolve(path))
        code = ", ".join(sorted(file.name for file in source.glob("*.py"))) if source.is_dir() else f"at {commit}"
        trust.note(f"executes code that comes with the model {path}: {code or 'what its config.json names'}")
    if on_hub(path):
        _ask_hub_once()
    return {"revision": commit, "trust_remote_code": bool(trust_remote_code)}


def pinned(path: str, revision: str | None) -> str | None:
    """The commit of a hub's model: `revision` itself; without one that of a shipped model of this id; else the one that
    this branch or tag (by default the main branch) is in the cache, or on the hub. So what was downloaded once stays
    what the name means here. The revision of anything else is returned as it is. Raises UserError where nobody knows
    the commit."""
    return _commit(path, revision) if on_hub(path) and not _COMMIT.fullmatch(revision or "") else revision


@cache
def _commit(path: str, name: str | None) -> str:
    shipped = rf"\bpath: {re.escape(path)}\n\s*revision: ({_COMMIT.pattern})"
    for file in (paths.CONFIG / "model").glob("*.yaml") if name is None else ():
        if match := re.search(shipped, file.read_text(encoding="utf-8")):
            return match[1]
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(path, "config.json", revision=name)
        if not isinstance(cached, str):
            _ask_hub_once()
            cached = hf_hub_download(path, "config.json", revision=name)  # 1 kB, and the cache knows the commit then
    except Exception as error:  # many kinds: no such model, its terms not accepted, no network
        what = f"the commit of {path} is not known here: {_said(error)}"
        fix = "name it (model.revision=COMMIT, of tepo eval --revision COMMIT), or check the id, the network, HF_HOME"
        raise UserError(what, where=f"revision {name or 'main'} of {path}", fix=fix) from error
    return Path(cached).parent.name


def on_hub(path: str) -> bool:
    """Tell whether a path is the id of a model on the hub: no folder, and no base that ships or is on record."""
    on_disk = Path(path).expanduser().exists()
    return bool(_HUB_ID.fullmatch(path)) and not on_disk and path not in recorded_bases()


@contextmanager
def offline() -> Iterator[None]:
    """Within the block nothing is downloaded: what is not on this machine cannot be loaded."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@cache
def _ask_hub_once() -> None:
    """Take what is cached where the hub does not answer: transformers would ask six times for each file, which takes
    minutes."""
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE and (silence := hub_silence()):
        logging.getLogger(__name__).warning("%s: only what is cached is used", silence)
        constants.HF_HUB_OFFLINE = True


def hub_silence() -> str | None:
    """Why nothing can be fetched from the hub, or None."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        get_session().head(constants.ENDPOINT, timeout=_HUB_SECONDS)
    except Exception as error:  # many kinds: no network, no name, no answer, a proxy that refuses
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return f"{constants.ENDPOINT} does not answer ({reason})"
    return None


def load_config(path: str, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """The configuration of a model, as transformers has it. Raises UserError where it is not there, or damaged."""
    from transformers import AutoConfig

    source, options = resolve(path), load_options(path, revision, trust_remote_code)
    try:
        return AutoConfig.from_pretrained(source, **options)
    except Exception as error:  # transformers raises many kinds
        raise not_loaded("the model does not load", error, path) from error


def not_loaded(
    what: str, error: Exception, path: str, wanted: str = "a causal language model in safetensors"
) -> UserError:
    """The message for a model or tokenizer that transformers does not load, with the likely cause."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    text = "\n".join(map(str, chain))
    if "trust_remote_code" in text:
        fix = "read it first; `tepo eval … --trust` executes it, in training model.trust_remote_code=true"
        return UserError(f"{what}: it comes with code of its own, not executed without --trust", where=path, fix=fix)
    lacking = [str(link.name) for link in chain if isinstance(link, ModuleNotFoundError)]
    if "tokenizer.model" in text or "tiktoken" in text:  # without one of them transformers reads such a file as another
        lacking = [name for name in ("sentencepiece", "tiktoken") if importlib.util.find_spec(name) is None]
    if lacking:
        what = f"{what}: it takes Python packages that are not installed ({', '.join(lacking)})"
        return UserError(what, where=path, fix=f"pip install {' '.join(lacking)}")
    if "instantiate the backend tokenizer" in text:
        return no_vocabulary(path)
    if on_hub(path):
        fix = "check the id, the network, HF_HOME, and HF_TOKEN where its owner asks for one"
    else:
        fix = f"{AGAIN}, or choose another: {wanted}"
    return UserError(f"{what}: {_said(error)}", where=path, fix=fix)


def no_vocabulary(path: str) -> UserError:
    """The message for a tokenizer whose files are not there: transformers makes one that knows no text."""
    what = "the model has no tokenizer: its vocabulary is missing"
    return UserError(what, where=path, fix="add tokenizer.json, from where the weights are from")


def _said(error: BaseException) -> str:
    """The first sentence of an error, or of the one behind it where that points to what stands above or below."""
    text = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
    if isinstance(error, JSONDecodeError):
        return f"one of its files is damaged: no JSON ({text})"
    if isinstance(error, TypeError | AttributeError | IndexError | ArithmeticError):
        return f"its settings do not fit together ({text})"  # the words of Python alone say nothing
    first = re.split(r"(?<=[^.][.!])\s|\n", text.strip(), maxsplit=1)[0].strip()
    if first and first[-1] not in ":," and not re.search(r"\b(above|below|following|one of)\b", first):
        return first.rstrip(".")
    return _said(error.__cause__) if error.__cause__ else type(error).__name__


def check_folder(folder: Path) -> None:
    """Raise UserError unless the folder holds a configuration, a tokenizer and its weights, all of them, and nothing
    that one loader takes for the weights and another does not."""
    if not folder.is_dir():
        fix = "give a folder saved by a run or by save_pretrained, a hub id such as Qwen/Qwen2.5-7B, or package:laptop"
        raise UserError("no model there", where=str(folder), fix=fix)
    check_no_adapters(folder)
    missing = [name for name in ("config.json", "tokenizer_config.json") if not (folder / name).is_file()]
    own_code = any(folder.glob("*.py"))
    if not own_code and not any(path for pattern in _VOCABULARIES for path in folder.glob(pattern)):
        missing.append("tokenizer.json")
    if (folder / "vocab.json").is_file() and not any((folder / n).is_file() for n in ("tokenizer.json", "merges.txt")):
        missing += [] if own_code else ["merges.txt"]  # the tokenizer would be one of single letters
    missing += [path.name for path in weight_files(folder) if not path.is_file()]
    if missing:
        fix = "choose another checkpoint, or download or save this one again (safetensors, with its tokenizer)"
        raise UserError(f"half a model: {', '.join(missing)} missing", where=str(folder), fix=fix)
    for file in filter(Path.is_file, (folder / name for name in _SETTINGS)):  # transformers passes over some of them
        try:
            if not isinstance(parse_json(file.read_bytes()), dict):
                raise ValueError("not keys and values")
        except ValueError as error:
            raise UserError(f"{file.name} is damaged: {error}", where=str(file), fix=AGAIN) from None


_OTHER_FILES = {  # by their first bytes
    b"GGUF": ("a GGUF file", "tepo model fetch NAME --from FILE.gguf"),
    b"version https://git-lfs": ("a pointer of Git LFS, not what it points to", "git lfs pull"),
    b"PK\x03\x04": ("a zip archive, as torch.save writes", "save the model as safetensors (save_pretrained)"),
    b"\x80": ("a file of torch.save", "save the model as safetensors (save_pretrained)"),
    b"<": ("a page of the web", AGAIN),
}


def unreadable(file: Path, wanted: str = "safetensors") -> UserError:
    """The message for a file of weights that does not open, with the likely cause. wanted: its format."""
    head, size = file.open("rb").read(32), file.stat().st_size
    kind, fix = next((diagnosis for first, diagnosis in _OTHER_FILES.items() if head.startswith(first)), ("", AGAIN))
    if not head:
        return UserError("the file is empty", where=str(file), fix=AGAIN)
    if kind and wanted not in kind:
        return UserError(f"the file is no {wanted}, but {kind}", where=str(file), fix=fix)
    return UserError(f"the file is damaged, cut off or no {wanted} ({size:,} bytes)", where=str(file), fix=AGAIN)


def check_no_adapters(folder: Path) -> None:
    """Raise UserError for adapters, which transformers puts on the model beside them, or on another that they name, and
    vLLM does not."""
    if (folder / ADAPTERS).is_file():
        fix = "merge them into their model first (peft: merge_and_unload, then save_pretrained)"
        raise UserError(f"the folder holds adapters ({ADAPTERS})", where=str(folder), fix=fix)


def weight_files(folder: Path) -> list[Path]:
    """The files that transformers and vLLM both take for the weights of a model, there or not.

    Raises UserError where they would not take the same ones, and for an index that is damaged or names anything but
    safetensors files beside it: what lies elsewhere is not in the id of a run."""
    index = folder / INDEX
    if not index.is_file():
        others = sorted(path.name for path in folder.glob("*.safetensors") if path.name != WEIGHTS)
        if others and (folder / WEIGHTS).is_file():
            what = f"{others[0]} lies beside {WEIGHTS}, and vLLM would take both for the weights"
            raise UserError(what, where=str(folder), fix="move it away")
        return [folder / WEIGHTS]
    names = {str(name) for name in weight_map(index).values()}
    for name in sorted(names):
        if Path(name).name != name or not name.endswith(".safetensors"):
            what = f"the index of the weights names {name!r}, which is no safetensors file beside it"
            raise UserError(what, where=str(index), fix=AGAIN)
    if (folder / WEIGHTS).is_file() and WEIGHTS not in names:
        what = f"the folder has two sets of weights, {WEIGHTS} and those of its index"
        raise UserError(what, where=str(folder), fix="move one of them away")
    return [folder / name for name in sorted(names)]


def weight_map(index: Path) -> dict[str, Any]:
    """The file of each tensor. Raises UserError for a damaged index."""
    try:
        return dict(parse_json(index.read_bytes())["weight_map"])
    except (ValueError, KeyError, TypeError):
        what, fix = "the index of the weight files is damaged", AGAIN
        raise UserError(what, where=str(index), fix=fix) from None


# Weights, adapters and their index; configuration, generation settings (stop tokens), tokenizer,
# chat templates, code of the model.
_SUFFIXES = (".safetensors", ".json", ".jinja", ".model", ".tiktoken", ".txt", ".py")
_TEMPLATES = "additional_chat_templates"
_RECORDS = (RECIPE_FILE, "progress.json", "trainer_state.json")  # how a model came about, which nothing loads


@paths.once_a_look
def base_fingerprint(path: str, revision: str | None, on_record: bool = False) -> str:
    """A hash of the files of a folder or a shipped base, or the hub id with its commit: no weights are downloaded. Of a
    base on record the hash on record where its folder is not there or not whole, with `on_record` whatever is there.

    Raises UserError for a folder that is not there or not whole, and for a hub id whose commit is not known.
    """
    if _on_record(path) and (on_record or is_gone(path)):
        return str(recorded_bases()[path]["hash"])
    folder = Path(resolve(path))
    if not folder.is_dir():
        return f"{path}@{pinned(path, revision)}"
    names = (str(file.relative_to(folder)) for file in (*folder.iterdir(), *folder.glob(f"{_TEMPLATES}/*")))
    loaded = sorted(folder / name for name in names if is_loaded(name) and (folder / name).is_file())
    return content_hash([[str(file.relative_to(folder)), file_digest(file)] for file in loaded])


def is_loaded(name: str) -> bool:
    """Tell whether a file, by its path in a model's folder, can be opened when the model is loaded."""
    file = Path(name)
    place_fits = str(file.parent) in (".", _TEMPLATES)
    return place_fits and file.suffix in _SUFFIXES and file.name not in _RECORDS


def is_gone(path: str) -> bool:
    """Tell whether a path names a base on record whose folder is not there, or holds half a model."""
    if not _on_record(path):
        return False
    try:
        check_folder(cached_folder(path.removeprefix(CACHE)) if path.startswith(CACHE) else Path(path).expanduser())
    except UserError:
        return True
    return False


def differs_from_record(path: str) -> bool:
    """Tell whether a path names a base on record, and the files here are those of another one."""
    return _on_record(path) and base_fingerprint(path, None) != base_fingerprint(path, None, on_record=True)


def _on_record(path: str) -> bool:
    return not path.startswith("package:") and path in recorded_bases()


@paths.once_a_look
def recorded_bases() -> dict[str, dict[str, Any]]:
    """Bases on record, the user's own in front of a shipped one of its name: hash, and how it was made. Raises
    UserError for a damaged file."""
    bases: dict[str, dict[str, Any]] = {}
    for folder in reversed(paths.folders("records")):
        bases |= read_bases(folder / BASES)
    return bases


def read_bases(file: Path) -> dict[str, dict[str, Any]]:
    """The bases of one file, none where there is no file. Raises UserError where it is damaged."""
    try:
        bases = parse_json(file.read_bytes())
        return {name: {"hash": str(record["hash"]), "made": dict(record["made"])} for name, record in bases.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        fix = "restore it from the repository, or move it away"
        raise UserError(f"the bases on record are damaged: {error}", where=str(file), fix=fix) from None
