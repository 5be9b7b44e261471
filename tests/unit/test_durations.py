"""The table of durations fits the time of `make test`; a file that stays over its budget fails."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import durations
from tests.durations import FACTOR, LEAST, over_budget, read

ROOT = Path(__file__).parents[2]
QUICK = 10 * 60 * 2 * 0.85  # seconds on two cores for ten minutes; the rest is collecting, waiting and the linters


def test_the_table_knows_no_file_that_is_gone():
    """A new file has no budget until `make durations` has measured it."""
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    assert {file for file, _ in read()[1]} <= files


def test_the_quick_tier_fits_ten_minutes_on_two_cores():
    assert sum(seconds for (_, tier), seconds in read()[1].items() if tier == "quick") <= QUICK


def test_a_budget_is_generous():
    expected = {("a", "quick"): 100.0, ("b", "quick"): 0.1}
    assert not over_budget({("a", "quick"): FACTOR * 100, ("b", "quick"): LEAST, ("new", "quick"): 99.0}, expected)
    over = over_budget({("a", "quick"): FACTOR * 100 + 1, ("b", "quick"): LEAST + 1}, expected)
    assert over == {("a", "quick"): FACTOR * 100, ("b", "quick"): LEAST}


def test_seconds_of_another_kind_of_cpu_leave_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table, here = tmp_path / "durations.tsv", "tests/unit/test_durations.py"
    for cpu, tier in (("one", "quick"), ("other", "quick"), ("other", "disaster")):
        monkeypatch.setattr(durations, "machine", lambda cpu=cpu: {"cpu": cpu})
        durations.write({(here, tier): 2.0}, Counter({(here, tier): 1}), table)
    assert read(table) == ("other", {(here, "quick"): 2.0, (here, "disaster"): 2.0})
    durations.write({}, Counter(), table)
    monkeypatch.setattr(durations, "machine", lambda: {"cpu": "third"})
    durations.write({(here, "quick"): 3.0}, Counter({(here, "quick"): 1}), table)
    assert read(table) == ("third", {(here, "quick"): 3.0})


CONFTEST = """\
import tests.durations
from tests.durations import *
tests.durations.LEAST = 1.0
known = {{(f"test_{{name}}.py", "quick"): 0.1 for name in ("dear", "once", "cheap")}}
tests.durations.read = lambda: ({cpu}, known)
"""
BURN = "import time\nend = time.process_time() + 1.5\nwhile time.process_time() < end: pass"
DEAR = f"""\
import subprocess, sys
def test_dear(): subprocess.run([sys.executable, "-c", {BURN!r}], check=True)
"""


ONCE = """\
import pathlib, subprocess, sys
def test_once():
    mark = pathlib.Path(__file__).with_name("mark")
    if not mark.exists():
        mark.touch()
        subprocess.run([sys.executable, "-c", {burn!r}], check=True)
"""


@pytest.mark.parametrize(("cpu", "code"), [("machine()['cpu']", 1), ("'another'", 0)])
def test_a_file_over_its_budget_twice_fails_the_run_on_the_cpu_of_the_table(cpu: str, code: int, tmp_path: Path):
    """Also where the time is spent by a child process and the test by a worker."""
    (tmp_path / "conftest.py").write_text(CONFTEST.format(cpu=cpu))
    (tmp_path / "test_dear.py").write_text(DEAR)
    (tmp_path / "test_once.py").write_text(ONCE.format(burn=BURN))
    (tmp_path / "test_cheap.py").write_text("def test_cheap(): pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "1", "--rootdir", str(tmp_path)]
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}  # it may ask for the table
    env["PYTHONPATH"] = str(ROOT)
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, cwd=ROOT, env=env, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    dear, once = (re.search(rf"test_{name}.py \(quick\) took .*", done.stdout) for name in ("dear", "once"))
    assert dear
    assert once
    assert ("TOO LONG" in dear[0]) == bool(code)
    assert "TOO LONG" not in once[0]
    assert ("printed alone" in done.stdout) != bool(code)
    assert "test_cheap.py (quick) took" not in done.stdout
