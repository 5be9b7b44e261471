"""Going on in a fresh process: the same one, of which its id, its folder and its streams are left.

Whatever libraries keep of a GPU is free then. Who started the command sees one process from its start to its end: it
reaches it by signals, its CPU seconds add up, and it still ends with its parent (prctl(2): that outlives an exec).
"""

import atexit
import contextlib
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeAlias

from tepo.common import interpreter, signals

HandOver: TypeAlias = Callable[..., NoReturn]
"""`hand_over` with the environment of the command."""


def hand_over(environment: Mapping[str, str], work: Callable[..., Any], *arguments: Any) -> NoReturn:
    """Call a function of a module in this process with nothing in its memory, and end with it as a command does.

    environment: that of the command when it started; libraries have changed their own since. A launcher's variables are
    left out. A request to stop on the way is heard afterwards.
    """
    from tepo.jobs.child_process import without_launcher  # needs torch

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
        words = interpreter.command("-m", "tepo_cli.handed_over", str(file.fileno()), *sys.argv[1:])
        os.execve(words[0], words, interpreter.environment(without_launcher(environment)))
