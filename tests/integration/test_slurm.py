import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tepo.store.run_folder import RunFolder
from tepo.training.loop import train
from tepo.training.run import Run
from tests.support.commands import free_port, ranks, started, tepo, until
from tests.support.runs import SMALL, assert_same_run, few_problems, lasting, small, write, write_study
from tests.unit.objectives.own_examples import follow

# a cluster of two nodes on this machine: munged, slurmctld and two slurmd of Debian's packages -----------------------
NODES = ("n1", "n2")
pytestmark = pytest.mark.slurm

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
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
NodeName=n1 NodeHostname={host} Port={ports[1]} CPUs=1 RealMemory=2000 Gres=gpu:1 State=UNKNOWN
NodeName=n2 NodeHostname={host} Port={ports[2]} CPUs=1 RealMemory=2000 Gres=gpu:1 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Path]:
    """The folder of configuration, logs and process ids of a cluster whose nodes are idle. It is not below pytest's:
    slurmd's sockets (spool folder, host and job) fail beyond 108 characters."""
    if os.geteuid() != 0:
        pytest.skip("starting a Slurm cluster needs root")
    if subprocess.run(["munge", "-n"], capture_output=True).returncode:
        start = "mkdir -p /run/munge && chown munge:munge /run/munge && runuser -u munge -- munged"
        subprocess.run(start, shell=True, check=True)
        time.sleep(0.5)
    with (
        tempfile.TemporaryDirectory(prefix="slurm", ignore_cleanup_errors=True) as place,
        pytest.MonkeyPatch.context() as patch,
    ):
        folder = Path(place)
        for name in ("state", *NODES):
            (folder / name).mkdir()
        ports = list({free_port() for _ in range(9)})[:3]  # none twice
        write(folder / "slurm.conf", CONFIG.format(host=socket.gethostname(), folder=folder, ports=ports))
        write(folder / "gres.conf", "Name=gpu File=/dev/null\n")
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        try:
            subprocess.run(["slurmctld"], check=True)
            for node in NODES:
                subprocess.run(["slurmd", "-N", node], check=True)
            until_idle(folder)
            yield folder
        finally:
            subprocess.run(["scancel", "--user=root"], check=False, capture_output=True)
            for daemon in (*NODES, "slurmctld"):
                stop_daemon(folder, daemon, signal.SIGTERM)


def stop_daemon(folder: Path, name: str, number: int) -> None:
    """Signal the slurmd of a node, or slurmctld, and wait for its end."""
    pid = folder / f"{name}.pid"
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        while process := int(pid.read_text()):
            os.kill(process, number)
            time.sleep(0.1)


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


# the commands --------------------------------------------------------------------------------------------------------
ROWS = {"good": "grpo_dapo", "bad": {"objective": "grpo_dapo", "overrides": ["sampler.gap_bound=1e-12"]}}
ROWS["also good"] = "erf"


def study(folder: Path, *overrides: str, rows: Sequence[str] = ("good",)) -> dict[str, str]:
    follow("erf", folder)
    write_study(folder, "mixed", {row: ROWS[row] for row in rows}, *SMALL, "data.benchmarks=[max4]", *overrides)
    few_problems(folder)
    return {"TEPO_PATH": "."}  # of the folder in which the command is given


ABLATE = ("ablate", "mixed", "--store", "runs", "--launcher", "slurm", "--slurm")


def squeue(*words: str) -> str:
    return subprocess.run(["squeue", "-h", *words], capture_output=True, text=True, check=True).stdout


@pytest.mark.disaster
@pytest.mark.usefixtures("slurm")
def test_an_array_with_a_failing_run_and_a_preempted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = study(tmp_path, "train.steps=10", rows=[*ROWS])
    process = started(*ABLATE, "partition=main", cwd=tmp_path, **env)
    words = ("scale=laptop", "model=laptop", "train.steps=10", "data.benchmarks=[max4]")
    good = RunFolder.of(small(tmp_path / "runs", *words, "objective=grpo_dapo"))
    until(lambda: len(good.metrics()) >= 2, process, 180)
    assert process.poll() is None, process.end()
    for job in squeue("-t", "R", "-o", "%i").split():  # what Slurm does on preemption
        subprocess.run(["scontrol", "requeue", job], check=True)
    done = process.end(code=1)
    assert "1 of the runs failed" in done.stderr
    assert "bad seed 0" in done.stderr
    assert "sampler and trainer disagree" in done.stderr
    finished = [path.parents[2].name for path in (tmp_path / "runs").glob("*/eval/max4/result.json")]
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    own = RunFolder.of(small(tmp_path / "runs", *words, "objective=erf"))
    assert set(finished) == {good.path.name, own.path.name}
    (kept,) = own.config()["full"]["objective"]["functions"].values()
    assert kept == (tmp_path / "functions" / "erf.py").read_text()
    assert len(own.metrics()) == 10
    assert (good.path / "log.txt").exists()
    whole = train(Run(small(tmp_path / "whole", *words, "objective=grpo_dapo")))
    assert lasting(good.path) == lasting(whole)


RANKS = ("engine=deepspeed", "train.steps=9", "train.checkpoint_every=20", "train.max_rounds=4")


def in_job(variable: str) -> dict[int, str]:
    """Process -> the value of a variable, of the processes of this cluster that have it."""
    there = {}
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            pairs = dict(pair.partition("=")[::2] for pair in path.read_text().split("\0"))
            if variable in pairs and pairs.get("SLURM_CONF") == os.environ["SLURM_CONF"]:  # not of a neighbour's test
                there[int(path.parent.name)] = pairs[variable]
    return there


@pytest.mark.disaster
@pytest.mark.deepspeed
def test_a_run_over_two_nodes_that_is_stopped_and_loses_a_node(tmp_path: Path, slurm: Path) -> None:
    """Ends as an undisturbed one. The ranks meet through the first node, at a port that no other program has."""
    env = study(tmp_path, *RANKS)
    words = ("scale=laptop", "model=laptop", "objective=grpo_dapo", "data.benchmarks=[max4]", *RANKS)
    run = RunFolder.of(small(tmp_path / "runs", *words))
    wanted = ("partition=main", "--slurm", "nodes=2", "--gpus", "1", "--slurm", "grace=60")
    process = started(*ABLATE, *wanted, cwd=tmp_path, **env)
    until(lambda: len(run.metrics()) >= 2, process)
    (job,) = set(in_job("SLURM_JOB_ID").values())
    assert set(in_job("SLURM_JOB_NODELIST").values()) == {"n[1-2]"}
    assert set(in_job("CUDA_VISIBLE_DEVICES").values()) == {"0"}  # Slurm's, of each node
    subprocess.run(["scancel", "--signal=USR2", job], check=True)  # as at the time limit, and before preemption
    until(lambda: run.manifest()["status"] == "interrupted", process)
    saved = run.checkpoints()[-1]
    assert saved == len(run.metrics()) < 9

    until(lambda: len(run.metrics()) >= saved + 2, process)
    stop_daemon(slurm, "n2", signal.SIGKILL)
    for number, name in in_job("SLURMD_NODENAME").items():
        if name == "n2":
            os.kill(number, signal.SIGKILL)
    subprocess.run(["slurmd", "-N", "n2"], check=True)
    process.end()
    assert run.finished()
    alone = RunFolder.of(small(tmp_path / "alone", *words))
    for one in ranks("tepo_cli", "train", *SMALL, *words, f"store={tmp_path / 'alone'}", "--quiet"):
        one.end()
    assert_same_run(run.path, alone.path)


def test_a_partition_that_is_not_there_and_a_node_without_the_store_are_named(tmp_path: Path, slurm: Path) -> None:
    """The second node's own file systems lack it: as a folder of the login node's would."""
    stop_daemon(slurm, "n2", signal.SIGTERM)
    slurmd = f"mount -t tmpfs none {tmp_path} && exec slurmd -N n2"
    subprocess.run(["unshare", "--mount", "sh", "-c", slurmd], check=True)
    until_idle(slurm)
    env = study(tmp_path, "train.steps=1")
    done = tepo(*ABLATE, "partition=mian", cwd=tmp_path, **env, code=2)
    assert "Slurm refused the jobs" in done.stderr
    done = tepo(*ABLATE, "nodelist=n2", cwd=tmp_path, **env, code=2)
    assert f"n2 does not see the store\nin: {tmp_path / 'runs'}" in done.stderr
    assert squeue() == ""
