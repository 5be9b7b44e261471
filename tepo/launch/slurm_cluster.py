"""The Slurm cluster of this machine, for `tepo doctor`: whether one answers, its partitions, whether it takes a job."""

import shutil
import subprocess

_SECONDS = 20  # a controller that is down lets its commands wait


def cluster() -> tuple[str, str] | None:
    """What there is in words, and what to do about it where that is something; None without Slurm's commands."""
    if shutil.which("sbatch") is None or shutil.which("sinfo") is None:
        return None
    listed, said = _ask("sinfo", "--noheader", "--format=%P")
    if not listed:
        return f"no cluster answers: {said}", "start slurmctld, or look for SLURM_CONF; --launcher local needs none"
    partitions = dict.fromkeys(said.split())  # the default one has a star
    there = f"partitions {', '.join(partitions)}"
    taken, said = _ask("sbatch", "--test-only", "--ntasks=1", "--time=1", "--wrap=true")
    if not taken:
        return f"{there}; a job is refused: {said}", "name what the cluster asks for: account, partition, qos"
    return f"{there}; a job is accepted", ""


def _ask(*words: str) -> tuple[bool, str]:
    """Whether a command succeeded, and what it said: its answer, or the last line of its error."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False, f"{words[0]} gave no answer in {_SECONDS} s"
    error = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return done.returncode == 0, done.stdout if done.returncode == 0 else error
