"""A probe that crashes or hangs after its first figure, or has slow imports:
python -m tests.unit.training.probes.dying_probe crash|hang|slow FILE."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tepo.training.probes.probe_record import Figure, record


def measure() -> Iterator[Figure]:
    if sys.argv[1] == "slow":
        time.sleep(6)
        return iter([Figure("first", "s", 1.0)])
    return dying()


def dying() -> Iterator[Figure]:
    yield Figure("first", "s", 1.0)
    if sys.argv[1] == "crash":
        sys.stderr.write("last words\n")
        sys.stderr.flush()
        os._exit(9)
    time.sleep(600)


if __name__ == "__main__":
    record("part", measure, Path(sys.argv[2]))
