"""Slurm through submitit: one job array for a study, requeued after preemption, each run resuming from its last
checkpoint.

A job runs the same command line as a local slot; its output goes to `<run>/log.txt`, submitit's own files to
`<store>/slurm/`.
"""

import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tepo.errors import UserError
from tepo.studies.dispatch import Failure, State, command, launch, state, why
from tepo.studies.plan import Unit
from tepo.studies.slots import job_environment
from tepo.words import install_line

_LOOK = 15.0  # seconds between looks for held jobs: squeue asks the controller, which all users of a cluster share


@dataclass(frozen=True)
class SlurmOptions:
    """What a job asks for. minutes: time limit; a run that needs longer is requeued and goes on."""

    partition: str | None = None
    gpus: int = 0
    nodes: int = 1
    cpus: int = 1
    minutes: int = 24 * 60
    parallel: int = 64  # jobs of the array at once


class RunCommand:
    """The job: a command line with its log.

    Picklable, and resubmitted as it is when the job is preempted or times out.
    """

    def __call__(self, words: list[str], log: str, environment: dict[str, str]) -> int:
        with Path(log).open("ab") as file:
            code = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, check=False
            ).returncode
        if code:
            raise RuntimeError(f"exit code {code}; see {log}")
        return code

    def checkpoint(self, *arguments: Any) -> Any:
        """Called by submitit before the job is requeued: the run itself resumes from the store."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *arguments)


def run_slurm(
    units: Sequence[Unit],
    options: SlurmOptions,
    store: Path,
    watch: Callable[[dict[str, State]], None] = lambda states: None,
    poll: float = 1.0,
) -> list[Failure]:
    """Submit units as one job array and wait for all; a failing one does not stop the others.

    Raises UserError without Slurm.
    """
    submitit = _submitit()
    executor = submitit.SlurmExecutor(folder=store / "slurm" / "%j")
    wanted: dict[str, Any] = {
        "job_name": "tepo",
        "time": options.minutes,
        "nodes": options.nodes,
        "ntasks_per_node": 1,
        "cpus_per_task": options.cpus,
        "array_parallelism": options.parallel,
    }
    wanted |= {"partition": options.partition} if options.partition else {}
    wanted |= {"gpus_per_node": options.gpus} if options.gpus else {}
    executor.update_parameters(**wanted, use_srun=options.nodes > 1, signal_delay_s=60, stderr_to_stdout=True)
    for unit in units:
        unit.folder.mkdir(parents=True, exist_ok=True)
    words = [_job(unit, options) for unit in units]
    logs = [str(unit.run.log.absolute()) for unit in units]
    try:
        jobs = executor.map_array(RunCommand(), words, logs, [job_environment()] * len(units))
    except submitit.core.utils.FailedJobError as error:
        raise UserError(
            f"Slurm refused the jobs: {str(error).strip().splitlines()[-1]}",
            where="sbatch",
            fix="check --partition, --gpus and --minutes with sinfo",
        ) from None
    pairs, failures = list(zip(units, jobs, strict=True)), []
    looked = time.monotonic()
    while not all(job.done() for _, job in pairs):
        watch({unit.id: state(unit, job.state == "RUNNING") for unit, job in zip(units, jobs, strict=True)})
        time.sleep(poll)
        if time.monotonic() - looked > _LOOK:
            held, looked = _held(), time.monotonic()
            failures += [_give_up(unit, job, held[job.job_id]) for unit, job in pairs if job.job_id in held]
            pairs = [(unit, job) for unit, job in pairs if job.job_id not in held]
    watch({unit.id: state(unit, False) for unit in units})
    return failures + [
        Failure(unit, why(unit, f"job {job.job_id}: {job.state}")) for unit, job in pairs if not unit.done()
    ]


def _held() -> dict[str, str]:
    """Jobs of this user that no node could start, with Slurm's words for it: it holds them for an administrator, so
    they would be waited for in vain."""
    rows = subprocess.run(
        ["squeue", "--noheader", "--array", "--me", "--states=PENDING", "--format=%i|%r"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.splitlines()
    return {job: reason for job, _, reason in (row.partition("|") for row in rows) if "launch failed" in reason}


def _give_up(unit: Unit, job: Any, reason: str) -> Failure:
    """Cancel a held job, so that the same command later is enough."""
    job.cancel()
    return Failure(
        unit, f"job {job.job_id} cancelled, its node could not start it ({reason}): the node's slurmd log says why"
    )


def _job(unit: Unit, options: SlurmOptions) -> list[str]:
    """The command of a job; on several nodes each starts torchrun, which meets the others on the first node."""
    if options.nodes == 1:
        return launch(unit, options.gpus)
    python, *rest = command(unit)
    torchrun = [
        python,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(options.gpus),
        "--nnodes",
        str(options.nodes),
        "--rdzv-backend",
        "c10d",
    ]
    first_node = '"$(scontrol show hostnames $SLURM_JOB_NODELIST | head -1):29500"'
    return ["bash", "-c", f"{shlex.join(torchrun)} --rdzv-endpoint {first_node} {shlex.join(rest)}"]


def _submitit() -> Any:
    if shutil.which("sbatch") is None:
        raise UserError(
            "no Slurm on this machine: sbatch is missing",
            where="--launcher slurm",
            fix="run on a login node of the cluster, or use --launcher local",
        )
    try:
        import submitit
    except ImportError:
        raise UserError("submitit is not installed", where="--launcher slurm", fix=install_line("slurm")) from None
    return submitit
