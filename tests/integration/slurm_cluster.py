"""A real Slurm cluster of two nodes on this machine for the tests:
munged, slurmctld and two slurmd of Debian's packages, in a folder of their own."""

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NODES = ("n1", "n2")

# cred_expire: a requeued job waits so many seconds before it starts again, 120 unless told; then up to sched_interval.
# The GPU is one in name.
CONFIG = """\
ClusterName=tepo
SlurmctldHost={host}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=6
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdParameters=config_overrides
MpiDefault=none
PreemptType=preempt/none
KillWait=10
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
GresTypes=gpu
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
NodeName=n1 NodeHostname={host} Port={ports[0]} CPUs={cpus} RealMemory=2000 Gres=gpu:1 State=UNKNOWN
NodeName=n2 NodeHostname={host} Port={ports[1]} CPUs={cpus} RealMemory=2000 Gres=gpu:1 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def cluster(*, starts_jobs: bool = True, cpus: int = 1) -> Iterator[Path]:
    """Start the daemons, wait until the nodes are idle, and stop them at the end; without `starts_jobs`, the nodes fail
    to start any. cpus: of each node, in name. Needs root. Returns the folder of configuration, logs and process ids."""
    if os.geteuid() != 0:
        pytest.skip("starting a Slurm cluster needs root")
    # Not below pytest's folder: slurmd's sockets (spool folder, host and job) fail beyond 108 characters.
    with (
        tempfile.TemporaryDirectory(prefix="slurm", ignore_cleanup_errors=True) as folder,
        _daemons(Path(folder) / ("" if starts_jobs else "x" * 100), cpus) as inside,
    ):
        yield inside


@contextmanager
def _daemons(folder: Path, cpus: int) -> Iterator[Path]:
    for name in ("state", *NODES):
        (folder / name).mkdir(parents=True)
    _start_munge()
    with contextlib.ExitStack() as probes:
        port, *ports = (_port(probes) for _ in range(3))
    path = folder / "slurm.conf"
    path.write_text(CONFIG.format(host=socket.gethostname(), folder=folder, port=port, ports=ports, cpus=cpus))
    (folder / "gres.conf").write_text("Name=gpu File=/dev/null\n")
    before = os.environ.get("SLURM_CONF")  # of another cluster
    os.environ["SLURM_CONF"] = str(path)
    try:
        subprocess.run(["slurmctld"], check=True)
        for node in NODES:
            start_node(node)
        until_idle(folder)
        yield folder
    finally:
        subprocess.run(["scancel", "--user=root"], check=False, capture_output=True)
        for daemon in (*NODES, "slurmctld"):
            stop_daemon(folder, daemon, signal.SIGTERM)
        del os.environ["SLURM_CONF"]
        os.environ |= {"SLURM_CONF": before} if before else {}


def start_node(name: str, *before: str) -> None:
    """Start a node's slurmd; before: a command that runs it."""
    subprocess.run([*before, "slurmd", "-N", name], check=True)


def stop_daemon(folder: Path, name: str, number: int) -> None:
    """Signal the slurmd of a node, or slurmctld, and wait for its end."""
    pid = folder / f"{name}.pid"
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        while process := int(pid.read_text()):
            os.kill(process, number)
            time.sleep(0.1)


def _port(probes: contextlib.ExitStack) -> int:
    """A free port, taken until all are known."""
    probe = probes.enter_context(socket.socket())
    probe.bind(("127.0.0.1", 0))
    return probe.getsockname()[1]


def _start_munge() -> None:
    if subprocess.run(["munge", "-n"], capture_output=True).returncode == 0:
        return
    subprocess.run(
        "mkdir -p /run/munge && chown munge:munge /run/munge && runuser -u munge -- munged", shell=True, check=True
    )
    time.sleep(0.5)


def until_idle(folder: Path) -> None:
    """Wait until all nodes are there and have nothing to do."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        found = subprocess.run(["sinfo", "-h", "-N", "-o", "%T"], capture_output=True, text=True)
        if found.stdout.split() == ["idle"] * len(NODES):
            return
        time.sleep(0.2)
    logs = "\n".join((folder / name).read_text()[-2000:] for name in ("slurmctld.log", "n1.log"))
    pytest.fail(f"the Slurm nodes never came up: {found.stdout} {found.stderr}\n{logs}")
