"""A study of a user's own: one row, one seed."""

from pathlib import Path

import pytest

from tests.support.runs import write

STUDY = (
    "title: mine\nbaseline: GRPO/DAPO\nrows:\n  - {{label: GRPO/DAPO, objective: grpo_dapo{row}}}\n"
    "scales:\n  laptop: {{models: [laptop], seeds: [0]}}\n"
)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TEPO_PATH", str(tmp_path / "own"))
    return write(tmp_path / "own" / "experiments" / "mine.yaml", STUDY.format(row="")).parent
