"""Is the run in a folder the one that the folder is called after? One answer for everybody who reads a run.

The name is the hash of what the run was made of (`tepo.store.run_id`), which `config.json` has. The manifest has a
digest of that file. Who edits the file and puts its new digest there is not found out.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tepo import __version__
from tepo.common.errors import UserError
from tepo.common.files import content_hash, file_digest, parse_json
from tepo.store.run_id import RECIPE

DIGEST = "config_sha256"  # in a manifest: of `config.json` as it then was, with the labels and paths that no id covers
_OTHER = "the stored configuration is not the one that the run is called after"
AGAIN = "copy the run again, or move the folder away and let it be trained anew"  # what to do about half a run


def read_config(path: Path) -> dict[str, Any]:
    """Content of a `config.json`. Raises UserError unless it is complete and as this version writes it."""
    try:
        config = parse_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError("the run has no configuration: copied half?", where=str(path), fix=AGAIN) from None
    except ValueError:
        what = "the run's configuration is not JSON: copied half?"
        raise UserError(what, where=str(path), fix=AGAIN) from None
    if not isinstance(config, dict) or config.get("recipe") != RECIPE or not is_configuration(config.get("full")):
        said = config if isinstance(config, dict) else {}
        version, recipe = said.get("tepo", "unknown"), said.get("recipe")
        what = f"the run was written by another version of tepo ({version})"
        if version == __version__:
            what = f"the run was trained by recipe {recipe}, and tepo {version} here has recipe {RECIPE}"
        if (version, recipe) == (__version__, RECIPE):
            what = "the run's configuration is damaged: parts are missing"
            raise UserError(what, where=str(path), fix=AGAIN)
        raise UserError(what, where=str(path), fix="use the commit that wrote it, or another --store")
    return config


def is_configuration(full: Any) -> bool:
    """Tell whether a stored configuration has the parts that commands show, in their types."""
    if not isinstance(full, dict) or type(full.get("seed")) is not int:
        return False
    wanted = (("objective", "name", str), ("model", "name", str), ("data", "name", str), ("train", "steps", int))
    return all(
        isinstance(full.get(group), dict) and isinstance(full[group].get(key), kind) for group, key, kind in wanted
    )


def check_identity(file: Path, stored: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
    """Raise UserError where the folder of a `config.json` holds a run by another recipe, a run of another name, or one
    whose configuration was changed. Model and problems count as recorded. stored, manifest: content of both files."""
    name, folder = file.parent.name, str(file.parent)
    if manifest and (recipe := manifest.get("recipe")) != RECIPE:
        what = f"the run was made by recipe {recipe}, and this is recipe {RECIPE}"
        raise UserError(what, where=folder, fix="use the commit that made it, or another --store")
    for known in (manifest.get("id"), stored.get("id")):
        if known is not None and known != name:
            what = f"{_OTHER}: it is that of run {known}, copied under another name?"
            raise UserError(what, where=str(file), fix=f"call the folder {known}, or move it out of the store")
    recorded = {key: stored.get(key) for key in ("recipe", "base", "problems", "config")}
    own = content_hash([content_hash(recorded), stored.get("seed")]) == name
    if not own or manifest.get(DIGEST) not in (None, file_digest(file)):
        raise UserError(f"{_OTHER}: edited, or damaged?", where=str(file), fix=AGAIN)
