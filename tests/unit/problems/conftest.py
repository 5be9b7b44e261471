"""The real problem sets are not ours to commit: tests on them run where a copy is."""

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).parents[4] / "shared" / "benchmarks"


@pytest.fixture
def real_sets(monkeypatch):
    """TEPO_DATA if the sets lie there, or the folder of problem sets beside the checkout."""
    places = [Path(os.environ.get("TEPO_DATA", "")), BESIDE]
    found = next((place for place in places if (place / "aime24.jsonl").is_file()), None)
    if found is None:
        pytest.skip("no copy of the problem sets: set TEPO_DATA to a folder of NAME.jsonl")
    monkeypatch.setenv("TEPO_DATA", str(found))
    return found
