"""Checkpoints, written by all ranks beside the training that goes on.

A rank copies what it has to write into main memory and goes on; a thread writes the files, then a note of their sizes
and digests, which it computes too.
The first rank's thread waits for all notes and commits the folder by rename. No thread takes part in a collective. What
was cut off in the middle is a hidden folder, which nobody takes for a checkpoint.
"""

import contextlib
import json
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from tepo.common.errors import UserError
from tepo.common.files import explain_write_errors, file_digest, remove_folder, replace_folder, write_json
from tepo.policy.model.allocator import free_bytes
from tepo.store.checkpoint_files import TensorFile, write_progress
from tepo.store.run_folder import RunFolder
from tepo.training.distributed.comm import Comm
from tepo.training.distributed.liveness import ACTIVITY
from tepo.training.resources.disk import ROOM, interval

Files = Callable[[Path], Iterable[TensorFile]]
_GRACE = 10.0  # seconds in which other ranks must have written something when the run ends by an error
_LOOK = 0.05  # seconds between two looks for them
_NOTE = ".rank_{:05d}.json"
_SMALL = 2**28  # bytes of a checkpoint that are copied even where training runs on the CPU
_KEPT = 2  # checkpoints of a run that is not finished, beside the best ones that they name


class Saver:
    """Writes the checkpoints of a run, one at a time. All ranks make one and call its methods in the same order.

    step: of the newest checkpoint, written or under way; None before the first.
    """

    def __init__(self, run: RunFolder, comm: Comm | None = None, step: int | None = None, *, on_cpu: bool = False):
        """on_cpu: training computes where the files are written, so it waits for a large file rather than make a copy
        of it: it would gain nothing, and a model of 135M parameters would take 2 GB more."""
        self.run, self.comm, self.step, self.on_cpu = run, comm, step, on_cpu
        self._written_at = time.monotonic()  # infinite while one is being written
        self._begun_at, self._write_s = 0.0, 0.0  # of the newest; of the last that is there
        self.rank, self.ranks = (0, 1) if comm is None else (comm.rank, comm.world_size)
        self._thread = ThreadPoolExecutor(1)
        self._tasks: list[Future[None]] = []  # of the checkpoint that is being written: its files; on rank 0 the commit
        self._given_up = threading.Event()

    def is_due(self, step: int, every: int | None) -> bool:
        """Tell whether to save after a step: every so many, or (None) ten minutes after the last checkpoint was there,
        and ten times as long as it took to write, by the clock of the first rank."""
        if every is not None:
            return step % every == 0
        due = time.monotonic() - self._written_at >= interval(self._write_s)
        return due if self.comm is None else self.comm.all_gather_object(due)[0]

    def save(self, step: int, progress: dict[str, Any], files: Files, *, over: bool = False) -> None:
        """Begin a checkpoint. progress: what is kept beside the weights. files: those of this rank, for a folder into
        which it may write small ones itself. over: nothing is trained any more, and what lies in main memory is not
        copied. Raises UserError where this checkpoint or the one before cannot be written."""
        self.finish()
        self.step, self._written_at, self._begun_at = step, math.inf, time.monotonic()
        scratch = self.run.scratch(step)
        pending_files: list[TensorFile] = []
        sizes, room = {}, _room(self.ranks, self.on_cpu)
        with ACTIVITY.inside("save_checkpoint"), explain_write_errors(self.run.checkpoint(step)):
            if self.rank == 0:
                shutil.rmtree(scratch, ignore_errors=True)
                scratch.mkdir(parents=True)
            if self.comm is not None:
                self.comm.barrier()
            for file in files(scratch):
                room -= file.bytes
                if room >= 0:
                    pending_files.append(file.waited_for() if over else file.copy())
                else:  # no memory for a copy: the training waits
                    sizes[file.name] = file.waited_for().write(scratch)
        self._tasks = [self._thread.submit(self._write, step, pending_files, sizes)]
        if self.rank == 0:
            self._tasks.append(self._thread.submit(self._commit, step, progress))

    def check(self) -> None:
        """Raises UserError on all ranks when a checkpoint that is being written has failed on one of them."""
        if not self._tasks:
            return
        failed = next((error for task in self._tasks if task.done() and (error := task.exception())), None)
        reasons: list[Any] = [None]  # what, where and fix, for the other ranks
        if isinstance(failed, UserError):
            reasons = [(failed.what, failed.where, failed.fix)]
        elif failed is not None:
            reasons = [(str(failed) or type(failed).__name__, "", "")]
        if self.comm is not None:
            reasons = self.comm.all_gather_object(reasons[0])
        if not any(reasons):
            return
        self._end()
        if failed is not None:
            raise failed
        rank, (what, where, fix) = next((rank, reason) for rank, reason in enumerate(reasons) if reason)
        raise UserError(f"rank {rank}: {what}", where=where, fix=fix, exit_code=1)

    def finish(self) -> None:
        """Wait until the checkpoint that is being written can be resumed from. Raises as `check` does."""
        for phase in range(2):  # the files of all ranks, then the commit
            with ACTIVITY.inside("save_checkpoint"):
                for task in self._tasks[phase : phase + 1]:
                    task.exception()  # waits
            self.check()
        self._tasks = []

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Finish; after an error without collectives, as other ranks may be gone."""
        try:
            if kind is None:
                self.finish()
            for task in self._tasks[:1]:
                task.exception()
            for task in self._tasks[1:]:
                self._as_long_as_it_grows(task)
        finally:
            self._end()

    def _as_long_as_it_grows(self, commit: "Future[None]") -> None:
        """Wait for the files of other ranks while there are more of them every now and then."""
        before = -1
        while not commit.done():
            with contextlib.suppress(FileNotFoundError):  # it is being renamed
                now = sum(path.stat().st_size for folder in self.run.unfinished() for path in folder.rglob("*"))
                if now == before:
                    return
                before = now
            with contextlib.suppress(TimeoutError):
                commit.exception(_GRACE)

    def _end(self) -> None:
        """Commit nothing any more, and leave nothing half."""
        self._given_up.set()
        self._thread.shutdown()
        if self.rank == 0:
            for folder in self.run.unfinished():
                shutil.rmtree(folder, ignore_errors=True)

    # in the thread --------------------------------------------------------------------------------------------------
    def _write(self, step: int, pending_files: list[TensorFile], sizes: dict[str, int]) -> None:
        scratch = self.run.scratch(step)
        with explain_write_errors(self.run.checkpoint(step)):
            digests = {name: file_digest(scratch / name) for name in sizes}
            while pending_files:  # each is freed when it is written
                file = pending_files.pop(0)
                sizes[file.name], digests[file.name] = file.write(scratch), file.digest(scratch)
            write_json(scratch / _NOTE.format(self.rank), {"files": sizes, "sha256": digests})

    def _commit(self, step: int, progress: dict[str, Any]) -> None:
        scratch, target = self.run.scratch(step), self.run.checkpoint(step)
        notes = [scratch / _NOTE.format(rank) for rank in range(self.ranks)]
        while not all(note.is_file() for note in notes):
            if self._given_up.wait(_LOOK):
                return
        with explain_write_errors(target):
            files: dict[str, int] = {}
            digests: dict[str, str] = {}
            for note in notes:
                written = json.loads(note.read_text(encoding="utf-8"))
                files |= written["files"]
                digests |= written["sha256"]
                note.unlink()
            small = {str(path.relative_to(scratch)): path for path in scratch.rglob("*") if path.is_file()}
            for name in small.keys() - files.keys():
                files[name], digests[name] = small[name].stat().st_size, file_digest(small[name])
            listed = {"files": dict(sorted(files.items())), "sha256": dict(sorted(digests.items()))}
            write_progress(scratch, {"step": step, **progress, **listed})
            replace_folder(scratch, target)
            now = time.monotonic()
            self._written_at, self._write_s = now, now - self._begun_at
            saved = self.run.checkpoints()
            newest = saved[-_KEPT:]
            best = {best_step.step for step in newest if (best_step := self.run.best_up_to(step))}
            for old in (step for step in saved if step not in {*newest, *best}):
                remove_folder(self.run.checkpoint(old))


def _room(ranks: int, on_cpu: bool) -> float:
    """Bytes of main memory for the copies of this rank."""
    # unknown: the training waits
    share = ROOM * (free_bytes(torch.device("cpu")) or 0.0) / int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    return min(share, _SMALL) if on_cpu else share
