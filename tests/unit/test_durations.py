"""The table of durations has every file and fits the time of `make test`; a file far over its budget is an error."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.durations import FACTOR, LEAST, over_budget, read

ROOT = Path(__file__).parents[2]
QUICK = 10 * 60 * 2 * 0.75  # seconds on two cores for ten minutes; the rest is collecting, waiting and the linters


def test_the_table_knows_every_file_and_none_that_is_gone():
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    assert {file for file, _ in read()} == files


def test_the_quick_tier_fits_ten_minutes_on_two_cores():
    assert sum(seconds for (_, tier), seconds in read().items() if tier == "quick") <= QUICK


def test_a_budget_is_generous():
    expected = {("a", "quick"): 10.0, ("b", "quick"): 0.1}
    assert not over_budget({("a", "quick"): FACTOR * 10, ("b", "quick"): LEAST, ("new", "quick"): 99.0}, expected)
    over = over_budget({("a", "quick"): FACTOR * 10 + 1, ("b", "quick"): LEAST + 1}, expected)
    assert [line.split()[0] for line in over] == ["a", "b"]


CONFTEST = """\
import tests.durations
from tests.durations import *
tests.durations.LEAST = 1.0
tests.durations.read = lambda: {(f"test_{name}.py", "quick"): 0.1 for name in ("dear", "cheap")}
"""
DEAR = """\
import subprocess, sys
BURN = "import time\\nend = time.process_time() + 1.5\\nwhile time.process_time() < end: pass"
def test_dear(): subprocess.run([sys.executable, "-c", BURN], check=True)
"""


def test_a_run_with_a_file_over_its_budget_fails_though_its_tests_pass(tmp_path: Path):
    """Also where the time is spent by a child process and the test by a worker."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_dear.py").write_text(DEAR)
    (tmp_path / "test_cheap.py").write_text("def test_cheap(): pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "1", "--rootdir", str(tmp_path)]
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}  # it may ask for the table
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, cwd=ROOT, env=env, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert re.search(r"test_dear.py \(quick\) took \d+ CPU seconds, more than its budget of 1", done.stdout)
    assert "test_cheap.py (quick) took" not in done.stdout
