"""CPU seconds of every test file against the committed table `durations.tsv`, and the order of tests on request.

CPU seconds are those of the worker and of all processes that it started: another job on the machine hardly moves them.
Another kind of CPU does, so the table names its own, and on others it is compared without failing. `make durations`
measures anew and writes the table; a run of a part of the suite updates its own files."""

import contextlib
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from perf.machine import machine

TABLE = Path(__file__).with_name("durations.tsv")
FACTOR = 1.6  # a budget is this many times what was measured
LEAST = 15.0  # seconds of budget of every file: imports are paid by whichever file of a worker comes first
CPU = "# measured on "
SPENT = " CPU seconds in tests of "
Seconds = dict[tuple[str, str], float]  # (file, "quick" or "disaster") -> CPU seconds


def read(table: Path = TABLE) -> tuple[str, Seconds]:
    """The kind of CPU of the committed table, and the CPU seconds of each file and tier. Empty without a table."""
    if not table.exists():
        return "", {}
    first, _, *rows = table.read_text().splitlines()
    cells = (row.split("\t") for row in rows)
    return first.removeprefix(CPU), {(file, tier): float(seconds) for file, tier, _, seconds in cells}


def write(measured: Seconds, cases: Counter[tuple[str, str]], table: Path = TABLE) -> None:
    """Put what was measured into the table; files that are gone leave it, and so do seconds of another kind of CPU."""
    cpu = machine()["cpu"]
    old = table.read_text().splitlines() if table.exists() else [""]
    lines = [line.split("\t") for line in old[2:]] if old[0] == CPU + cpu else []
    rows = {(file, tier): (int(count), float(seconds)) for file, tier, count, seconds in lines}
    rows |= {key: (cases[key], seconds) for key, seconds in measured.items()}
    root = Path(__file__).parents[1]
    text = "".join(
        f"{file}\t{tier}\t{count}\t{seconds:.1f}\n"
        for (file, tier), (count, seconds) in sorted(rows.items())
        if (root / file).exists()
    )
    table.write_text(f"{CPU}{cpu}\nfile\ttier\tcases\tcpu_seconds\n" + text)


def over_budget(measured: Seconds, expected: Seconds) -> dict[tuple[str, str], float]:
    """The budget of every file and tier that took longer; one that is not in the table has none."""
    budgets = {key: max(LEAST, FACTOR * expected[key]) for key in measured if key in expected}
    return {key: budget for key, budget in sorted(budgets.items()) if measured[key] > budget}


def seconds_alone(file: str, tier: str, root: Path) -> float:
    """CPU seconds of the tests of one file and tier with nothing beside them."""
    marked = "disaster" if tier == "disaster" else "not disaster"
    words = ["-q", "-p", "no:cacheprovider", "--no-budgets", "-n", "0", "-m", marked, "--rootdir", str(root)]
    command = [sys.executable, "-m", "pytest", *words, str(root / file)]
    paths = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": paths})
    return float(done.stdout.rpartition(SPENT)[0].split()[-1])


def cpu_seconds() -> float:
    """User and system seconds of this process, of its descendants, and of those that any of them has waited for. A
    daemon, whose parent is gone, is not among them. Where there is no /proc: without children that still run."""
    if not Path("/proc/self/stat").exists():
        return sum(os.times()[:4])
    ticks, waiting = 0, [os.getpid()]
    while waiting:
        process = Path("/proc", str(waiting.pop()))
        with contextlib.suppress(OSError):  # it has ended
            after_the_name = (process / "stat").read_text().rpartition(") ")[2].split()
            ticks += sum(map(int, after_the_name[11:15]))  # utime, stime, cutime, cstime: man proc_pid_stat
            for thread in (process / "task").iterdir():
                waiting += map(int, (thread / "children").read_text().split())
    return ticks / os.sysconf("SC_CLK_TCK")


def ordered(items: list[Any], order: str) -> list[Any]:
    """Tests `reversed`, or shuffled by a seed: the files, and the tests within each, which share its fixtures."""
    if order == "reversed":
        return items[::-1]
    draw = random.Random(int(order))
    files = [list(group) for _, group in groupby(items, key=lambda item: item.path)]
    for tests in files:
        draw.shuffle(tests)
    draw.shuffle(files)
    return [item for tests in files for item in tests]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("durations and order")
    group.addoption("--write-durations", action="store_true", help="update tests/durations.tsv with this run")
    group.addoption("--no-budgets", action="store_true", help="do not compare this run with tests/durations.tsv")
    group.addoption("--order", metavar="SEED|reversed", help="shuffle the tests by a seed, or reverse them")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Durations(config.getoption("--write-durations")), "tepo-durations")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if order := config.getoption("--order"):
        items[:] = ordered(items, order)


class Durations:
    """Measure each test where it runs, add up where results come together, and judge at the end."""

    def __init__(self, writing: bool) -> None:
        self.writing = writing
        self.measured: Seconds = {}
        self.said: list[str] = []
        self.cases: Counter[tuple[str, str]] = Counter()
        self.before = 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self.before = cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
        report = yield
        if call.when == "teardown":
            tier = "disaster" if item.get_closest_marker("disaster") else "quick"
            report.spent = (tier, max(cpu_seconds() - self.before, 0.0))  # goes to the main process with the report
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "teardown":
            tier, seconds = report.spent
            key = (report.nodeid.split("::")[0], tier)
            self.measured[key] = self.measured.get(key, 0.0) + seconds
            self.cases[key] += 1

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return
        if self.writing:
            write(self.measured, self.cases)
        judged = session.exitstatus == pytest.ExitCode.OK and not session.config.getoption("--no-budgets")
        if judged and not self.writing and self.judge(session.config.rootpath):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def judge(self, root: Path) -> bool:
        """Say which files are over budget; on the kind of CPU of the table, measure them once more and tell whether any
        stays there."""
        cpu, expected = read()
        same, failed = machine()["cpu"] == cpu, False
        for (file, tier), budget in over_budget(self.measured, expected).items():
            said = f"{file} ({tier}) took {self.measured[file, tier]:.0f} CPU seconds, its budget is {budget:.0f}"
            if same:
                again = seconds_alone(file, tier, root)
                failed |= again > budget
                said += f"; alone {again:.0f}{', TOO LONG' if again > budget else ''}"
            self.said.append(said)
        if self.said and not same:
            self.said.append(f"the table was measured on {cpu}, this is {machine()['cpu']}: printed alone")
        return failed

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        total = sum(self.measured.values())
        terminalreporter.write_line(f"{total:.1f}{SPENT}{len(self.measured)} files")
        if self.said:
            terminalreporter.section("over budget: make it cheaper, or `make durations` on an idle machine")
            for line in self.said:
                terminalreporter.write_line(line)
