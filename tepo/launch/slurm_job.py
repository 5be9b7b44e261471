"""Program inside a Slurm job: on its first node `lead`, which starts one `node` on each by srun and in the end requeues
the job or says how it ended; each `node` starts the run or its ranks and passes a request to stop on to them. A run
over several nodes is measured by a second srun, on the first node alone: nodes that have trained would wait for it for
minutes, and Slurm ends a step some time after its first node has ended.

    python -m tepo.launch.slurm_job lead FOLDER
    python -m tepo.launch.slurm_job node FOLDER INDEX ADDRESS:PORT
    python -m tepo.launch.slurm_job node FOLDER INDEX alone

FOLDER: what `tepo.launch.slurm` wrote. No more than the standard library is needed until the run starts.
"""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from tepo.common import interpreter, signals
from tepo.common.files import no_link, write_atomic, write_json
from tepo.launch.forkserver import on_gpus, under_torchrun

NO_STORE = 74  # exit code: a node does not see the folder; EX_IOERR of sysexits.h
_NOTHING_STARTED = (NO_STORE, 126, 127)  # 126, 127: the shell has no such program
_SIGNAL = 128  # exit codes from here: killed by a signal
_PORT_TAKEN = 98  # exit code of a node: another program has the port at which the ranks were to meet; EADDRINUSE
_PORTS = 3  # that are tried
_VAIN = 3  # requeues one after the other without a finished step or benchmark
_WAIT = 40  # seconds that the other nodes have to end when one has: torchrun gives its ranks 30
_ALONE = "alone"  # in place of an address: on the first node, after the others


@dataclass(frozen=True)
class SlurmJob:
    """One run: its command line (empty: none) and folder, and what each node of it gets. alone: the command line of
    one process that follows, on the first node."""

    words: list[str]
    run: str
    log: str
    nodes: int
    gpus: int
    cpus: int
    alone: list[str] = field(default_factory=list)


def read_job(folder: Path, index: int) -> SlurmJob:
    """One job of the array."""
    return SlurmJob(**json.loads((folder / "jobs.json").read_text(encoding="utf-8"))[index])


def in_shell(folder: Path, *words: str) -> str:
    """A line of shell that runs a part of this module where the node sees the folder."""
    command = interpreter.command("-m", "tepo.launch.slurm_job", words[0], str(folder), *words[1:])
    return f"[ -r {shlex.quote(str(folder / 'jobs.json'))} ] || exit {NO_STORE}; exec {shlex.join(command)}"


def outcome_file(folder: Path, index: int) -> Path:
    """`{"code": …}` of a job that has ended for good."""
    return folder / f"{index}.json"


# on the first node ----------------------------------------------------------------------------------------------------
def lead(folder: Path) -> int:
    """Run one job of the array. Slurm asks the nodes itself to stop, not what runs here."""
    for number in signals.SIGNALS:
        signal.signal(number, lambda number, frame: None)  # not ignored: srun would inherit that
    index = int(os.environ["SLURM_ARRAY_TASK_ID"])
    job = read_job(folder, index)
    Path(job.run).mkdir(parents=True, exist_ok=True)
    code, codes = 0, list[int | None]()
    if job.words:
        name = os.environ["SLURMD_NODENAME"]  # by whose address the other nodes reach this one, the first of the job
        reply = subprocess.run(["scontrol", "show", "node", name, "--oneliner"], capture_output=True, text=True)
        match = re.search(r"NodeAddr=(\S+)", reply.stdout)
        for _ in range(_PORTS):  # one that is free now may be taken before the ranks meet
            address = f"{match[1] if match else name}:{_free_port(int(os.environ['SLURM_JOB_ID']))}"
            code, codes = _on_nodes(folder, index, job, job.nodes, address)
            if codes[0] != _PORT_TAKEN:
                break
    if job.alone and not code:
        code, codes = _on_nodes(folder, index, job, 1, _ALONE)
    if not (_for_now(code, codes) and not _in_vain(folder, index, Path(job.run)) and _requeued()):
        write_json(outcome_file(folder, index), {"code": code})
    return code


def _on_nodes(folder: Path, index: int, job: SlurmJob, nodes: int, address: str) -> tuple[int, list[int | None]]:
    """Run `node` on so many nodes, this one the first. Returns the exit code of all, and what each reports."""
    srun = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", f"--cpus-per-task={job.cpus}"]
    srun += ["--relative=0", f"--wait={_WAIT}", "--kill-on-bad-exit=0"]
    srun += ["sh", "-c", in_shell(folder, "node", str(index), address)]
    reports = [folder / f"{index}.node{number}" for number in range(nodes)]  # how the part of each has ended
    for report in reports:
        report.unlink(missing_ok=True)
    with open(job.log, "ab", opener=no_link) as log:
        process = subprocess.run(srun, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    codes = [int(report.read_text()) if report.exists() else None for report in reports]
    return process.returncode or max(code or 0 for code in codes), codes


def _for_now(code: int, codes: list[int | None]) -> bool:
    """Tell whether the run should go on later: it was asked to stop, or killed, or a node was lost, of which srun's own
    code says nothing. codes: what each node reports of its end."""
    if code in _NOTHING_STARTED:
        return False
    return any(report is None or report == signals.EXIT_CODE or report >= _SIGNAL for report in codes)


def _requeued() -> bool:
    """Put the job back into the queue, unless Slurm itself does so or somebody has cancelled it."""
    job = os.environ["SLURM_JOB_ID"]
    reply = subprocess.run(["squeue", "--noheader", f"--job={job}", "--format=%T"], capture_output=True, text=True)
    if reply.stdout.strip() != "RUNNING":
        return True  # and it ends here without a word of ours
    # in a session of its own: Slurm ends what runs here before it answers
    return subprocess.run(["scontrol", "requeue", job], start_new_session=True).returncode == 0


def _in_vain(folder: Path, index: int, run: Path) -> bool:
    """Tell whether the job has been stopped _VAIN times since it last finished a step or a benchmark."""
    path, metrics = folder / f"{index}.progress", run / "metrics.jsonl"
    steps = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
    progress, times = steps + len(list(run.glob("eval/*/result.json"))), 0
    if path.exists():
        before, times = json.loads(path.read_text())
        times = times + 1 if progress <= before else 0
    write_json(path, [progress, times])
    return times >= _VAIN


def _free_port(job: int) -> int:
    """The first free one from where the number of the job points, so that jobs on one node do not meet; below the
    range from which systems give ports to whoever asks for any."""
    for offset in range(1000):
        port = 15000 + (job * 13 + offset) % 15000
        if not _taken(port):
            return port
    raise SystemExit("error: no free port for the ranks to meet at")


def _taken(port: int) -> bool:
    """Tell whether another program has a port; connections that have ended do not count, as for torch's store."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen()
        except OSError:
            return True
    return False


# on every node --------------------------------------------------------------------------------------------------------
def node(folder: Path, index: int, address: str) -> int:
    """Start the run, or this node's ranks of it, and wait; a request to stop goes to them, and its code comes back."""
    job = read_job(folder, index)
    launcher = address != _ALONE and (job.nodes > 1 or job.gpus > 1)
    stop_requests: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if not stop_requests:
            signals.pass_on(child.pid, launcher)
        stop_requests.append(number)

    environment = interpreter.environment() | interpreter.ONE_THREAD
    if address == _ALONE:  # a process that measures takes so many GPUs, as one that has trained as a rank does
        environment["LOCAL_WORLD_SIZE"] = str(max(job.gpus, 1))
    end = partial(signals.end_with, os.getpid(), signal.SIGTERM)  # it must not outlive a node that is killed
    # a session of its own, which Slurm does not signal
    child = subprocess.Popen(node_words(job, address), env=environment, preexec_fn=end, start_new_session=True)
    for number in signals.SIGNALS:
        signal.signal(number, pass_on)
    code = child.wait()
    place = os.environ["SLURM_NODEID"]
    code = signals.EXIT_CODE if stop_requests and code else code if code >= 0 else _SIGNAL - code
    meets = launcher and job.nodes > 1 and place == "0"
    if code == 1 and meets and _taken(int(address.rpartition(":")[2])):
        code = _PORT_TAKEN  # torchrun, which would have had it, has ended
    write_atomic(folder / f"{index}.node{place}", str(code))
    return code


def node_words(job: SlurmJob, address: str) -> list[str]:
    """The run's command, or torchrun with the ranks of this node; a CPU is one rank. Alone, its second command."""
    if address == _ALONE:
        return job.alone
    if job.nodes == 1:
        return on_gpus(job.words, job.gpus)
    host, _, port = address.rpartition(":")
    how = ["--nnodes", str(job.nodes), "--node-rank", os.environ["SLURM_NODEID"]]
    return under_torchrun(job.words, max(job.gpus, 1), *how, "--master-addr", host, "--master-port", port)


def main(words: list[str]) -> Any:
    """See the head of this file."""
    what, folder, *more = words
    return lead(Path(folder)) if what == "lead" else node(Path(folder), int(more[0]), more[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
