"""A sweep from file to figure through the commands: planned, run with what the store has, shown in every form."""

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


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vary")
    own = few_problems(folder)
    write(folder / "experiments/plain.yaml", PLAIN)
    (folder / "experiments" / "my_sweep.yaml").write_text(SWEEP + SCALES)
    tepo("ablate", "plain", "--store", folder / "runs", *WORDS, **own)
    return folder / "runs"


def swept(store: Path, command: str, *words: str | Path, name: str = "my-sweep") -> str:
    done = tepo(command, name, "--store", store, *WORDS, *words, cwd=store.parent, TEPO_PATH=str(store.parent))
    return done.stdout + done.stderr


def test_a_sweep_from_plan_to_page(store: Path) -> None:
    planned = swept(store, "plan")
    # three of the four trained ones, and the base
    assert re.search(r"^5 runs, 4 to do: [\d.]+ CPU .* on two idle cores\n.*from medians over 1 measured run", planned)
    for setting in SETTINGS:
        assert len(re.findall(rf"GSPO, {setting} ", planned)) == 1
    assert re.search(rf"GSPO, {SETTINGS[0]} .*done", planned)

    printed = " ".join(swept(store, "ablate").split())  # a title is wrapped to the width of its table
    assert "4 runs" in printed
    assert "Average accuracy by learning_rate, clip=wide" in printed
    assert "points above GSPO at the same setting, on the same problems and seeds" in printed
    assert "5 runs, 0 to do" in swept(store, "plan")

    lines = list(csv.DictReader(swept(store, "table", "--format", "csv").splitlines()))
    long = {line["label"]: line for line in lines if line["column"] == "average"}
    assert list(long) == [f"{row}, {setting}" for setting in SETTINGS for row in ("untrained", "GSPO")]
    for setting in SETTINGS:
        rate, clip = setting.split(", ")
        for row in ("untrained", "GSPO"):
            (cell,) = (
                line for line in lines if (line["row"], line["column"]) == (row, rate) and line["block"].endswith(clip)
            )
            assert [cell[key] for key in ("value", "low", "high", "n")] == [
                long[f"{row}, {setting}"][key] for key in ("value", "low", "high", "n")
            ]
    assert len({long[f"GSPO, {setting}"]["value"] for setting in SETTINGS}) > 1  # the settings were trained with

    written = [Path(line) for line in swept(store, "figure", "--out", store.parent / "figures").splitlines()]
    kinds = {"differences": 4, "map": 2, "lines": 2, "curves": 4, "times": 4}  # of settings and of values of the clip
    assert {kind: sum(kind in path.name for path in written) for kind in kinds} == kinds
    assert "Loss over the grid" in printed
    (drawn,) = (path.read_text() for path in written if path.name == "figure-my_sweep-1-map.svg")
    for text in ("learning_rate", "4e-3", "untrained", "GSPO"):
        assert f">{text}</text>" in drawn

    swept(store, "report", "--out", store.parent / "page.html")
    page = (store.parent / "page.html").read_text()
    for setting in SETTINGS:
        assert f"<figcaption>Training curves: {setting}</figcaption>" in page


def test_what_cannot_be_drawn_is_said(store: Path) -> None:
    (store.parent / "empty").mkdir()
    for name, runs, message in (
        ("my-sweeep", "runs", "did you mean 'my_sweep'"),
        ("my-sweep", "empty", "nothing of my_sweep was run"),
    ):
        done = tepo("figure", name, "--store", store.parent / runs, TEPO_PATH=str(store.parent), code=2)
        assert message in done.stderr
