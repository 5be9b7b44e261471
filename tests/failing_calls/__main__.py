"""`python -m tests.failing_calls`: trials in which a call on a file fails, or the process dies before it. Exit code 1
where one ended badly, with a line for each."""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.failing_calls.supervisor import unavailable
from tests.failing_calls.trials import MESSAGE, SAME, run_trials


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.failing_calls", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="only each so-manieth trial of a fault")
    parser.add_argument("--workers", type=int, default=2, help="processes side by side")
    given = parser.parse_args()
    if reason := unavailable():
        sys.exit(reason)
    ends: dict[tuple[str, str], Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for one in run_trials(Path(folder), given.every, given.workers):
            how = "bad" if one.bad else one.ended
            ends.setdefault((one.place.call.kind, one.fault), Counter())[how] += 1
            if one.bad:
                say(f"{one.fault} at {one.place}: {one.ended}")
    say("\t".join(("call", "fault", "trials", SAME, MESSAGE, "bad")))
    for kind, found in sorted(ends.items()):
        say("\t".join(map(str, (*kind, found.total(), found[SAME], found[MESSAGE], found["bad"]))))
    sys.exit(any(found["bad"] for found in ends.values()))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
