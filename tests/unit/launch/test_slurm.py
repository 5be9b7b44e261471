import re
from dataclasses import replace
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.launch import slurm_job
from tepo.launch.sbatch import SlurmOptions, fitted, slurm_options
from tepo.launch.slurm import planned_memory, requests
from tepo.policy.model.shapes import KNOWN
from tepo.studies.plan import Unit
from tepo.studies.plan_studies import plan_all
from tests.support.commands import tepo
from tests.support.runs import write

CLUSTER = ["gpu|4|96|1500000|gpu:h100:8(S:0-1)", "gpu|2|32|250000|gpu:4", "cpu|9|64+|128000+|(null)"]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """~/.config/tepo/slurm.yaml, and those of two folders on TEPO_PATH."""
    for name, text in {
        "home/tepo": "account: far\nmem: 100G\nnodes: 2\nsbatch: {reservation: far, comment: far}\n",
        "second": "account: second\nqos: second\nexclusive: true\n",
        "first": "qos: first\nsbatch: {reservation: first}\n",
    }.items():
        write(tmp_path / name / "slurm.yaml", text)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TEPO_PATH", f"{tmp_path / 'first'}:{tmp_path / 'second'}")
    return tmp_path


def test_the_nearer_file_wins_and_the_command_line_over_all(files: Path) -> None:
    options = slurm_options()
    assert options.account == "second"
    assert (options.qos, options.exclusive, options.mem, options.nodes) == ("first", True, "100G", 2)
    assert options.sbatch == {"reservation": "first", "comment": "far"}
    options = slurm_options(None, ["nodes=3", "qos=here", "exclusive=false", "sbatch.reservation=here", "mem=0"])
    assert (options.qos, options.exclusive, options.mem, options.nodes) == ("here", False, "0", 3)
    assert options.sbatch["reservation"] == "here"


def test_sbatch_gets_what_is_asked_for() -> None:
    words = ["nodes=2", "partition=gpu", "minutes=600", "exclusive", "mem=900G", "grace=120", "sbatch.mail-type=END"]
    asked = "partition=gpu mem=900G exclusive mail-type=END nodes=2 ntasks-per-node=1 cpus-per-task=96 time=600 "
    asked += "gpus-per-node=8 signal=USR2@120 job-name=tepo array=0-6%64 requeue output=/dev/null"
    options = fitted(slurm_options(8, words), CLUSTER)
    assert set(options.words(7)) == {f"--{word}" for word in asked.split()}


def test_options_of_sbatch_are_what_the_file_says(files: Path) -> None:
    (files / "first/slurm.yaml").write_text("account: 007\nsbatch: {time-min: 1:30:00, comment: 1e5, no-kill: yes}\n")
    assert {"--account=007", "--time-min=1:30:00", "--comment=1e5", "--no-kill"} <= {*slurm_options().words(1)}


@pytest.mark.parametrize(
    ("options", "kinds", "gib", "mem", "cpus"),
    [
        ({"gpus": 8}, CLUSTER, 176.2, "177G", 96),
        ({"gpus": 4, "nodes": 2}, CLUSTER, 300, "300G", 48),  # the smaller two are left out
        ({"gpus": 8}, CLUSTER, 2000, "0", 96),  # all that a node has
        ({"gpus": 8}, ["gpu|4|64|1|gpu:8"], 177, None, 64),  # Slurm was not told
        ({"gpus": 8, "mem": "90G", "cpus": 7}, CLUSTER, 177, "90G", 7),
        ({}, [], 0, None, None),  # no sinfo
    ],
)
def test_what_is_asked_of_a_node(
    options: dict, kinds: list[str], gib: float, mem: str | None, cpus: int | None
) -> None:
    found = fitted(SlurmOptions(**options), kinds, gib * 2**30)
    assert (found.mem, found.cpus) == (mem, cpus)


def paper(store: Path, *words: str) -> list[Unit]:
    ((_, units),) = plan_all(["panel-e"], "paper", store=store, overrides=words)
    return units


def test_what_a_run_takes_of_a_node(tmp_path: Path) -> None:
    """Below ZeRO-3 each rank of 8 loads the 7B by itself; offloaded, masters, moments and gradients stay there."""
    one, process = 2 * KNOWN["Qwen/Qwen2.5-7B"].parameters, 8 * 2**30
    for words, gpus, weights in (
        (("engine.zero_stage=2", "engine.offload=false"), 8, 8),
        (("engine.zero_stage=2", "engine.offload=false"), 1, 7),  # a checkpoint
        (("engine.zero_stage=2", "engine.offload=true"), 8, 8 + 7),
        (("engine.zero_stage=3", "engine.offload=false"), 8, 7),  # at a checkpoint each rank has its part alone
        ((), 8, 9 + 7),  # left open, what takes the most: ZeRO 3 with 18 bytes a weight, and a checkpoint
    ):
        found = planned_memory(paper(tmp_path, *words), SlurmOptions(gpus=gpus))
        assert found == pytest.approx(weights * one + gpus * process), words


@pytest.mark.parametrize("word", ["acount=lab", "grace=86400", "sbatch.gpus-per-node=8"])
def test_a_mistake_on_the_command_line(word: str) -> None:
    with pytest.raises(UserError, match=r"did you mean 'account'|leaves no time to train|write gpus: …"):
        slurm_options(None, [word])


def test_what_the_cluster_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="5 nodes with 8 GPUs and 1 CPU asked for, and there are 4 such"):
        fitted(SlurmOptions(gpus=8, nodes=5), CLUSTER)
    with pytest.raises(UserError, match="need a GPU, and the jobs ask for none"):
        requests(paper(tmp_path), SlurmOptions(), CLUSTER)
    whole = requests(paper(tmp_path), SlurmOptions(gpus=8), CLUSTER)
    assert whole.mem == "291G"
    assert 300 < (whole.grace or 0) < 900  # seconds to save: those of a step and a checkpoint
    large = requests(paper(tmp_path, "model=qwen2.5-32b"), SlurmOptions(gpus=8), CLUSTER)
    assert 1.5 * (2 * 459 + 242) < (large.grace or 0) < 3600  # its checkpoint has 459 GB
    assert requests(paper(tmp_path), SlurmOptions(gpus=8, minutes=20), CLUSTER).grace == 300
    requests(paper(tmp_path), SlurmOptions(sbatch={"gres": "gpu:h100:1"}), CLUSTER)
    requests(paper(tmp_path, "engine.device=cpu"), SlurmOptions(), CLUSTER)


def test_each_node_starts_its_own_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NODEID", "1")
    job = slurm_job.SlurmJob(["python", "-P", "-m", "tepo_cli", "train"], "run", "log", nodes=2, gpus=8, cpus=96)
    two = slurm_job.node_words(job, "10.0.0.1:15000")
    assert two[:6] == ["python", "-P", "-m", "torch.distributed.run", "--nproc-per-node", "8"]
    where = ["--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.1", "--master-port", "15000"]
    assert two[6:] == [*where, "-m", "tepo_cli", "train"]
    assert "--standalone" in slurm_job.node_words(replace(job, nodes=1), "none")
    assert slurm_job.node_words(replace(job, nodes=1, gpus=1), "none") == job.words
    assert slurm_job.node_words(replace(job, gpus=0), "a:1")[5] == "1"  # a CPU is one rank
    assert slurm_job.node_words(replace(job, alone=["measure"]), "alone") == ["measure"]


@pytest.mark.parametrize(
    ("code", "codes", "later"),
    [
        (1, [1, 1], False),  # the run has failed
        (75, [75, 75], True),  # asked to stop
        (137, [1, 137], True),  # one of its processes was killed
        (0, [1, None], True),  # a node was lost, of which srun says nothing
        (slurm_job.NO_STORE, [None, None], False),
    ],
)
def test_which_jobs_are_requeued(code: int, codes: list[int | None], later: bool) -> None:
    assert slurm_job._for_now(code, codes) is later


def test_a_run_that_never_finishes_a_step_is_not_requeued_for_ever(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    assert [slurm_job._in_vain(tmp_path, 0, run) for _ in range(4)] == [False, False, False, True]
    (run / "metrics.jsonl").write_text("{}\n")
    assert not slurm_job._in_vain(tmp_path, 0, run)


def test_a_dry_run_prints_the_script_that_would_be_submitted(tmp_path: Path) -> None:
    words = ("ablate", "panel-e", "--dry-run", "--launcher", "slurm", "--gpus", "2", "--slurm", "partition=big")
    done = tepo(*words, "--slurm", "mem=10G", "--store", tmp_path / "s", PATH=str(tmp_path))
    first, *rest = done.stdout.splitlines()
    assert first == "#!/bin/sh"
    asked = [line.removeprefix("#SBATCH ") for line in rest if line.startswith("#SBATCH ")]
    assert {"--partition=big", "--mem=10G", "--gpus-per-node=2", "--requeue", "--output=/dev/null"} <= set(asked)
    assert any(re.fullmatch(r"--array=0-\d+%64", word) for word in asked)
    assert str(tmp_path / "s" / "slurm") in rest[-1]
    assert "--cpus-per-task=24" in asked
    assert "no Slurm answers here" in done.stderr
    assert not (tmp_path / "s").exists()
