"""CPU seconds of every test file against the committed table `durations.tsv`, and the order of tests on request.

CPU seconds are those of the worker and of all processes that it started: another job on the machine hardly moves them.
`make durations` measures anew and writes the table; a run of a part of the suite updates its own files."""

import contextlib
import os
import random
from collections import Counter
from collections.abc import Generator, Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

TABLE = Path(__file__).with_name("durations.tsv")
FACTOR = 3.0  # a budget is this many times what was measured: two busy threads of one core take up to twice as long
LEAST = 15.0  # seconds of budget of every file: imports are paid by whichever file of a worker comes first
Seconds = dict[tuple[str, str], float]  # (file, "quick" or "disaster") -> CPU seconds


def read(table: Path = TABLE) -> Seconds:
    """The committed CPU seconds of each file and tier; empty where there is no table."""
    if not table.exists():
        return {}
    rows = [line.split("\t") for line in table.read_text().splitlines()[1:]]
    return {(file, tier): float(seconds) for file, tier, _, seconds in rows}


def write(measured: Seconds, cases: Counter[tuple[str, str]], table: Path = TABLE) -> None:
    """Put what was measured into the table; files that are gone leave it."""
    lines = [line.split("\t") for line in table.read_text().splitlines()[1:]] if table.exists() else []
    rows = {(file, tier): (int(count), float(seconds)) for file, tier, count, seconds in lines}
    rows |= {key: (cases[key], seconds) for key, seconds in measured.items()}
    root = Path(__file__).parents[1]
    text = "".join(
        f"{file}\t{tier}\t{count}\t{seconds:.1f}\n"
        for (file, tier), (count, seconds) in sorted(rows.items())
        if (root / file).exists()
    )
    table.write_text("file\ttier\tcases\tcpu_seconds\n" + text)


def over_budget(measured: Seconds, expected: Seconds) -> list[str]:
    """A line for every file and tier that took far longer than the table says; one that is not in it has no budget."""
    return [
        f"{file} ({tier}) took {seconds:.0f} CPU seconds, more than its budget of {budget:.0f}"
        for (file, tier), seconds in sorted(measured.items())
        if (file, tier) in expected and seconds > (budget := max(LEAST, FACTOR * expected[file, tier]))
    ]


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
        elif self.over() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def over(self) -> Iterable[str]:
        return over_budget(self.measured, read())

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        total = sum(self.measured.values())
        terminalreporter.write_line(f"{total:.0f} CPU seconds in tests of {len(self.measured)} files")
        if not self.writing and (lines := self.over()):
            terminalreporter.section("over budget: make it cheaper, or `make durations` on an idle machine", red=True)
            for line in lines:
                terminalreporter.write_line(line)
