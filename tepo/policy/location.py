"""Where a policy lies: a folder, a hub id, or `package:NAME` for a base that ships with tepo."""

import re
from pathlib import Path

from tepo.errors import UserError, unknown_name
from tepo.files import parse_json
from tepo.paths import PACKAGE

_HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")  # old ones have no owner: gpt2


def resolve(path: str) -> str:
    """The folder or hub id behind `path`. Raises UserError for a folder that is not there or not whole."""
    if path.startswith("package:"):
        name = path.removeprefix("package:")
        folder = PACKAGE / "assets" / name
        if not name or not folder.is_dir():
            raise unknown_name(
                "shipped model", name, (entry.name for entry in (PACKAGE / "assets").glob("*/")), where=path
            )
    else:
        folder = Path(path).expanduser()
        if not folder.exists() and _HUB_ID.fullmatch(path):
            return path
    check_folder(folder)
    return str(folder)


def check_folder(folder: Path) -> None:
    """Raise UserError unless the folder holds a configuration, a tokenizer
    and every safetensors file its index names."""
    if not folder.is_dir():
        raise UserError(
            "no model there",
            where=str(folder),
            fix=(
                "give a folder saved by a run or by save_pretrained, "
                "a hub id such as Qwen/Qwen2.5-7B, or package:laptop"
            ),
        )
    missing = [name for name in ("config.json", "tokenizer_config.json") if not (folder / name).is_file()]
    index = folder / "model.safetensors.index.json"
    try:
        shards = (
            sorted(set(parse_json(index.read_bytes())["weight_map"].values()))
            if index.is_file()
            else ["model.safetensors"]
        )
    except (ValueError, KeyError):
        raise UserError(
            "the index of the weight files is damaged", where=str(index), fix="download or save the model again"
        ) from None
    missing += [name for name in shards if not (folder / name).is_file()]
    if missing:
        raise UserError(
            f"half a model: {', '.join(missing)} missing",
            where=str(folder),
            fix="choose another checkpoint, or download or save this one again (safetensors)",
        )
