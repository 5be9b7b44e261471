"""A sweep from file to page through the commands: planned, run with what the store has, shown in every form."""

import csv
import re
from pathlib import Path

import pytest

from tests.integration.commands import tepo
from tests.unit.training.small import SMALL, few_problems, write

pytestmark = [pytest.mark.slow, pytest.mark.disaster]

WORDS = [part for word in (*SMALL, "train.steps=1", "data.benchmarks=[add3,max4]") for part in ("--set", word)]
SCALES = "scales:\n  laptop: {models: [laptop], seeds: [0]}\n"
PLAIN = "title: one setting\nrows:\n  - {label: GSPO, objective: gspo}\n" + SCALES
SWEEP = """
title: a sweep
baseline: GSPO
rows:
  - {label: untrained, base: true}
  - {label: GSPO, objective: gspo}
vary:
  train.learning_rate: [1e-4, 4e-3]
  clip:
    own: [objective.low=3e-4, objective.high=4e-4]
    wide: [objective.low=0.2, objective.high=0.28]
"""
SETTINGS = [f"learning_rate={rate}, clip={clip}" for rate in ("1e-4", "4e-3") for clip in ("own", "wide")]
SHOWN = ("value", "low", "high", "n")


def test_a_sweep_from_plan_to_page(tmp_path: Path) -> None:
    own = few_problems(tmp_path)
    write(tmp_path / "experiments/plain.yaml", PLAIN)
    write(tmp_path / "experiments/my_sweep.yaml", SWEEP + SCALES)
    tepo("ablate", "plain", *WORDS, cwd=tmp_path, **own)

    def swept(command: str, *words: str | Path) -> str:
        done = tepo(command, "my-sweep", *WORDS, *words, cwd=tmp_path, **own)
        return done.stdout + done.stderr

    planned = swept("plan")
    # three of the four trained ones, and the base
    assert re.search(r"^5 runs, 4 to do: [\d.]+ CPU .* on two idle cores\n.*from medians over 1 measured run", planned)
    assert re.search(rf"GSPO, {SETTINGS[0]} .*done", planned)
    printed = " ".join(swept("ablate").split())  # a title is wrapped to the width of its table
    assert "Average accuracy by learning_rate, clip=wide" in printed
    assert re.search(r"\d of \d runs: GSPO, .* finished", printed)  # a line a run, where no bar can be drawn
    assert "points above GSPO at the same setting, on the same problems and seeds" in printed
    assert "5 runs, 0 to do" in swept("plan")

    lines = list(csv.DictReader(swept("table", "--format", "csv").splitlines()))
    long = {line["label"]: line for line in lines if line["column"] == "average"}
    assert list(long) == [f"{row}, {setting}" for setting in SETTINGS for row in ("untrained", "GSPO")]
    for label, whole in long.items():
        row, rate, clip = label.split(", ")
        (cell,) = (one for one in lines if (one["row"], one["column"]) == (row, rate) and one["block"].endswith(clip))
        assert [cell[key] for key in SHOWN] == [whole[key] for key in SHOWN]
    assert len({long[f"GSPO, {setting}"]["value"] for setting in SETTINGS}) > 1  # the settings were trained with

    written = [Path(line).name for line in swept("figure", "--out", "figures").splitlines()]
    assert "figure-my_sweep-1-map.svg" in written
    swept("report", "--out", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert all(f"<figcaption>Training curves: {setting}</figcaption>" in page for setting in SETTINGS)
