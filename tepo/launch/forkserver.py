"""Local slots: a server process imports everything once and forks a process for each unit, so that a study of many
short runs does not pay the imports of torch and transformers for each. A unit with GPUs gets an interpreter of its own:
CUDA does not survive a fork."""

import os
import runpy
import signal
import sys
import threading
from collections.abc import Sequence
from multiprocessing import forkserver, get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType

from tepo.common import interpreter
from tepo.common.files import explain_write_errors, no_link

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NO_GPU = {_VISIBLE: ""}
_WARM = [
    "tepo_cli.main",
    "tepo_cli.train_run",
    "tepo.evaluation.evaluate",
    "transformers.models.qwen2.modeling_qwen2",
    "torch._dynamo",
    "hydra",
]


def job_environment() -> dict[str, str]:
    """Environment of a child with one thread and no GPU, which is no rank of whoever starts it."""
    return interpreter.environment(interpreter.without_launcher()) | interpreter.ONE_THREAD | _NO_GPU


def under_torchrun(words: Sequence[str], ranks: int, *how: str) -> list[str]:
    """A child's command, run by torchrun as so many ranks of this machine. how: more options of torchrun."""
    head = len(interpreter.command())
    return [*words[:head], "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *how, *words[head:]]


def on_gpus(words: list[str], gpus: int) -> list[str]:
    """The command of a run on one machine: as it is on one device, under torchrun on several."""
    return words if gpus <= 1 else under_torchrun(words, gpus, "--standalone")


def devices(slot: int, gpus: int) -> dict[str, str]:
    """The variable that shows slot number `slot` its own `gpus` GPUs of those this process sees, which are enough
    (`check_study`); nothing without GPUs."""
    visible = os.environ.get(_VISIBLE)
    mine = range(slot * gpus, (slot + 1) * gpus)
    names = visible.split(",") if visible else list(map(str, range(mine.stop)))
    return {_VISIBLE: ",".join(names[mine.start : mine.stop])} if gpus else {}


def start(words: Sequence[str], log: Path, environment: dict[str, str]) -> BaseProcess:
    """Run a child's command in a session of its own, its output at the end of `log`; `-m tepo_cli …` starts without
    imports, unless its environment shows it a GPU."""
    with explain_write_errors(log.parent):
        log.parent.mkdir(parents=True, exist_ok=True)
        open(log, "ab", opener=no_link).close()
    _serve()
    hang_up = signal.getsignal(signal.SIGHUP)
    ignored = hang_up if hang_up is signal.SIG_IGN else signal.SIG_DFL  # the first by nohup
    process = get_context("forkserver").Process(target=_run, args=(list(words), str(log), environment, ignored))
    # Hide the script that runs: multiprocessing would run it again in the new process, which needs nothing of it, and
    # one without `if __name__ == "__main__"` would start its study there once more.
    main = sys.modules["__main__"]
    try:
        with interpreter.settled():
            sys.modules["__main__"] = ModuleType("__main__")
            process.start()
    finally:
        sys.modules["__main__"] = main
    return process


def _serve() -> None:
    """Start the server with one thread a process and no GPU: libraries read these variables when they load. Ctrl-C and
    the end of a terminal are ours alone to hear: the server would end in a traceback while it imports, and with it we
    could not wait for its units."""
    forkserver.set_forkserver_preload(_WARM)
    before = dict(os.environ)
    main = threading.current_thread() is threading.main_thread()
    deaf = (signal.SIGINT, signal.SIGHUP) if main else ()
    handlers = [signal.signal(number, signal.SIG_IGN) for number in deaf]
    try:
        with interpreter.settled():
            os.environ.update(interpreter.ONE_THREAD | _NO_GPU)
            forkserver.ensure_running()
    finally:
        for number, handler in zip(deaf, handlers, strict=True):
            signal.signal(number, handler)
        os.environ.clear()
        os.environ.update(before)


def _run(words: list[str], log: str, environment: dict[str, str], hang_up: signal.Handlers) -> None:
    """In the forked process. The session of its own keeps Ctrl-C from it: the parent alone hears that, and ends its
    units in order."""
    os.setsid()
    # a shell's background job ignores it, and so would what it starts
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, hang_up)
    with open(log, "ab", opener=no_link) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    ours = interpreter.command("-m", "tepo_cli")
    if words[: len(ours)] != ours or environment.get(_VISIBLE):
        os.execve(words[0], words, environment)
    sys.argv = words[len(ours) - 1 :]
    runpy.run_module("tepo_cli", run_name="__main__", alter_sys=True)
