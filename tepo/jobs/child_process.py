"""Measuring in a process of its own, after training or as the one rank of several that measures.

vLLM asserts one engine with sleep mode in a process, closing it ends torch's process group, and an engine that sees a
launcher's variables waits for the other ranks. What the trainer held on the GPU would be missing from the sampler's
memory, too. The process knows of the ranks only how many there are on this machine, whose GPUs it takes: the others
have ended, or end now. It stores what it measured, and the caller reads that.
"""

import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tepo.common import interpreter, signals
from tepo.common.errors import RunFailed, UserError
from tepo.config.run_config import RunConfig
from tepo.policy.model.allocator import free_unused
from tepo.sampling.backends import sampler_backend
from tepo.training.distributed import process_group

_LAUNCHER = ("RANK", "WORLD_SIZE", "MASTER_", "LOCAL_RANK", "GROUP_", "ROLE_", "TORCHELASTIC_", "TORCH_NCCL_")


def measures_apart(config: RunConfig, trained_here: bool) -> bool:
    """Tell whether a run must be measured in another process than this one. trained_here: this one trained it."""
    sampler = sampler_backend(config.sampler.kind)
    return process_group.world_size() > 1 or (trained_here and not sampler.shares_weights and not sampler.remote)


def in_own_process(work: Callable[..., Any], *arguments: Any) -> float:
    """Call a function of a module in a new process without a launcher's variables. Returns its CPU seconds. Raises the
    UserError that it raised, RunFailed where it ended in another way."""
    free_unused()
    before = CpuSeconds.now()
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "error.json"
        words = interpreter.command("-m", __name__, str(said), str(os.getpid()))
        given = pickle.dumps((work, arguments))
        environment = interpreter.environment(without_launcher(os.environ))
        code = subprocess.run(words, input=given, env=environment, check=False).returncode
        if said.is_file():
            error = json.loads(said.read_text(encoding="utf-8"))
            if error["exit_code"] == 1:
                raise RunFailed(error["what"], where=error["where"], fix=error["fix"])
            raise UserError(**error)
    if code:
        fix = "see the messages above; the same command measures again, and what is trained is kept"
        raise RunFailed(f"the process that measures ended with exit code {code}", fix=fix)
    return CpuSeconds.now().children - before.children


def without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables but for those by which a launcher tells a rank who it is."""
    return {name: value for name, value in environment.items() if not name.startswith(_LAUNCHER)}


class CpuSeconds(NamedTuple):
    """CPU seconds of this process, and of those that it has started and that have ended."""

    own: float
    children: float

    @classmethod
    def now(cls) -> "CpuSeconds":
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cls(time.process_time(), spent.ru_utime + spent.ru_stime)


def _main() -> int:
    signals.end_with(int(sys.argv[2]), signal.SIGTERM)  # the thread that started it waits for it
    work, arguments = pickle.load(sys.stdin.buffer)
    try:
        work(*arguments)
    except UserError as error:
        said = {name: getattr(error, name) for name in ("what", "where", "fix", "exit_code")}
        Path(sys.argv[1]).write_text(json.dumps(said), encoding="utf-8")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(_main())
