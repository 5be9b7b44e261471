"""A part that crashes or hangs after its first figure: python -m tests.unit.perf.dying_part crash|hang FILE."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from perf.gpu.record import Figure, record


def measure() -> Iterator[Figure]:
    yield Figure("first", "s", 1.0)
    if sys.argv[1] == "crash":
        sys.stderr.write("last words\n")
        sys.stderr.flush()
        os._exit(9)
    time.sleep(600)


if __name__ == "__main__":
    record("part", measure, Path(sys.argv[2]))
