"""The table of durations has every file and fits the time of `make test`; a file far over its budget is an error."""

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


def test_a_budget_is_generous_and_a_new_file_has_a_small_one():
    expected = {("a", "quick"): 10.0, ("b", "quick"): 0.1}
    assert not over_budget({("a", "quick"): FACTOR * 10, ("b", "quick"): LEAST, ("new", "quick"): LEAST}, expected)
    over = over_budget({("a", "quick"): FACTOR * 10 + 1, ("b", "quick"): 1.0, ("new", "disaster"): 99.0}, expected)
    assert [line.split()[0] for line in over] == ["a", "new"]


def test_a_run_with_a_file_over_its_budget_fails_though_its_tests_pass(tmp_path: Path):
    """Also where the time is spent by a child process and the test by a worker."""
    (tmp_path / "conftest.py").write_text(
        "import tests.durations\nfrom tests.durations import *\ntests.durations.LEAST = 1.0\n"
    )
    burn = "import time\nend = time.process_time() + 1.5\nwhile time.process_time() < end: pass"
    (tmp_path / "test_dear.py").write_text(
        f"import subprocess, sys\ndef test_dear(): subprocess.run([sys.executable, '-c', {burn!r}], check=True)\n"
    )
    (tmp_path / "test_cheap.py").write_text("def test_cheap(): pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "1", "--rootdir", str(tmp_path)]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert "test_dear.py (quick) took 2 CPU seconds, more than its budget of 1" in done.stdout
    assert "test_cheap.py (quick) took" not in done.stdout
