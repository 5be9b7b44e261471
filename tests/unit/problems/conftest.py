"""The real problem sets are not ours to commit: tests on them run where a copy is."""

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).parents[4] / "shared" / "benchmarks"


@pytest.fixture
def real_sets(monkeypatch):
    """TEPO_DATA as given, or the folder of problem sets beside the checkout."""
    if not os.environ.get("TEPO_DATA"):
        if not BESIDE.is_dir():
            pytest.skip("no copy of the problem sets: set TEPO_DATA to a folder of NAME.jsonl")
        monkeypatch.setenv("TEPO_DATA", str(BESIDE))
    return Path(os.environ["TEPO_DATA"])
