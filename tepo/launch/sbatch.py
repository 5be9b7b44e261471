"""Options of sbatch: `slurm.yaml` files of the user's and the command line, checked against the cluster, and the script
with its #SBATCH lines.

slurm.yaml, in ~/.config/tepo/ or a folder of TEPO_PATH; the nearer file wins key by key, the command line over all:
  partition: gpu
  account: lab
  mem: 900G
  sbatch: {reservation: tepo, gres: "gpu:h100:8"}   # any other option of sbatch
"""

import contextlib
import math
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tepo.common.errors import UserError
from tepo.common.schema import Location, option, read
from tepo.common.schema.document import load
from tepo.common.text import counted
from tepo.launch.slurm_job import in_shell

_CPUS_PER_GPU = 12  # a rank, its share of the grader's workers and what feeds the GPU
_SINFO = "%P|%D|%c|%m|%G"  # partition, with a star behind the default; nodes; CPUs, 64+ where nodes differ; MiB; GPUs
_MEMORY = ("SBATCH_MEM_PER_NODE", "SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_GPU")  # of these sbatch takes one
_NO_MEMORY = 1  # MiB that Slurm reports of a node whose memory it was not told
_SECONDS = 20  # for an answer; without a configuration sinfo looks for one for a minute
_GRACE = 300  # seconds at least
_PASSED = ("partition", "mem", "account", "qos", "constraint", "nodelist", "exclusive")  # to sbatch as they are


@dataclass(frozen=True)
class SlurmOptions:
    """Requests of a job."""

    partition: str | None = option(None, "where it runs; null: the cluster's default")
    gpus: int = option(0, "of each node", low=0)
    nodes: int = option(1, "for each run", low=1)
    cpus: int | None = option(None, "of each node; null: 12 for each GPU, as far as a node has them, else 1", low=1)
    mem: str | None = option(None, "of each node, 900G say; 0: all of it; null: as planned for a run on GPUs")
    account: str | None = option(None, "who pays")
    qos: str | None = option(None, "quality of service")
    constraint: str | None = option(None, "features of the nodes")
    nodelist: str | None = option(None, "nodes by name")
    exclusive: bool = option(False, "share no node with other jobs")
    minutes: int = option(24 * 60, "time limit; a run that needs longer is requeued and goes on", low=1)
    grace: int | None = option(None, "seconds a run has to end before its limit; null: as planned", low=1)
    parallel: int = option(64, "jobs at once", low=1)
    sbatch: dict[str, Any] = option({}, "other options of sbatch, by their long names")

    def __post_init__(self) -> None:
        if self.grace_seconds >= 60 * self.minutes:
            what = f"a grace of {self.grace} s leaves no time to train in {self.minutes} minutes"
            raise UserError(what, fix="raise the time limit (minutes), or lower grace")
        for name in self.sbatch:
            synonyms = {"gpus_per_node": "gpus", "cpus_per_task": "cpus", "time": "minutes", "signal": "grace"}
            key = synonyms.get(name.replace("-", "_"), name)
            if key in {part.name for part in fields(self)} or name in ("array", "output", "requeue"):
                fix = f"write {key}: …, beside sbatch:" if key != name or name in _PASSED else "leave it out"
                raise UserError(f"sbatch.{name} is what tepo sets itself", fix=fix)

    @property
    def grace_seconds(self) -> int:
        """Seconds between the request to stop and the time limit."""
        return self.grace or self.usual_grace(_GRACE)

    def usual_grace(self, planned: float) -> int:
        """The seconds that a plan asks for, 300 at least, but no more than a quarter of the limit."""
        return min(max(math.ceil(planned), _GRACE), 15 * self.minutes)

    def words(self, jobs: int) -> list[str]:
        """Options of sbatch for an array of so many jobs."""
        typed = "gres" in self.sbatch  # where a cluster wants the type of the GPUs
        settings = {
            "job-name": "tepo",
            "array": f"0-{jobs - 1}%{self.parallel}",
            "requeue": True,
            # not Slurm's output file: where a node lacks its folder, Slurm fails the job before our script could say so
            "output": "/dev/null",
            **{name: getattr(self, name) for name in _PASSED},
            **self.sbatch,
            "nodes": self.nodes,
            "ntasks-per-node": 1,
            "cpus-per-task": self.cpus or 1,
            "time": self.minutes,
            "gpus-per-node": None if typed else self.gpus or None,
            "signal": f"USR2@{self.grace_seconds}",
        }
        return [
            f"--{name.replace('_', '-')}"
            + ("" if value is True else f"={getattr(value, 'text', value)}")  # 1:30:00, 010
            for name, value in settings.items()
            if value is not None and value is not False
        ]


def job_script(options: SlurmOptions, jobs: int, folder: Path) -> str:
    """The script of an array. folder: with `jobs.json`, and for what Slurm itself prints."""
    output = f'{shlex.quote(str(folder))}/"$SLURM_ARRAY_TASK_ID".txt'
    directives = [f"#SBATCH {shlex.quote(word)}" for word in options.words(jobs)]
    return "\n".join(["#!/bin/sh", *directives, f"{in_shell(folder, 'lead')} >>{output} 2>&1", ""])


def slurm_options(gpus: int | None = None, words: Sequence[str] = ()) -> SlurmOptions:
    """Options from the files, then `words` (`key=value`, or `key` for true), then `gpus` where that is not None.

    Raises UserError for an unknown key, naming the nearest, and for a value that a key does not take."""
    values: dict[str, Any] = {}
    folders = [Path(part) for part in os.environ.get("TEPO_PATH", "").split(os.pathsep) if part]
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "tepo"
    for path in (folder / "slurm.yaml" for folder in (config, *reversed(folders))):  # the nearest last
        if path.is_file():
            document = load(path)
            read(SlurmOptions, document.data, document.at)  # says the line
            _join(values, document.data)
    for word in words:
        key, separator, text = word.partition("=")
        section, dot, name = key.partition(".")
        value = text if separator else True
        _join(values, {section: {name: value}} if dot else {key: value})
    if gpus is not None:
        values["gpus"] = gpus
    return read(SlurmOptions, values, Location(lambda keys: "--slurm, or an option of the command"))


def _join(values: dict[str, Any], nearer: Mapping[str, Any]) -> None:
    """Let the nearer values win; options of sbatch one by one."""
    for key, value in nearer.items():
        both = isinstance(value, Mapping) and isinstance(values.get(key), Mapping)
        values[key] = {**values[key], **value} if both else value


def check_slurm() -> None:
    """Raises UserError without Slurm."""
    if shutil.which("sbatch") is None:
        fix = "run on a login node of the cluster, or use --launcher local"
        raise UserError("no Slurm on this machine: sbatch is missing", where="--launcher slurm", fix=fix)


def nodes_here() -> list[str]:
    """The cluster's kinds of nodes, as sinfo prints them; none where it does not answer: sbatch says why."""
    command = ["sinfo", "--noheader", f"--format={_SINFO}"]
    with contextlib.suppress(FileNotFoundError, subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS).stdout.splitlines()
    return []


def fitted(options: SlurmOptions, kinds: Sequence[str], memory: float = 0.0) -> SlurmOptions:
    """The options with the CPUs and the memory that they leave open, on a cluster of these kinds of nodes. memory:
    bytes that a run takes of each node, 0 where that is unknown. Raises UserError for nodes that the cluster does not
    have: sbatch takes them, and lets the job wait for ever."""
    named = options.partition or os.environ.get("SBATCH_PARTITION")  # which sbatch reads too
    rows = [line.strip().split("|") for line in kinds]
    usual = [row for row in rows if row[0].endswith("*")] or rows
    inside = [row for row in rows if row[0].rstrip("*") in named.split(",")] if named else usual
    sizes = [[int(size.rstrip("+")) for size in sizes] for _, *sizes, gres in inside if gpus(gres) >= options.gpus]
    fit = [(nodes, cpus, size) for nodes, cpus, size in sizes if cpus >= (options.cpus or 1)]
    node_count = sum(nodes for nodes, _, _ in fit)
    if inside and node_count < options.nodes:
        each = f"{counted(options.gpus, 'GPU')} and {counted(options.cpus or 1, 'CPU')}"
        what = f"{counted(options.nodes, 'node')} with {each} asked for, and there are {node_count} such"
        where = f"sinfo, partition {named or 'by default'}"
        raise UserError(what, where=where, fix="ask for fewer GPUs or nodes, or name another partition")
    if options.gpus and not options.cpus:
        wished = _CPUS_PER_GPU * options.gpus
        options = replace(options, cpus=min(wished, max((cpus for _, cpus, _ in fit), default=wished)))
    variables = os.environ.keys() | {f"SBATCH_{name.replace('-', '_').upper()}" for name in options.sbatch}
    memory_known = max((size for _, _, size in fit), default=0) > _NO_MEMORY
    if memory and memory_known and options.mem is None and variables.isdisjoint(_MEMORY):
        enough = sum(nodes for nodes, _, size in fit if size >= memory / 2**20)
        options = replace(options, mem=f"{math.ceil(memory / 2**30)}G" if enough >= options.nodes else "0")
    return options


def gpus(gres: str) -> int:
    """GPUs in what Slurm writes as `gpu:h100:8(S:0-1),shard:16`."""
    return sum(int(count) for count in re.findall(r"\bgpu:(?:[^:,(]+:)?(\d+)", gres))
