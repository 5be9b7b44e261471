"""Places beside a run's folder that show its metrics: wandb, TensorBoard, trackio. `metrics.jsonl` stays the truth."""

import contextlib
import importlib.util
import io
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from tepo.common.errors import UserError
from tepo.common.files import remove_leftovers
from tepo.common.text import install_line, spelt
from tepo.config.compose import to_dict
from tepo.config.run_config import RunConfig
from tepo.policy.model.model_location import offline
from tepo.store.evaluation_result import Result
from tepo.store.run_folder import RunFolder

STEP = "training/global_step"
_SENDING = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")


class Tracker(Protocol):
    """One place. last: the last step that it already has, of an earlier process."""

    last: int

    def log(self, step: int, figures: Mapping[str, float]) -> None: ...

    def scores(self, step: int, figures: Mapping[str, float]) -> None:
        """Scores of the weights after a step."""
        self.log(step, figures)

    def close(self, *, failed: bool) -> None: ...


def check_trackers(config: RunConfig) -> None:
    """Raise UserError for a tracker that is not installed, and where a file of the current folder says where wandb
    sends to."""
    for name in config.tracking.to:
        if importlib.util.find_spec(name) is None:
            where = f"tracking.to=[{','.join(config.tracking.to)}]"
            raise UserError(f"{name} is not installed", where=where, fix=f"{install_line(name)}, or leave it out")
    for file in (Path(".wandb", "settings"), Path("wandb", "settings")):
        if "wandb" in config.tracking.to and not config.tracking.offline and file.is_file():
            what = "wandb obeys this file of the current folder, which says where metrics and your key are sent"
            fix = "what is yours in it belongs into ~/.config/wandb/settings; move it away, or start in another folder"
            raise UserError(what, where=str(file.absolute()), fix=fix)


class Trackers:
    """The trackers of a run, told of each step once. None of them can stop the run or change it: one that fails is left
    with a warning."""

    def __init__(self, config: RunConfig, folder: RunFolder, kept: Iterable[Mapping[str, Any]], written: int):
        """kept: rows of the steps that the run goes on from, of which each tracker gets those that it lacks. written:
        the last step that an earlier process wrote, which may be a later one."""
        rows = list(kept)
        step = rows[-1][STEP] if rows else 0
        self._open: dict[str, Tracker] = {}
        for name in config.tracking.to:
            with self._left_on_failure(name):
                self._open[name] = _KINDS[name](config, folder, step, written)
        for row in rows:
            self.log(row)

    def log(self, row: Mapping[str, Any]) -> None:
        """One step, but for lists, which hold a figure a problem."""
        figures = {name: value for name, value in row.items() if not isinstance(value, list)}
        for name, tracker in list(self._open.items()):
            if row[STEP] > tracker.last:
                with self._left_on_failure(name):
                    tracker.log(row[STEP], figures)

    def scores(self, step: int, figures: Mapping[str, float]) -> None:
        """Scores of the weights after a step."""
        for name, tracker in list(self._open.items()):
            with self._left_on_failure(name):
                tracker.scores(step, figures)

    def close(self, *, failed: bool = False) -> None:
        while self._open:
            name, tracker = self._open.popitem()
            with self._left_on_failure(name):
                tracker.close(failed=failed)

    @contextlib.contextmanager
    def _left_on_failure(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever a network, a disk or a library may raise
            self._open.pop(name, None)
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            logging.getLogger(__name__).warning("%s", spelt(f"{name} fails and gets no more of this run: {reason}"))


def track_scores(config: RunConfig, run: RunFolder, results: Iterable[Result]) -> None:
    """Give the scores of a finished run to its trackers."""
    figures = {f"eval/{result.benchmark}/{name}": score for result in results for name, score in result.scores.items()}
    rows = run.metrics()
    if figures and rows and config.tracking.to:
        trackers = Trackers(config, run, rows, rows[-1][STEP])
        trackers.scores(rows[-1][STEP], figures)
        trackers.close()


def _name(config: RunConfig, folder: RunFolder) -> str:
    """The name that people read there; the id keeps it apart from every other run's."""
    first = config.tracking.name or f"{config.objective['name']}-{config.seed}"
    return f"{first}-{folder.path.name}"


class _Wandb(Tracker):
    """Offline, where wandb loses what it has not written when its process is killed, each process writes the whole run
    anew: there is one folder for `wandb sync`."""

    def __init__(self, config: RunConfig, folder: RunFolder, step: int, written: int):
        import wandb

        tracking = config.tracking
        before = [path.name for path in (folder.opened / "wandb").glob("offline-run-*")]
        token = os.environ.pop("SLURM_JWT", None)  # wandb's service writes every SLURM_ variable to its log
        try:
            self._run = wandb.init(
                project=tracking.project,
                group=tracking.group,
                id=folder.path.name,
                name=_name(config, folder),
                resume="allow",
                mode="offline" if tracking.offline else "online",
                dir=str(folder.opened),
                config=to_dict(config),
                settings=wandb.Settings(silent=True),
            )
        finally:
            if token is not None:
                os.environ["SLURM_JWT"] = token
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)
        if tracking.offline and before:
            remove_leftovers(folder.path, *(f"wandb/{name}" for name in before))
        self.last = self._run.step - 1 if self._run.resumed else 0

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=step)

    def scores(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.summary.update(dict(figures))

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class _TensorBoard(Tracker):
    """Event files in the run's folder. After a kill the steps that are trained again take the place of the old ones."""

    def __init__(self, config: RunConfig, folder: RunFolder, step: int, written: int):
        from torch.utils.tensorboard import SummaryWriter

        place = folder.opened / "tensorboard"
        again = any(place.glob("events.*"))
        self.last = step if again else 0
        self._writer = SummaryWriter(str(place), purge_step=step + 1 if again else None)
        if not again:
            import yaml

            self._writer.add_text("config", f"```yaml\n{yaml.safe_dump(_settings(config), sort_keys=False)}```")

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, *, failed: bool) -> None:
        self._writer.close()


class _Trackio(Tracker):
    """A database in TRACKIO_DIR (trackio's own default without it), which `trackio show` opens."""

    def __init__(self, config: RunConfig, folder: RunFolder, step: int, written: int):
        tracking, here = config.tracking, contextlib.ExitStack()
        with here:
            here.enter_context(contextlib.redirect_stdout(io.StringIO()))  # a dozen lines
            if tracking.offline:
                here.enter_context(offline())
                here.callback(os.environ.update, {key: os.environ.pop(key) for key in _SENDING if key in os.environ})
            import trackio

            trackio.utils.TRACKIO_DIR.mkdir(parents=True, exist_ok=True)  # where it cannot, its threads would warn
            self._run = trackio.init(
                project=tracking.project,
                name=_name(config, folder),
                group=tracking.group,
                config=_settings(config),
                resume="allow",
                embed=False,
            )
            behind = trackio.utils.get_storage_mode() == "jsonl"  # its database is filled when somebody looks
        self._close = trackio.finish
        self.last = written if behind else self._run._next_step - 1

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=step)

    def close(self, *, failed: bool) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._close()


def _settings(config: RunConfig) -> dict[str, Any]:
    """Lists for tuples, for YAML and JSON."""
    return json.loads(json.dumps(to_dict(config)))


_KINDS: dict[str, Callable[[RunConfig, RunFolder, int, int], Tracker]] = {
    "wandb": _Wandb,
    "tensorboard": _TensorBoard,
    "trackio": _Trackio,
}
