"""A process with nothing in its memory, in which an engine measures: this one, of which its id, its folder and its
streams are left, or a child.

vLLM asserts one engine with sleep mode in a process, closing it ends torch's process group, and an engine that sees a
launcher's variables waits for the other ranks. What the trainer held on the GPU would be missing from the sampler's
memory, too. Of the ranks such a process knows only how many there are on this machine, whose GPUs it takes.

    python -m tepo.jobs.clean_process FILE PARENT WORDS…

FILE: the number of an open file with a pickled call. PARENT: of a child; 0 otherwise. WORDS: of the command that goes
on, for who lists processes.
"""

import atexit
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from tepo.common import interpreter, signals
from tepo.common.errors import RunFailed, UserError


def in_child(work: Callable[..., Any], *arguments: Any) -> None:
    """Call a function of a module in a child, which ends with this process. Raises the UserError that it raised,
    RunFailed where it ended in another way."""
    with tempfile.TemporaryFile() as file:
        pickle.dump((work, arguments), file)
        end = file.tell()
        file.seek(0)
        words, variables = _program(file.fileno(), os.getpid(), os.environ)
        code = subprocess.run(words, env=variables, pass_fds=[file.fileno()], check=False).returncode
        file.seek(end)
        if answer := file.read():
            raise pickle.loads(answer)
    if code:
        fix = "see the messages above; the same command measures again, and what is trained is kept"
        raise RunFailed(f"the process that measures ended with exit code {code}", fix=fix)


def go_on(environment: Mapping[str, str], work: Callable[..., Any], *arguments: Any) -> NoReturn:
    """Call a function of a module in this process with nothing in its memory, and end with it as a command does.

    Who started the command sees one process from its start to its end: it reaches it by signals, its CPU seconds add
    up, and it still ends with its parent (prctl(2): that outlives an exec).

    environment: that of the command when it started; libraries have changed their own since. A request to stop on the
    way is kept until `work` calls `signals.at_once`.
    """
    atexit._run_exitfuncs()  # as at the end of any process: groups of ranks are left, temporary files removed
    with tempfile.TemporaryFile() as file:
        pickle.dump((work, arguments), file)
        file.seek(0)
        for name in os.listdir("/dev/fd"):  # libraries may leave files, devices and locks open to who comes next
            with contextlib.suppress(OSError):  # that of the list itself
                os.set_inheritable(int(name), int(name) <= 2)
        os.set_inheritable(file.fileno(), True)
        sys.stdout.flush()
        sys.stderr.flush()
        signals.hold()
        words, variables = _program(file.fileno(), 0, environment)
        os.execve(words[0], words, variables)


def _program(file: int, parent: int, environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Command line and variables."""
    words = interpreter.command("-m", __name__, str(file), str(parent), *sys.argv[1:])
    return words, interpreter.environment(interpreter.without_launcher(environment))


def _main() -> int:
    number, parent = map(int, sys.argv[1:3])
    if parent:
        signals.end_with(parent, signal.SIGTERM)  # the thread that started it waits for it
    with open(number, "r+b") as file:
        work, arguments = pickle.load(file)
        try:
            work(*arguments)
        except UserError as error:  # of a child; a command says its own
            pickle.dump(error, file)
            return error.exit_code
        except KeyboardInterrupt:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(_main())
