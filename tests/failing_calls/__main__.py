"""Trials in which a call on a file fails, or the process dies before it. Exit code 1 where one ended badly."""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.failing_calls.supervisor import unavailable
from tests.failing_calls.trials import run_trials

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.failing_calls", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="only each so-manieth trial of a fault")
    parser.add_argument("--workers", type=int, default=2, help="processes side by side")
    given = parser.parse_args()
    if reason := unavailable():
        sys.exit(reason)
    count: Counter[tuple[str, str]] = Counter()
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for one in run_trials(Path(folder), given.every, given.workers):
            count[one.place.call.kind, one.fault] += 1
            bad += one.bad
            if one.bad:
                sys.stdout.write(f"{one.fault} at {one.place}: {one.ended}\n")
    for (kind, fault), trials in sorted(count.items()):
        sys.stdout.write(f"{kind}\t{fault}\t{trials}\n")
    sys.exit(bad > 0)
