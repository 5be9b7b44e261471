"""Location of a policy: a folder, a hub id, or `package:NAME` for a base that ships with tepo;
the fingerprint of its files.

A base that does not ship is made by a recipe, and another CPU makes another one. Those that records were trained from
are known by name in `records/bases.json`, so that a run is found among the records where the folder is gone:

    {"base-laptop_1m": {"hash": "9c0f…", "made": {"command": "tepo warmstart laptop_1m", "cpu": …, "scores": …}}}
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tepo.common import paths, trust
from tepo.common.errors import UserError, unknown_name
from tepo.common.files import content_hash, file_digest, parse_json
from tepo.common.paths import PACKAGE

BASES = "bases.json"
RECIPE_FILE = "recipe.json"
_HUB_SECONDS = 5.0
_HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")  # old ones have no owner: gpt2


def resolve(path: str) -> str:
    """The folder or hub id behind `path`. Raises UserError for a folder that is not there or not whole, and for a base
    on record whose folder is gone."""
    if path.startswith("package:"):
        name = path.removeprefix("package:")
        folder = PACKAGE / "assets" / name
        if not name or not folder.is_dir():
            shipped = (entry.name for entry in (PACKAGE / "assets").glob("*/"))
            raise unknown_name("shipped model", name, shipped, where=path)
    else:
        folder = Path(path).expanduser()
        if not folder.exists() and _HUB_ID.fullmatch(path):
            if known := recorded_bases().get(path):
                made, cpu = known["made"].get("command"), known["made"].get("cpu")
                fix = f"{made}; on another CPU than {cpu} it comes out as another base" if made else "bring it here"
                raise UserError("that base is on record, and its files are not here", where=path, fix=fix)
            return path
    check_folder(folder)
    return str(folder)


def load_options(path: str, revision: str | None, trust_remote_code: bool) -> dict[str, Any]:
    """Options of every `from_pretrained` of transformers and vLLM, and the one way to code that comes with a model:
    which is executed is logged. Never None: transformers would ask on the terminal."""
    if trust_remote_code:
        source = Path(resolve(path))
        code = ", ".join(sorted(file.name for file in source.glob("*.py"))) if source.is_dir() else f"at {revision}"
        trust.note(f"executes code that comes with the model {path}: {code or 'what its config.json names'}")
    if not path.startswith("package:") and not Path(path).expanduser().exists():
        _ask_hub_once()
    return {"revision": revision, "trust_remote_code": bool(trust_remote_code)}


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
    from huggingface_hub.utils import get_session

    if constants.HF_HUB_OFFLINE:
        return
    try:
        get_session().head(constants.ENDPOINT, timeout=_HUB_SECONDS)
    except Exception as error:  # many kinds: no network, no name, no answer, a proxy that refuses
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        said = f"{constants.ENDPOINT} does not answer ({reason}): only what is cached is used"
        logging.getLogger(__name__).warning("%s", said)
        constants.HF_HUB_OFFLINE = True


def not_loaded(what: str, error: Exception, path: str) -> UserError:
    """The message for a model or tokenizer that transformers does not load."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if "trust_remote_code" in str(error):
        fix = "read it first; `tepo eval … --trust` executes it, in training model.trust_remote_code=true"
        return UserError(f"{what}: it comes with code of its own, not executed without --trust", where=path, fix=fix)
    fix = "check the path, the network or HF_HOME, and that the files are whole"
    return UserError(f"{what}: {reason}", where=path, fix=fix)


def check_folder(folder: Path) -> None:
    """Raise UserError unless the folder holds a configuration, a tokenizer
    and every safetensors file its index names."""
    if not folder.is_dir():
        fix = "give a folder saved by a run or by save_pretrained, a hub id such as Qwen/Qwen2.5-7B, or package:laptop"
        raise UserError("no model there", where=str(folder), fix=fix)
    missing = [name for name in ("config.json", "tokenizer_config.json") if not (folder / name).is_file()]
    index, shards = folder / "model.safetensors.index.json", {"model.safetensors"}
    try:
        if index.is_file():
            shards = set(parse_json(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError):
        what, fix = "the index of the weight files is damaged", "download or save the model again"
        raise UserError(what, where=str(index), fix=fix) from None
    missing += [name for name in sorted(shards) if not (folder / name).is_file()]
    if missing:
        fix = "choose another checkpoint, or download or save this one again (safetensors)"
        raise UserError(f"half a model: {', '.join(missing)} missing", where=str(folder), fix=fix)


# Weights, adapters and their index; configuration, generation settings (stop tokens), tokenizer,
# chat templates, code of the model.
_SUFFIXES = (".safetensors", ".json", ".jinja", ".model", ".tiktoken", ".txt", ".py")
_RECORDS = (RECIPE_FILE, "progress.json", "trainer_state.json")  # how a model came about, which nothing loads


def base_fingerprint(path: str, revision: str | None) -> str:
    """A hash of the files of a folder or a shipped base, or the hub id with its revision: nothing is downloaded. Of a
    base on record whose folder is not there, the hash on record.

    Raises UserError for a folder that is not there or not whole.
    """
    if is_gone(path):
        return str(recorded_bases()[path]["hash"])
    folder = Path(resolve(path))
    if not folder.is_dir():
        return f"{path}@{revision}"
    files = [*folder.iterdir(), *folder.glob("additional_chat_templates/*")]
    loaded = sorted(file for file in files if file.suffix in _SUFFIXES and file.name not in _RECORDS and file.is_file())
    return content_hash([[str(file.relative_to(folder)), file_digest(file)] for file in loaded])


def is_gone(path: str) -> bool:
    """Tell whether a path names a base on record whose folder is not there."""
    return not path.startswith("package:") and not Path(path).expanduser().exists() and path in recorded_bases()


def recorded_bases() -> dict[str, dict[str, Any]]:
    """Bases on record, the user's own in front of a shipped one of its name: hash, and how it was made. Raises
    UserError for a damaged file."""
    known: dict[str, dict[str, Any]] = {}
    for folder in reversed(paths.folders("records")):
        known |= read_bases(folder / BASES)
    return known


def read_bases(file: Path) -> dict[str, dict[str, Any]]:
    """The bases of one file, none where there is no file. Raises UserError where it is damaged."""
    try:
        bases = parse_json(file.read_bytes())
        return {name: {"hash": str(one["hash"]), "made": dict(one["made"])} for name, one in bases.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        fix = "restore it from the repository, or move it away"
        raise UserError(f"the bases on record are damaged: {error}", where=str(file), fix=fix) from None
