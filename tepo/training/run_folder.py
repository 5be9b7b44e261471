"""A run on disk:
what it is (`config.json`), how far it came (`metrics.jsonl`, `checkpoints/`), how it ended (`manifest.json`).

runs/<id>/config.json               the resolved configuration and what the id was made of
          manifest.json             status: running | finished | interrupted | failed; where training ended by itself
          provenance.json           versions, commit, machine and dates of each process that trained it; part of no id
          metrics.jsonl             one line a step, verl's names; the truth (wandb mirrors it)
          checkpoints/step_000036/  model, tokenizer, optimiser, waiting rollouts; loads with `from_pretrained`
                                    (with LoRA the merged model; adapter/ holds the adapters in peft's format);
                                    of a finished run one, without optimiser and rollouts
          ranks/                    signs of life of the ranks of a run over several, while it trains
          validation.json           accuracy of the last weights on validation problems, where a study tunes by it
          eval/<benchmark>/         samples.parquet, result.json, provenance.json
          tokens/step_000036.json   per-token diagnostics for the token view
          first_responses.jsonl     a few, where training ended at its first step
          figures/                  training curves
          cost.json                 what each process spent on it
          log.txt                   what its processes printed, where a study started them
"""

import fcntl
import json
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tepo import __version__
from tepo.config.compose import to_dict
from tepo.config.schema import RunConfig
from tepo.errors import UserError
from tepo.evaluation.result import has_result
from tepo.files import explain_write_errors, parse_json, read_jsonl, write_atomic, write_json
from tepo.training.checkpoint import complete, drop_resumption
from tepo.training.ending import Ending, read_ending
from tepo.training.run_id import RECIPE, base_id, identity, run_id

AGAIN = "copy the run again, or move the folder away and let it be trained anew"  # what to do about half a run
BUSY = 3  # exit code of a process that found its run in the hands of another


@dataclass(frozen=True)
class RunFolder:
    """One run's folder; `lock` keeps a second process from training it at the same time."""

    path: Path

    @classmethod
    def of(cls, config: RunConfig) -> "RunFolder":
        return cls(Path(config.store) / run_id(config))

    @classmethod
    def of_base(cls, config: RunConfig) -> "RunFolder":
        """Where measurements of the untrained policy of a configuration lie."""
        return cls(Path(config.store) / base_id(config.model.path, config.model.revision))

    # paths ----------------------------------------------------------------------------------------------------------
    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    @property
    def manifest_file(self) -> Path:
        return self.path / "manifest.json"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def validation_file(self) -> Path:
        return self.path / "validation.json"

    @property
    def examples_file(self) -> Path:
        return self.path / "first_responses.jsonl"

    @property
    def cost(self) -> Path:
        return self.path / "cost.json"

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    @property
    def exchange(self) -> Path:
        """Where weights pass to sampling servers."""
        return self.path / "exchange"

    @property
    def server_logs(self) -> Path:
        """Of servers that sampled for an evaluation."""
        return self.evaluations / ".servers"

    @property
    def evaluations(self) -> Path:
        """The folder of all evaluations."""
        return self.path / "eval"

    def evaluation(self, benchmark: str, limit: int | None = None, seed: int = 0) -> Path:
        """The folder of one evaluation; a limited one, or one with another seed, lies beside the full one."""
        marks = ([f"first{limit}"] if limit else []) + ([f"seed{seed}"] if seed else [])
        return self.evaluations / "@".join([benchmark, *marks])

    def tokens(self, step: int) -> Path:
        """The per-token diagnostics of a step."""
        return self.path / "tokens" / f"step_{step:06d}.json"

    def token_dumps(self) -> list[Path]:
        """The per-token diagnostics that are there, by step."""
        return sorted((self.path / "tokens").glob("step_*.json"))

    # what it is and how it ended ------------------------------------------------------------------------------------
    def create(self, config: RunConfig) -> None:
        """Write `config.json` once."""
        if not self.config_file.exists():
            write_json(
                self.config_file,
                {
                    "id": self.path.name,
                    "tepo": __version__,
                    "seed": config.seed,
                    **identity(config),
                    "full": to_dict(config),
                },
            )

    def lock(self, purpose: str = "train") -> IO[str]:
        """An exclusive lock for training or measuring, held until the returned file is closed or its process dies.

        Raises UserError with exit code BUSY when another process has it.
        POSIX record locks: they also work on network file systems.
        """
        with explain_write_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            handle = (self.path / f".{purpose}.lock").open("w")
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.close()
            raise UserError(
                f"another process has this run ({purpose})",
                where=str(self.path),
                fix="wait for it; its result will be used",
                exit_code=BUSY,
            ) from None
        return handle

    def busy(self) -> bool:
        """Whether another process trains or measures this run just now."""
        if not self.path.is_dir():
            return False
        try:
            for purpose in ("train", "measure"):
                self.lock(purpose).close()
        except UserError as error:
            if error.exit_code != BUSY:
                raise
            return True
        return False

    def manifest(self) -> dict[str, Any]:
        """Status and times; empty for a run that never started."""
        path = self.manifest_file
        if not path.exists():
            return {}
        try:
            manifest = parse_json(path.read_bytes())
            if not isinstance(manifest, dict):
                raise ValueError("not JSON with keys and values")
            if not isinstance(manifest.get("status"), str):
                raise ValueError("no status")
            ending_of(manifest)
        except ValueError as error:
            fix = f"delete {self.path} and run again"
            raise UserError(f"the manifest is damaged: {error}", where=str(path), fix=fix) from None
        return manifest

    def config(self) -> dict[str, Any]:
        """The run's `config.json`. Raises UserError unless it is complete and as this version writes it."""
        path = self.config_file
        try:
            config = parse_json(path.read_bytes())
        except FileNotFoundError:
            raise UserError("the run has no configuration: copied half?", where=str(path), fix=AGAIN) from None
        except ValueError:
            raise UserError("the run's configuration is not JSON: copied half?", where=str(path), fix=AGAIN) from None
        if not isinstance(config, dict) or config.get("recipe") != RECIPE or not is_configuration(config.get("full")):
            said = config if isinstance(config, dict) else {}
            version, recipe = said.get("tepo", "unknown"), said.get("recipe")
            what = f"the run was written by another version of tepo ({version})"
            if version == __version__:
                what = f"the run was trained by recipe {recipe}, and tepo {version} here has recipe {RECIPE}"
            if (version, recipe) == (__version__, RECIPE):
                raise UserError("the run's configuration is damaged: parts are missing", where=str(path), fix=AGAIN)
            raise UserError(what, where=str(path), fix="use the commit that wrote it, or another --store")
        return config

    def mark(self, status: str, **facts: Any) -> None:
        """Record the status with facts such as `error`."""
        write_json(
            self.manifest_file,
            {"id": self.path.name, "recipe": RECIPE, "status": status, "time": time.time(), **facts},
        )

    def started(self) -> bool:
        """Whether a run lies here, or a copy of its checkpoints."""
        return (self.path / "checkpoints").is_dir() or self.manifest_file.is_file()

    def finished(self) -> bool:
        return self.manifest().get("status") == "finished"

    def ending(self) -> Ending | None:
        """Where a finished run ended before its last step."""
        return ending_of(self.manifest())

    def outcome(self) -> str:
        """The status, with the ending."""
        return outcome_of(self.manifest())

    def measured(self) -> list[str]:
        """The finished evaluations, by name of their folders."""
        try:
            return sorted(entry.name for entry in os.scandir(self.evaluations) if has_result(Path(entry.path)))
        except FileNotFoundError:
            return []

    # metrics --------------------------------------------------------------------------------------------------------
    def metrics(self) -> list[dict[str, Any]]:
        """A row a step. Raises UserError for a line that training did not write."""
        rows = read_jsonl(self.metrics_file)
        for number, row in enumerate(rows, start=1):
            odd = next((name for name, value in row.items() if not _is_figure(name, value)), None)
            if odd or type(row.get("training/global_step")) is not int:
                what = f"{odd!r} is no number" if odd else "the step is missing"
                raise UserError(f"line {number} is no row of metrics: {what}", where=str(self.metrics_file), fix=AGAIN)
        return rows

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Add one line and flush it to the disk."""
        path = self.metrics_file
        with explain_write_errors(path), path.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def truncate_metrics(self, step: int) -> None:
        """Drop the lines of steps that no checkpoint holds."""
        rows = self.metrics()
        kept = [row for row in rows if row["training/global_step"] <= step]
        if self.metrics_file.exists():
            write_atomic(self.metrics_file, "".join(json.dumps(row) + "\n" for row in kept))

    # checkpoints ----------------------------------------------------------------------------------------------------
    def checkpoint(self, step: int) -> Path:
        return self.path / "checkpoints" / f"step_{step:06d}"

    def checkpoints(self) -> list[int]:
        """Steps with a complete checkpoint, ascending."""
        names = [re.fullmatch(r"step_(\d+)", path.name) for path in (self.path / "checkpoints").glob("step_*")]
        steps = [int(name.group(1)) for name in names if name]
        return sorted(step for step in steps if complete(self.checkpoint(step)))

    def half_written(self) -> list[Path]:
        """Checkpoints that lack files, or parts of files: copied half, or damaged."""
        return [path for path in sorted((self.path / "checkpoints").glob("step_*")) if not complete(path)]

    def newest(self) -> Path | None:
        """The newest complete checkpoint; None where there is none at all. Raises UserError where all are
        half-written: a run that began anew would drop its metrics."""
        saved, damaged = self.checkpoints(), self.half_written()
        if damaged and not saved:
            raise UserError(
                "every checkpoint of the run is half-written: files are missing or shorter than recorded",
                where=str(damaged[-1]),
                fix=AGAIN,
            )
        return self.checkpoint(saved[-1]) if saved else None

    def progress(self, step: int) -> dict[str, Any]:
        """What was saved with a checkpoint beside weights: step, prompts drawn, file sizes."""
        return parse_json((self.checkpoint(step) / "progress.json").read_bytes())

    def forget(self, step: int) -> None:
        """Delete the checkpoints and metrics of the steps after one."""
        for later in (saved for saved in self.checkpoints() if saved > step):
            shutil.rmtree(self.checkpoint(later))
        self.truncate_metrics(step)

    def scratch(self, step: int) -> Path:
        """Where a checkpoint is written before it appears."""
        return self.checkpoint(step).with_name(f".{self.checkpoint(step).name}")

    def unfinished(self) -> list[Path]:
        """What was left of checkpoints that never appeared."""
        return list((self.path / "checkpoints").glob(".step_*"))

    def keep_weights(self) -> None:
        """Of a finished run's checkpoints keep the last weights: it is never resumed."""
        saved = self.checkpoints()
        for step in saved[:-1]:
            shutil.rmtree(self.checkpoint(step), ignore_errors=True)
        for step in saved[-1:]:
            drop_resumption(self.checkpoint(step))


def is_configuration(full: Any) -> bool:
    """Whether a stored configuration has the parts that commands show, in their types."""
    if not isinstance(full, dict) or type(full.get("seed")) is not int:
        return False
    groups = {name: full.get(name) for name in ("objective", "model", "data", "train")}
    wanted = {"train": ("steps", int)}
    return all(
        isinstance(group, dict) and isinstance(group.get(key), kind)
        for name, group in groups.items()
        for key, kind in [wanted.get(name, ("name", str))]
    )


def _is_figure(name: str, value: Any) -> bool:
    """Whether a metric is a number that fits a float, or a list of such, a figure a problem."""
    if isinstance(value, list) and "val-aux/" in name:
        return all(_is_figure("", part) for part in value)
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def ending_of(manifest: dict[str, Any]) -> Ending | None:
    """Where the run of a manifest ended before its last step. Raises ValueError for an ending that is none."""
    ending = manifest.get("ending")
    return None if ending is None else read_ending(ending)


def outcome_of(manifest: dict[str, Any]) -> str:
    """The status in a manifest, with the ending."""
    status, ending = manifest.get("status", "not started"), ending_of(manifest)
    return status if ending is None else f"{status}: {ending}"
