"""Slurm: one job array for a study, requeued after preemption and at its time limit, each run resuming from its last
checkpoint.

A job keeps the environment that Slurm gives it, and runs the same command line as a local slot (`slurm_job`). Its
output goes to `<run>/log.txt`; what Slurm itself prints, and how each job ended, to `<store>/slurm/<time>/`.
"""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from tepo.common import interpreter
from tepo.common.errors import UserError
from tepo.common.files import write_atomic, write_json
from tepo.launch.local import Failure, UnitProgress, command, same_twice, state, why
from tepo.launch.sbatch import SlurmOptions, fitted, gpus, job_script
from tepo.launch.slurm_job import NO_STORE, SlurmJob, outcome_file
from tepo.studies.plan import Unit
from tepo.training.resources.estimate import FACTOR, step_time
from tepo.training.resources.gpu_cards import A100
from tepo.training.resources.layout import fill
from tepo.training.resources.memory import Gpus, memory
from tepo.training.resources.node import node_memory
from tepo.training.run import Run

_LOOK = 10.0  # seconds between questions to the controller, which all users of a cluster share
_COLUMNS = ("JobArrayID", "State", "Reason", "NodeList", "exit_code")
_UNDER_WAY = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "RESIZING", "STAGE_OUT", "SUSPENDED")
_ENDED = {
    "CANCELLED": "cancelled",
    "OUT_OF_MEMORY": "out of memory (ask for more with --slurm mem=…)",
    "TIMEOUT": "ended by the time limit before it could save (give it more with --slurm grace=…)",
}


class _Row(NamedTuple):
    """Status of a job as Slurm reports it."""

    state: str = "unknown to Slurm"
    reason: str = ""
    nodes: str = ""
    code: int = 0

    @property
    def held(self) -> bool:
        """Tell whether it waits for an administrator alone."""
        return "launch failed" in self.reason


def _status(array: str) -> dict[int, _Row]:
    """Status of the jobs of an array, by their index."""
    command = ["squeue", "--noheader", "--array", "--states=all", f"--job={array}"]
    columns = "--Format=" + ",".join(f"{name}:|" for name in _COLUMNS)
    lines = subprocess.run([*command, columns], capture_output=True, text=True, check=False).stdout.splitlines()
    rows = [[value.strip() for value in line.split("|")] for line in lines]
    return {
        int(name.rpartition("_")[2]): _Row(state, reason, nodes, int(code) >> 8)
        for name, state, reason, nodes, code, _ in rows
    }


def _failure(unit: Unit, job: str, row: _Row, output: Path) -> Failure:
    """The reason that a job that has ended, or waits for an administrator alone, is not done. output: what Slurm
    printed."""
    if row.held:  # a second command is enough later
        cancel(job)
        why_not = f"cancelled, its node could not start it ({row.reason}): the node's slurmd log says why"
        return Failure(unit, f"job {job} {why_not}")
    if row.state in _ENDED:
        return Failure(unit, f"job {job}: {_ENDED[row.state]}")
    return Failure(unit, why(unit, f"job {job}: {row.state}; see {output}"))


def requests(units: Sequence[Unit], options: SlurmOptions, kinds: Sequence[str]) -> SlurmOptions:
    """The options of a study's jobs, shown or submitted: with the CPUs, the memory and the grace that they leave open,
    on a cluster of these kinds of nodes (`nodes_here`). Raises UserError where the runs need GPUs and none are asked
    for, and for nodes that are not there."""
    needing = [unit.label for unit in units if unit.needs_gpu]
    if needing and not options.gpus and not gpus(str(options.sbatch.get("gres", ""))):
        fix = "--gpus N (slurm.yaml: gpus), or --set engine.device=cpu"
        raise UserError("the runs need a GPU, and the jobs ask for none", where=f"row {needing[0]!r}", fix=fix)
    if options.grace is None:
        options = replace(options, grace=options.usual_grace(planned_grace(units, options)))
    return fitted(options, kinds, planned_memory(units, options))


def planned_memory(units: Sequence[Unit], options: SlurmOptions) -> float:
    """Bytes of main memory that the largest run takes of each node by the plan: 0 without GPUs, and where no model's
    shape is known here."""
    most, here = 0.0, Gpus(options.nodes * options.gpus, options.gpus)
    for unit in units if options.gpus else ():
        with contextlib.suppress(UserError):
            most = max(most, node_memory(Run(unit.config), here))
    return most


def planned_grace(units: Sequence[Unit], options: SlurmOptions) -> float:
    """Seconds that the slowest run takes by the plan from a request to stop to its last checkpoint, with what plans are
    wrong by: 0 without GPUs, and where no model's shape is known here. Slurm does not say which GPUs a job will have:
    those of a node are taken for 80 GB cards of the slowest kind."""
    most, here = 0.0, Gpus(options.nodes * options.gpus, options.gpus, A100.bytes, card=A100)
    configs = (unit.config for unit in units if options.gpus and unit.trains)
    alike = {str((config.model, config.sampler, config.engine, config.train)): Run(config) for config in configs}
    for run in alike.values():
        with contextlib.suppress(UserError):
            filled, _ = fill(run, here)
            most = max(most, step_time(filled, here, memory(filled, here)).until_saved)
    return FACTOR * most


def run_slurm(
    units: Sequence[Unit], options: SlurmOptions, store: Path, watch: Callable[[dict[str, UnitProgress]], None]
) -> list[Failure]:
    """Submit units as one job array and wait for all; after two identical failures those that wait are cancelled.
    options: as `requests` gives them. Raises UserError when Slurm refuses the jobs or a node does not see the
    store."""
    folder = store.absolute() / "slurm" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    jobs = []
    for unit in units:
        log, run = str(unit.folder.log.absolute()), str(unit.folder.path.absolute())
        words, alone = command(unit), list[str]()
        if options.nodes > 1:  # measured on the first node alone
            words, alone = [] if unit.trained() else command(unit, measure=False), words
        jobs.append(asdict(SlurmJob(words, run, log, options.nodes, options.gpus, options.cpus or 1, alone)))
    write_json(folder / "jobs.json", jobs)
    script = folder / "job.sh"
    write_atomic(script, job_script(options, len(units), folder))
    # Slurm hands on what is exported here: a job must see its own allocation, not the one from which it is submitted.
    ours = interpreter.environment(interpreter.without_launcher())
    clean = {name: ours[name] for name in ours if not name.startswith(("SLURM_", "CUDA_VISIBLE_DEVICES"))}
    clean |= {name: ours[name] for name in ours if name == "SLURM_CONF"}
    # once more on the command line, where they outdo variables such as SBATCH_TIMELIMIT
    words = ["sbatch", "--parsable", *options.words(len(units)), str(script)]
    submission = subprocess.run(words, env=clean, capture_output=True, text=True, check=False)
    if submission.returncode:
        shutil.rmtree(folder)
        reason = (submission.stderr.strip().splitlines() or ["no reason given"])[-1].removeprefix("sbatch: error: ")
        fix = "check --gpus and --slurm with sinfo, and slurm.yaml"
        raise UserError(f"Slurm refused the jobs: {reason}", where="sbatch", fix=fix)
    array, failures, waiting = submission.stdout.strip().partition(";")[0], list[Failure](), dict(enumerate(units))
    rows, looked, given_up = dict[int, _Row](), -_LOOK, False
    while waiting:
        if time.monotonic() - looked > _LOOK:
            rows, looked = _status(array), time.monotonic()
        for index, unit in list(waiting.items()):
            row, over = rows.get(index, _Row()), outcome_file(folder, index).exists()
            if not over and not row.held and row.state in _UNDER_WAY:
                continue
            del waiting[index]
            if unit.done() or (given_up and not over):  # the second: it was cancelled before it started
                continue
            if row.code == NO_STORE:
                cancel(array)  # the others will not fare better
                fix = "--store DIR on a file system that all nodes share, or --slurm nodelist=… with nodes that see it"
                raise UserError(f"{row.nodes} does not see the store", where=str(folder), fix=fix)
            failures.append(_failure(unit, f"{array}_{index}", row, folder / f"{index}.txt"))
        if not given_up and same_twice(failures):
            given_up = True
            cancel(array, "--state=PENDING")
        running = {index for index, row in rows.items() if row.state == "RUNNING"}
        watch({unit.id: state(unit, index in running) for index, unit in enumerate(units)})
        if waiting:
            time.sleep(1.0)
    return failures


def cancel(job: str, *which: str) -> None:
    """End a job or an array. which: options of scancel that choose among its jobs."""
    subprocess.run(["scancel", *which, job], capture_output=True, check=False)
