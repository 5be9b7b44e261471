"""A real one-node Slurm cluster for the tests:
munged, slurmctld and slurmd of Debian's packages, in a folder of their own."""

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

# cred_expire: a requeued job waits so many seconds before it starts again, 120 unless told.
CONFIG = """\
ClusterName=tepo
SlurmctldHost={host}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=10
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
PreemptType=preempt/none
KillWait=5
SlurmctldPort={port}
SlurmdPort={next_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
NodeName={host} CPUs={cpus} RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def cluster(*, starts_jobs: bool = True) -> Iterator[None]:
    """Start the daemons, wait until the node is idle, and stop them at the end;
    without `starts_jobs`, the node fails to start any. Needs root."""
    if os.geteuid() != 0:
        pytest.skip("starting a Slurm cluster needs root")
    # Not below pytest's folder: slurmd's sockets (spool folder, host and job) fail beyond 108 characters.
    with (
        tempfile.TemporaryDirectory(prefix="slurm", ignore_cleanup_errors=True) as folder,
        _daemons(Path(folder) / ("" if starts_jobs else "x" * 100)),
    ):
        yield


@contextmanager
def _daemons(folder: Path) -> Iterator[None]:
    host = socket.gethostname()
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    _start_munge()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = folder / "slurm.conf"
    path.write_text(
        CONFIG.format(host=host, folder=folder, cpus=len(os.sched_getaffinity(0)), port=port, next_port=port + 1)
    )
    os.environ["SLURM_CONF"] = str(path)
    try:
        for daemon in ("slurmctld", "slurmd"):
            subprocess.run([daemon], check=True)
        _wait_for_node(folder)
        yield
    finally:
        subprocess.run(["scancel", "--user=root"], check=False, capture_output=True)
        for daemon in ("slurmd", "slurmctld"):
            pid = folder / f"{daemon}.pid"
            if pid.exists():
                os.kill(int(pid.read_text()), signal.SIGTERM)
        del os.environ["SLURM_CONF"]


def _start_munge() -> None:
    if subprocess.run(["munge", "-n"], capture_output=True).returncode == 0:
        return
    subprocess.run(
        "mkdir -p /run/munge && chown munge:munge /run/munge && runuser -u munge -- munged", shell=True, check=True
    )
    time.sleep(0.5)


def _wait_for_node(folder: Path) -> None:
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        found = subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True)
        if found.stdout.strip() == "idle":
            return
        time.sleep(0.5)
    pytest.fail(
        f"the Slurm node never came up: {found.stdout} {found.stderr}\n{(folder / 'slurmctld.log').read_text()[-2000:]}"
    )
