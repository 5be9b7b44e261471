"""`python -m tests.failing_calls`: a table of trials in which a call on a file fails, or the process dies before it.

Exit code 1 where a trial ended badly, with a line for each.
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.failing_calls.supervisor import unavailable
from tests.failing_calls.trials import MESSAGE, SAME, Outcome, run_trials


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.failing_calls", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="only each so-manieth trial of a fault")
    parser.add_argument("--workers", type=int, default=2, help="processes side by side")
    given = parser.parse_args()
    if reason := unavailable():
        sys.exit(reason)
    console, outcomes = Console(width=100, soft_wrap=True), list[Outcome]()
    with tempfile.TemporaryDirectory() as folder:
        for outcome in run_trials(Path(folder), given.every, given.workers):
            outcomes.append(outcome)
            if outcome.bad:
                console.print(f"{outcome.fault} at {outcome.place}: {outcome.ended}", markup=False, highlight=False)
    console.print(table(outcomes))
    sys.exit(any(outcome.bad for outcome in outcomes))


def table(outcomes: list[Outcome]) -> Table:
    """A row a kind of call and fault."""
    shown = Table("call", "fault", "trials", SAME, MESSAGE, "bad")
    rows = dict.fromkeys((outcome.place.call.kind, outcome.fault) for outcome in outcomes)
    for kind, fault in sorted(rows):
        ends = Counter(
            "bad" if one.bad else one.ended for one in outcomes if (one.place.call.kind, one.fault) == (kind, fault)
        )
        shown.add_row(kind, fault, *map(str, (ends.total(), ends[SAME], ends[MESSAGE], ends["bad"])))
    return shown


if __name__ == "__main__":
    main()
