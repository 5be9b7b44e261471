"""A run on disk:
what it is (`config.json`), how far it came (`metrics.jsonl`, `checkpoints/`), how it ended (`manifest.json`).

docs/store.md lists the files. A checkpoint loads with `from_pretrained`, with LoRA as the merged model (`adapter/`
holds the adapters in peft's format); of a finished run it is without optimiser and rollouts. `ranks/` holds signs of
life of the ranks of a run over several, while it trains; `wandb/` and `tensorboard/` what these trackers keep here.
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Literal

from tepo import __version__
from tepo.common import provenance
from tepo.common.errors import BUSY, UserError
from tepo.common.files import (
    TEMPORARY,
    check_no_links,
    content_hash,
    explain_write_errors,
    file_digest,
    no_link,
    parse_json,
    read_jsonl,
    remove_folder,
    remove_leftovers,
    take_lock,
    write_atomic,
    write_json,
)
from tepo.config.compose import to_dict
from tepo.config.run_config import RunConfig
from tepo.policy.model.model_location import pinned
from tepo.store.checkpoint_files import damage, drop_resumption, for_resuming, read_progress
from tepo.store.cost import Cost, read_costs
from tepo.store.early_stop import Best, Ending, read_best, read_ending
from tepo.store.evaluation_result import (
    Result,
    RightAnswers,
    Validated,
    has_result,
    load_result,
    read_right_answers,
    read_validation,
    validation_damage,
)
from tepo.store.run_id import AGAIN, DIGEST, RECIPE, base_id, check_identity, read_config, run_id
from tepo.store.stored_tokens import MOVE_AWAY, Excerpt, excerpt_of

_STEP = "training/global_step"
Purpose = Literal["train", "measure"]  # at any time one process does each
LEFT: dict[Purpose, tuple[str, ...]] = {  # what killed processes that held the lock leave behind
    "train": ("checkpoints/.step_*", *(place + TEMPORARY for place in ("", "tokens/", "figures/", "checkpoints/*/"))),
    "measure": tuple(place + TEMPORARY for place in ("", "eval/*/", "eval/*/parts/")),
}
_WITH_LINKS = ("wandb",)  # which wandb makes in its folder; nothing is read there


class _Part:
    """Path of a file or folder of a run, as an attribute of its `RunFolder`, whose door it opens."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: "RunFolder", owner: type) -> Path:
        return run.opened / self.name


@dataclass(frozen=True)
class RunFolder:
    """One run's folder; `lock` keeps a second process from training it at the same time.

    `path` is its name alone. All that is read, written or removed in it is reached through `opened`, which looks once
    whether anything in it leads elsewhere; `lock` looks again."""

    path: Path

    @classmethod
    def of(cls, config: RunConfig) -> "RunFolder":
        return cls(Path(config.store) / run_id(config))

    @classmethod
    def of_served(cls, store: Path, name: str) -> "RunFolder":
        """The folder of measurements of a model that others serve."""
        return cls(store / f"served-{content_hash(name)}")

    @classmethod
    def of_base(cls, config: RunConfig, on_record: bool = False) -> "RunFolder":
        """The folder of measurements of the untrained policy of a configuration. on_record: as for `base_id`."""
        return cls(Path(config.store) / base_id(config.model.path, config.model.revision, on_record))

    # paths ----------------------------------------------------------------------------------------------------------
    @cached_property
    def opened(self) -> Path:
        """The folder, whether it is there or not. Raises UserError where it is a symbolic link or holds one."""
        self._look()
        return self.path

    def _look(self) -> None:
        check_no_links(self.path, _WITH_LINKS)

    config_file = _Part("config.json")
    manifest_file = _Part("manifest.json")
    metrics_file = _Part("metrics.jsonl")
    validation_file = _Part("validation.json")
    prompt_file = _Part("first_prompt.json")
    examples_file = _Part("first_responses.jsonl")
    cost_file = _Part("cost.json")
    log = _Part("log.txt")
    figures = _Part("figures")
    exchange = _Part("exchange")  # by which weights pass to sampling servers
    evaluations = _Part("eval")
    server_logs = _Part("eval/.servers")  # of servers that sampled for an evaluation

    def evaluation(self, benchmark: str, limit: int | None = None, seed: int = 0) -> Path:
        """The folder of one evaluation; a limited one, or one with another seed, lies beside the full one."""
        marks = ([f"first{limit}"] if limit else []) + ([f"seed{seed}"] if seed else [])
        return self.evaluations / "@".join([benchmark, *marks])

    def tokens(self, step: int) -> Path:
        """The per-token diagnostics of a step."""
        return self.opened / "tokens" / f"step_{step:06d}.json"

    def token_dumps(self) -> list[Path]:
        """The per-token diagnostics that are there, by step. Raises UserError for one that was changed since it was
        written."""
        manifest, saved = self.manifest(), self.checkpoints()
        written = manifest.get("tokens") or (self.progress(saved[-1]).get("tokens") if saved else None) or {}
        dumps = sorted((self.opened / "tokens").glob("step_*.json"))
        for path in dumps:
            if path.name in written and file_digest(path) != written[path.name]:
                raise UserError("the token dump is not as it was written (SHA-256)", where=str(path), fix=MOVE_AWAY)
        return dumps

    def excerpt(self) -> Excerpt | None:
        """Responses from before and after the reward fell; None where it did not, or where too few dumps are left."""
        dumps = {int(path.stem.removeprefix("step_")): path for path in self.token_dumps()}
        return excerpt_of(self.metrics(), self.ending(), dumps) if len(dumps) > 1 else None

    # what it is and how it ended ------------------------------------------------------------------------------------
    def create(self, config: RunConfig, identity: Mapping[str, Any]) -> None:
        """Write `config.json` once, with the identity that the folder is called after (`tepo.store.run_id`)."""
        if not self.config_file.exists():
            head = {"id": self.path.name, "tepo": __version__, "seed": config.seed}
            full = to_dict(config)
            full["model"]["revision"] = pinned(config.model.path, config.model.revision)
            write_json(self.config_file, {**head, **identity, "full": full})

    @classmethod
    def of_evaluation(cls, folder: Path) -> "RunFolder":
        """The run that an evaluation's folder lies in; a copy outside of a run is locked by itself."""
        folder = folder.absolute()
        return cls(folder.parents[1] if folder.parent.name == "eval" else folder)

    def lock(self, purpose: Purpose = "train") -> IO[str]:
        """An exclusive lock for training, or for measuring and regrading, held until the returned file is closed or its
        process dies. What killed processes left of that work is removed. Raises UserError with exit code BUSY when
        another process has it, and as `opened` does."""
        self._look()
        handle = take_lock(self.path / f".{purpose}.lock")
        if handle is None:
            what, fix = f"another process has this run ({purpose})", "wait for it; its result will be used"
            raise UserError(what, where=str(self.path), fix=fix, exit_code=BUSY)
        remove_leftovers(self.path, *LEFT[purpose])
        return handle

    def busy(self) -> bool:
        """Tell whether another process trains or measures this run just now. Raises UserError as `opened` does."""
        self._look()
        for purpose in LEFT if self.path.is_dir() else ():
            handle = take_lock(self.path / f".{purpose}.lock")
            if handle is None:
                return True
            handle.close()
        return False

    def manifest(self) -> dict[str, Any]:
        """Status and times; empty for a run that never started."""
        if not self.manifest_file.exists():
            return {}
        try:
            manifest = parse_json(self.manifest_file.read_bytes())
            if not isinstance(manifest, dict):
                raise ValueError("not JSON with keys and values")
            if not isinstance(manifest.get("status"), str):
                raise ValueError("no status")
            ending_of(manifest)
            read_best(manifest.get("best"))
            if not isinstance(manifest.get("tokens", {}), dict):
                raise ValueError("no digests of its token dumps")
        except ValueError as error:
            what = f"the manifest is damaged: {error}"
            raise UserError(what, where=str(self.manifest_file), fix=AGAIN) from None
        return manifest

    def config(self) -> dict[str, Any]:
        """The run's `config.json`. Raises UserError unless it is complete and as this version writes it."""
        return read_config(self.config_file)

    def system(self) -> str:
        """The system prompt that benchmarks are asked with: that of all training prompts. Raises UserError where the
        file that has it is missing or damaged."""
        if "system" not in self.config()["full"]["data"].get("fields", {}):
            return ""
        try:
            return str(parse_json(self.prompt_file.read_bytes()).get("system", ""))
        except (FileNotFoundError, ValueError, AttributeError):
            what = "the first prompt is missing or damaged, and with it the system prompt: half copied?"
            raise UserError(what, where=str(self.prompt_file), fix=AGAIN) from None

    def check_config(self) -> None:
        """Raise UserError for a run that is not the one that the folder is called after: one by another recipe, a copy
        under another name, or one with a changed `config.json`."""
        check_identity(self.config_file, self.config(), self.manifest())

    def mark(self, status: str, **facts: Any) -> None:
        """Record the status with facts such as `error`."""
        head = {"id": self.path.name, "recipe": RECIPE, "status": status, "time": time.time()}
        if self.config_file.is_file():
            head[DIGEST] = file_digest(self.config_file)
        write_json(self.manifest_file, head | facts)

    def started(self) -> bool:
        """Tell whether a run lies here, or a copy of its checkpoints."""
        return any(os.path.lexists(self.path / name) for name in ("checkpoints", "manifest.json"))

    def finished(self) -> bool:
        return self.manifest().get("status") == "finished"

    def check_whole(self, *, contents: bool = False) -> None:
        """Look whether the run is what it says; the door for all who read one. Raises UserError as `check_config` does,
        and for a run that was copied half, has damaged files, or says that it is finished and is not.

        Files of checkpoints are looked at by their sizes, with `contents` by their digests, for which all are read. Of
        an unfinished run it is enough, without `contents`, that training can go on from one checkpoint. A finished
        run without any is one whose weights were deleted: what it measured is still true."""
        self.check_config()
        steps, saved = self.config()["full"]["train"]["steps"], self._saved()
        if contents:
            self.token_dumps()
        # the metrics after that: another process may be adding to both
        if self.finished():
            ending = self.ending()
            last = steps if ending is None else ending.step - 1
            reason, where = self.metrics_damage(last, more=False), self.metrics_file
            kept_step = best.step if (best := self.best()) else last
            if not reason and saved:
                reason, where = self._damage(kept_step, contents=contents), self.checkpoint(kept_step)
            if reason:
                message = f"the run says it is finished, but {reason}: half copied?"
                raise UserError(message, where=str(where), fix=AGAIN)
            return
        unfit = {step: why for step in saved if (why := self._unfit(step, contents=contents))}
        if unfit and (contents or len(unfit) == len(saved)):
            (reason, where), whole_step = unfit[max(unfit)], max(set(saved) - set(unfit), default=None)
            raise UserError(
                reason, where=str(where), fix=AGAIN if whole_step is None else f"train it on, from step {whole_step}"
            )

    def ending(self) -> Ending | None:
        """The early stop of a finished run, if it had one."""
        return ending_of(self.manifest())

    def best(self) -> Best | None:
        """The step whose weights a run ended with, where `train.keep_best` has chosen it."""
        return read_best(self.manifest().get("best"))

    def kept_step(self) -> int | None:
        """The step whose weights a finished run ended with; None for one that has not finished."""
        manifest, best = self.manifest(), self.best()
        last = best.step if best else manifest.get("steps")
        return last if manifest.get("status") == "finished" and isinstance(last, int) else None

    def outcome(self) -> str:
        """The status, with the ending."""
        return outcome_of(self.manifest())

    def measured(self) -> list[str]:
        """The finished evaluations, by name of their folders."""
        try:
            return sorted(entry.name for entry in os.scandir(self.evaluations) if has_result(Path(entry.path)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    # what was measured, and what it took ------------------------------------------------------------------------------
    def has(self, benchmark: str) -> bool:
        """Tell whether an evaluation is finished."""
        return has_result(self.evaluation(benchmark))

    def result(self, benchmark: str) -> Result | None:
        """Content of `result.json`, None where the benchmark was not measured. Raises UserError where it is not of the
        weights that the run ended with, or not of the base that the folder is called after."""
        folder = self.evaluation(benchmark)
        result = load_result(folder)
        policy = result.task.get("policy") if result else None
        weights = policy.get("weights") if isinstance(policy, dict) else None
        if isinstance(weights, str) and not self._is_own(weights):  # an earlier version may not say it
            what, fix = (
                f"{benchmark} was measured with other weights: {weights}",
                f"move {folder} away and measure it anew",
            )
            raise UserError(what, where=str(folder), fix=fix)
        return result

    def _is_own(self, weights: str) -> bool:
        """Tell whether the weights that a result names are those of this folder, as `tepo.jobs.weights` names them."""
        kind, dash, digest = self.path.name.partition("-")
        if dash and kind in ("base", "served"):
            return content_hash(weights) == digest
        kept_step = self.kept_step()
        checkpoint = "" if kept_step is None else self.checkpoint(kept_step).name
        return not self.finished() or weights == f"{self.path.name}/{checkpoint}"

    def right_answers(self, benchmark: str) -> RightAnswers | None:
        """None where the benchmark was not measured."""
        return read_right_answers(self.evaluation(benchmark)) if self.result(benchmark) else None

    def validated(self) -> Validated | None:
        """The validation of a finished run's last weights, whatever the problems. Raises UserError where it is
        damaged."""
        if not self.finished():
            return None
        validation = read_validation(self.validation_file)
        if validation is None:
            return None
        validated, weights = validation
        if weights is not None and not self._is_own(weights):
            raise validation_damage(self.validation_file)
        return validated

    def sessions(self, benchmarks: Iterable[str]) -> list[dict[str, Any]]:
        """The processes that trained the run and measured it on these benchmarks, as far as they are on record."""
        folders = [self.opened, *map(self.evaluation, benchmarks)]
        return [session for folder in folders for session in provenance.sessions(folder)]

    def costs(self) -> list[Cost]:
        """The cost of each process, as `add_cost` recorded it. Raises UserError when the file is damaged."""
        return read_costs(self.cost_file)

    def add_cost(self, cost: Cost) -> None:
        """Add a process's cost to the run's `cost.json`."""
        write_json(self.cost_file, [vars(entry) for entry in [*self.costs(), cost]])

    # metrics --------------------------------------------------------------------------------------------------------
    def metrics(self) -> list[dict[str, Any]]:
        """A row a step. Raises UserError for a line that training did not write."""
        rows = read_jsonl(self.metrics_file)
        for number, row in enumerate(rows, start=1):
            odd = next((name for name, value in row.items() if not _is_figure(name, value)), None)
            if odd or type(row.get(_STEP)) is not int:
                what = f"{odd!r} is no number" if odd else "the step is missing"
                raise UserError(f"line {number} is no row of metrics: {what}", where=str(self.metrics_file), fix=AGAIN)
        return rows

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Add one line and flush it to the disk."""
        with explain_write_errors(self.metrics_file), open(self.metrics_file, "a", opener=no_link) as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def metrics_damage(self, steps: int, *, more: bool = True) -> str:
        """The reason that metrics are not those of steps 1 to `steps`, once each and in order; empty where they are.

        more: lines of later steps may follow."""
        recorded_steps = [row.get(_STEP) for row in self.metrics()]
        if more:
            recorded_steps = [step for step in recorded_steps if not (isinstance(step, int) and step > steps)]
        expected_steps = list(range(1, steps + 1))
        if recorded_steps == expected_steps:
            return ""
        if missing := [step for step in expected_steps if step not in recorded_steps]:
            return f"its metrics hold {steps - len(missing)} of {steps} steps, and lack step {missing[0]}"
        return f"its metrics hold {len(recorded_steps)} lines for {steps} steps, or hold them out of order"

    # checkpoints ----------------------------------------------------------------------------------------------------
    def checkpoint(self, step: int) -> Path:
        return self.opened / "checkpoints" / f"step_{step:06d}"

    def checkpoints(self) -> list[int]:
        """Steps with a complete checkpoint, ascending."""
        return [step for step in self._saved() if not self._damage(step)]

    def newest(self) -> Path | None:
        """The newest complete checkpoint, of a finished run that of its weights; None where there is none at all.
        Raises UserError where all are damaged."""
        saved, complete, kept_step = self._saved(), self.checkpoints(), self.kept_step()
        if saved and not complete:
            message = f"every checkpoint of the run is damaged: {self._damage(saved[-1])}"
            raise UserError(message, where=str(self.checkpoint(saved[-1])), fix=AGAIN)
        return self.checkpoint(kept_step if kept_step in complete else complete[-1]) if complete else None

    def to_resume(self) -> tuple[Path | None, list[str]]:
        """The newest checkpoint from which training goes on bit for bit, None where there is none at all, and what is
        to be said of damaged ones after it and of token dumps. All its files are read.

        Raises UserError where training can go on from none: a run that began anew would drop its metrics."""
        remarks, first = list[str](), None
        for step in reversed(self._saved()):
            folder, unfit = self.checkpoint(step), self._unfit(step, contents=True)
            if unfit is None:
                return folder, remarks + self._lost_tokens(step)
            first = first or unfit
            remarks.append(f"{folder} is passed over: {unfit[0]}")
        if first:
            raise UserError(
                f"training can go on from no checkpoint of the run: {first[0]}", where=str(first[1]), fix=AGAIN
            )
        return None, []

    def _lost_tokens(self, step: int) -> list[str]:
        """A sentence for each token dump that a checkpoint names, and that is gone or another one."""
        sentences = []
        for name, digest in self.progress(step).get("tokens", {}).items():
            path = self.opened / "tokens" / name
            if not path.is_file():
                sentences.append(f"{path} is missing: the token view goes without it")
            elif file_digest(path) != digest:
                sentences.append(f"{path} is not as it was written (SHA-256): {MOVE_AWAY}")
        return sentences

    def progress(self, step: int) -> dict[str, Any]:
        """Content of a checkpoint's `progress.json`: step, prompts drawn, sizes and digests of files."""
        return read_progress(self.checkpoint(step))

    def best_up_to(self, step: int) -> Best | None:
        """The best step that a checkpoint names, itself or an earlier one (`train.keep_best`)."""
        return read_best(self.progress(step).get("best"))

    def _saved(self) -> list[int]:
        """Steps with a checkpoint, whole or not, ascending."""
        names = [re.fullmatch(r"step_(\d+)", path.name) for path in (self.opened / "checkpoints").glob("step_*")]
        return sorted(int(name.group(1)) for name in names if name)

    def _damage(self, step: int, *, contents: bool = False) -> str:
        """Describe the damage of a checkpoint; empty where nothing is."""
        if reason := damage(self.checkpoint(step), contents=contents):
            return reason
        recorded_step = self.progress(step).get("step")
        return "" if recorded_step == step else f"progress.json is of step {recorded_step}"

    def _unfit(self, step: int, *, contents: bool) -> tuple[str, Path] | None:
        """The reason that training cannot go on from a checkpoint, and its place."""
        if reason := self._damage(step, contents=contents):
            return reason, self.checkpoint(step)
        if reason := self.metrics_damage(step):
            return reason, self.metrics_file
        best = self.best_up_to(step)
        if best and best.step != step and (reason := self._damage(best.step, contents=contents)):
            return f"of the best weights so far: {reason}", self.checkpoint(best.step)
        return None

    def forget(self, step: int) -> None:
        """Delete the checkpoints, token dumps and metrics of the steps after one, and lines of metrics without such a
        step."""
        for later in (saved for saved in self._saved() if saved > step):
            remove_folder(self.checkpoint(later))
        for dump in (self.opened / "tokens").glob("step_*.json"):
            if dump.name > self.tokens(step).name:
                dump.unlink()
        kept_rows = [row for row in self.metrics() if row.get(_STEP) in range(1, step + 1)]
        if self.metrics_file.exists():
            write_atomic(self.metrics_file, "".join(json.dumps(row) + "\n" for row in kept_rows))

    def scratch(self, step: int) -> Path:
        """The folder in which a checkpoint is written before it appears."""
        return self.checkpoint(step).with_name(f".{self.checkpoint(step).name}")

    def unfinished(self) -> list[Path]:
        """Leftovers of checkpoints that never appeared, or that were being removed."""
        return list((self.opened / "checkpoints").glob(".step_*"))

    def keep_weights(self) -> None:
        """Keep the weights that a finished run ended with, which is never resumed."""
        kept_step = self.kept_step()
        if kept_step is not None and kept_step in self.checkpoints():
            for other in (other for other in self._saved() if other != kept_step):  # also a half of an earlier version
                remove_folder(self.checkpoint(other))
            drop_resumption(self.checkpoint(kept_step))

    def clean_up(self) -> None:
        """Remove what a kill left of a finished run after its end, unless another process is at it or the store cannot
        be written."""
        kept_step = self.kept_step()
        if kept_step is None or kept_step not in self.checkpoints():  # what it ended with is damaged
            return
        leftovers = any(True for pattern in LEFT["train"] for _ in self.opened.glob(pattern))
        if leftovers or len(self._saved()) > 1 or for_resuming(self.checkpoint(kept_step)):
            with contextlib.suppress(UserError), self.lock():
                self.keep_weights()


def _is_figure(name: str, value: Any) -> bool:
    """Tell whether a metric is a number that fits a float, or a list of such, a figure a problem."""
    if isinstance(value, list) and "val-aux/" in name:
        return all(_is_figure("", part) for part in value)
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def ending_of(manifest: dict[str, Any]) -> Ending | None:
    """The early stop in a run's manifest, if it had one. Raises ValueError for an ending that is none."""
    ending = manifest.get("ending")
    return None if ending is None else read_ending(ending)


def outcome_of(manifest: dict[str, Any]) -> str:
    """The status in a manifest, with the ending."""
    status, ending = manifest.get("status", "not started"), ending_of(manifest)
    return status if ending is None else f"{status}: {ending}"


def final_model(path: Path) -> Path:
    """The newest complete checkpoint of a run folder, of a finished run the last, or the folder itself when it is a
    model. Files are looked at by their sizes.

    Raises UserError for a run without one, a damaged one, or a folder that is neither.
    """
    if (path / "config.json").exists() and not (path / "checkpoints").exists() and any(path.glob("*.safetensors")):
        if (path / "progress.json").exists() and (reason := damage(path)):
            fix = "use an earlier step of the run, or train it again"
            raise UserError(f"the checkpoint is damaged: {reason}", where=str(path), fix=fix)
        return path
    run = RunFolder(path)
    newest = run.newest()
    if newest is not None and run.manifest():
        run.check_whole()
    if newest is not None:
        return newest
    fix = "give a folder with config.json and model.safetensors, a run folder, or a hub id; `tepo list` shows the runs"
    raise UserError("no model and no checkpoint there", where=str(path), fix=fix)
