"""A study of curves from file to page through the commands, really trained: too short for a fit that is trusted."""

import csv
from pathlib import Path

import pytest

from tests.integration.commands import tepo
from tests.unit.training.small import SMALL, few_problems, write

pytestmark = [pytest.mark.slow, pytest.mark.disaster]

SETTINGS = ("train.steps=12", "train.validate_every=1", "train.validation_problems=6", "data.benchmarks=[add3,max4]")
STUDY = """
title: curves of a few steps
baseline: GRPO/DAPO
curve: {margin: 0.1}
rows:
  - {label: GRPO/DAPO, objective: grpo_dapo}
  - {label: GSPO, objective: gspo}
scales:
  laptop: {models: [laptop], seeds: [0, 1]}
"""


def test_curves_from_training_to_page(tmp_path: Path) -> None:
    own = few_problems(tmp_path)
    write(tmp_path / "experiments/mine.yaml", STUDY)
    words = [part for word in (*SMALL, *SETTINGS) for part in ("--set", word)]

    def run(command: str, *more: str | Path) -> str:
        done = tepo(command, "mine", "--store", tmp_path / "runs", *words, *more, **own)
        return done.stdout + done.stderr

    nothing = tepo("figure", "mine", "--store", tmp_path, *words, **own, code=2)
    assert "nothing of mine was run" in nothing.stderr

    run("ablate")
    lines = list(csv.DictReader(run("table", "--format", "csv").splitlines()))
    cells = {(line["row"], line["column"]): line for line in lines}
    for label in ("GRPO/DAPO", "GSPO"):
        key = f"laptop/{label}"
        assert 0 <= float(cells[key, "ceiling"]["value"]) <= 100
        assert cells[key, "last_third"]["text"].endswith(")")
        assert 0 <= float(cells[key, "average"]["value"]) <= 100  # test accuracy at the end, as in every table
    assert cells["laptop/GRPO/DAPO", "curve"]["text"].startswith("baseline, fit not trusted: ")
    assert cells["laptop/GSPO", "curve"]["text"].startswith("undecided: fit not trusted: ")
    assert cells["laptop/GSPO", "ceiling_delta"]["value"] == ""

    written = [Path(line) for line in run("figure", "--out", tmp_path / "figures").splitlines()]
    assert [path.name for path in written if path.suffix == ".svg"] == ["figure-mine.svg", "figure-mine-profiles.svg"]
    drawn = written[0].read_text()
    for text in ("GRPO/DAPO (fit not trusted)", "GSPO (fit not trusted)", "responses drawn"):
        assert f">{text}</text>" in drawn
    run("report", "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<figcaption>Fitted curves " in page
    assert "Fitted to validation accuracy over responses drawn" in page
