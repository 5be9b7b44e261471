"""A child with nothing in its memory, in which an engine measures.

vLLM asserts one engine with sleep mode in a process, closing it ends torch's process group, and an engine that sees a
launcher's variables waits for the other ranks. Of the ranks the child knows only how many there are on this machine,
whose GPUs it takes.

    python -m tepo.jobs.clean_process FILE PARENT WORDS…

FILE: the number of an open file with a pickled call. WORDS: of the command, for who lists processes.
"""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from tepo.common import interpreter, signals
from tepo.common.errors import RunFailed, UserError


def in_child(work: Callable[..., Any], *arguments: Any) -> None:
    """Call a function of a module in a child, which ends with this process. Raises the UserError that it raised,
    RunFailed where it ended in another way."""
    with tempfile.TemporaryFile() as file:
        pickle.dump((work, arguments), file)
        end = file.tell()
        file.seek(0)
        words = interpreter.command("-m", __name__, str(file.fileno()), str(os.getpid()), *sys.argv[1:])
        variables = interpreter.environment(interpreter.without_launcher(os.environ))
        with subprocess.Popen(words, env=variables, pass_fds=[file.fileno()]) as process:
            try:
                code = process.wait()
            except BaseException:  # a request to stop: it closes its engine
                process.terminate()
                raise
        file.seek(end)
        if answer := file.read():
            raise pickle.loads(answer)
    if code:
        fix = "see the messages above; the same command measures again, and what is trained is kept"
        raise RunFailed(f"the process that measures ended with exit code {code}", fix=fix)


def _main() -> int:
    number, parent = map(int, sys.argv[1:3])
    interpreter.quiet_others()
    signals.at_once()
    signals.end_with(parent, signal.SIGTERM)  # the thread that started it waits for it
    with open(number, "r+b") as file:
        work, arguments = pickle.load(file)
        try:
            work(*arguments)
        except UserError as error:
            pickle.dump(error, file)
            return error.exit_code
        except KeyboardInterrupt:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(_main())
