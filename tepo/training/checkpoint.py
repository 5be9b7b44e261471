"""One checkpoint: a folder that `from_pretrained` loads, with what resuming needs beside the model."""

import json
from pathlib import Path

ADAPTER = "adapter"  # the folder of LoRA's adapters, which are merged into the model beside it


def complete(folder: Path) -> bool:
    """Whether a checkpoint holds every file that its `progress.json` lists, at full size."""
    try:
        files = json.loads((folder / "progress.json").read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return all((folder / name).is_file() and (folder / name).stat().st_size == size for name, size in files.items())
