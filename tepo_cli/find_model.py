"""Model that the words of `tepo eval` name."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tepo.common import trust
from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.jobs.weights import Weights
from tepo.problems.benchmarks import PAPER
from tepo.store.find_run import find_run, runs
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import base_id

_RUN_ID = re.compile(r"(base-)?[0-9a-f]{12}")
_BEGINNING = re.compile(r"[0-9a-f]{1,11}")


@dataclass(frozen=True)
class Target:
    """A model, the folder for its results, and the settings that came with it.

    `all`: what the word `all` means for this model.
    """

    weights: Weights
    run: RunFolder
    all: tuple[str, ...]
    wrap: str = "auto"
    thinking: bool | None = None

    def expand(self, names: Sequence[str]) -> list[str]:
        """The benchmarks named, `all` replaced, each once."""
        return list(dict.fromkeys(part for name in names for part in (self.all if name == "all" else (name,))))


def find_target(model: str, store: Path, revision: str | None) -> Target:
    """A run by folder or id, else a model. Raises UserError for a run without a complete checkpoint."""
    if not model:
        raise UserError(
            "the model has no name",
            where="--model",
            fix="a run (`tepo list`), a model folder, a hub id, or package:laptop",
        )
    begun = _BEGINNING.fullmatch(model) and not (Path(model).exists() or (store / model).exists())
    named = find_run(model, store) if begun else None
    for run in filter(None, (RunFolder(Path(model)), RunFolder(store / model), named)):
        if run.started():
            config = run.config()["full"]
            own = config["model"]
            return Target(
                Weights.of_stored(run), run, tuple(config["data"]["benchmarks"]), own["wrap"], own["thinking"]
            )
    _check_no_run(model, store)
    weights, base = Weights.of_base(model, revision, trust.given()), model.removeprefix("package:")
    everything = tuple(compose([f"data={base}"]).data.benchmarks) if base != model else PAPER
    return Target(weights, RunFolder(store / base_id(model, revision)), everything)


def _check_no_run(model: str, store: Path) -> None:
    """Raises UserError for what can only be a run or a folder, and is not there: the network is not asked about it."""
    path = Path(model)
    if model.startswith("package:") or path.exists():
        return
    known = [run.path.name for run in runs(path.parent if "/" in model else store) if run.config_file.is_file()]
    near = difflib.get_close_matches(path.name, known, n=1, cutoff=0.5)
    inside = "/" in model and (path.parent == store or path.parent.is_dir())
    if inside or ("/" not in model and (near or _RUN_ID.fullmatch(model))):
        listed = "`tepo list` shows the runs; a shipped base is package:laptop"
        raise UserError(
            f"no model and no run {model!r}",
            where=f"--store {store}",
            fix=(f"did you mean {near[0]!r}? " if near else "") + listed,
        )
