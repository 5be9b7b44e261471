"""Fingerprint of a policy before it is trained: a hash of every file of its folder that can change what it says,
wherever it lies."""

from pathlib import Path

from tepo.common.files import content_hash, file_digest
from tepo.policy.model.model_location import resolve

# Weights, adapters and their index; configuration, generation settings (stop tokens), tokenizer,
# chat templates, code of the model.
_SUFFIXES = (".safetensors", ".json", ".jinja", ".model", ".tiktoken", ".txt", ".py")
_RECORDS = ("recipe.json", "progress.json", "trainer_state.json")  # how a model came about, which nothing loads


def base_fingerprint(path: str, revision: str | None) -> str:
    """A hash of the files of a folder or a shipped base, or the hub id with its revision: nothing is downloaded.

    Raises UserError for a folder that is not there or not whole.
    """
    folder = Path(resolve(path))
    if not folder.is_dir():
        return f"{path}@{revision}"
    return content_hash([[str(file.relative_to(folder)), file_digest(file)] for file in _files(folder)])


def _files(folder: Path) -> list[Path]:
    """The files that loading the model may read, in a fixed order."""
    files = [*folder.iterdir(), *folder.glob("additional_chat_templates/*")]
    return sorted(file for file in files if file.suffix in _SUFFIXES and file.name not in _RECORDS and file.is_file())
