"""Two processes for work that takes seconds, where forking is safe."""

import gc
import os
import signal
import sys
import threading
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

from tepo.common import signals


def two_processes() -> Executor:
    """Two forks without garbage collection (they are short-lived), or a thread of this process where it has threads, as
    a notebook's kernel has and pyarrow starts at its first work: a fork could wait for ever for a lock that another
    thread holds."""
    if threading.active_count() > 1 or "pyarrow" in sys.modules:
        return ThreadPoolExecutor(1)
    return ProcessPoolExecutor(2, mp_context=get_context("fork"), initializer=_begin, initargs=(os.getpid(),))


def _begin(parent: int) -> None:
    """In the fork, which the one thread of `parent` has made."""
    signals.end_with(parent, signal.SIGKILL)
    gc.disable()
