import base64
import csv
import gzip
import json
import re
from pathlib import Path

import pytest

from tepo.objectives import load_objective
from tests.support.commands import tepo
from tests.support.runs import SMALL, few_problems, write

pytestmark = pytest.mark.slow

WORDS = [part for word in (*SMALL, "train.steps=1", "data.benchmarks=[add3,max4]") for part in ("--set", word)]
STUDY = """
title: a study
rows:
  - {label: untrained, base: true}
  - {label: "TEPO ({steps} steps)", objective: tepo, laptop: [objective.beta=1]}
scales:
  laptop: {models: [laptop], seeds: [0]}
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("shown")
    own = few_problems(place)
    write(place / "experiments/mine.yaml", STUDY)
    done = tepo("ablate", "mine", "--store", place / "runs", *WORDS, **own)
    assert "TEPO (1 steps)" in done.stdout
    return place / "runs"


def run_of(store: Path) -> Path:
    (folder,) = (path.parent for path in store.glob("*/manifest.json"))
    return folder


def shown(store: Path, command: str, *words: str | Path) -> str:
    return tepo(command, "mine", "--store", store, *words, *WORDS, TEPO_PATH=str(store.parent)).stdout


def test_eval_and_table_print_the_same_intervals(store: Path) -> None:
    """Problems lie in the file as add3-2, add3-10; a table's frame has them as add3-10, add3-2. All of a run are the
    benchmarks of its data."""
    lines = list(csv.DictReader(shown(store, "table", "--format", "csv").splitlines()))
    models = {"untrained": ("add3", "max4", "--model", "package:laptop")}
    models["TEPO (1 steps)"] = ("all", "--model", run_of(store).name)
    for label, words in models.items():
        done = tepo("eval", *words, "--store", store, "--quiet", TEPO_PATH=str(store.parent))
        printed = {}
        for line in done.stdout.splitlines():
            cells = [cell.strip() for cell in line.split("│")]
            printed |= {cells[1]: cells[3]} if "±" in line else {}
        table = {line["column"]: line for line in lines if line["label"] == label}
        for name, column in {
            "add3": "add3",
            "max4": "max4",
            "all samples": "average",
            "mean of benchmarks": "average",  # of benchmarks of one size, so the table has it once
        }.items():
            value, low, high = (float(table[column][key]) for key in ("value", "low", "high"))
            assert printed[name] == f"{value:.2f} ± {(high - low) / 2:.2f}"
        for name in ("add3", "max4"):  # every digit, not those that are printed
            (folder,) = store.glob(f"{'base-*' if label == 'untrained' else run_of(store).name}/eval/{name}")
            ends = json.loads((folder / "result.json").read_text())["interval"]
            assert [f"{100 * end:.6g}" for end in ends] == [table[name]["low"], table[name]["high"]]


def test_configuration_and_page_have_the_objective_of_the_loss(store: Path) -> None:
    run = run_of(store)
    saved = json.loads((run / "config.json").read_text())
    objective = saved["full"]["objective"]
    assert (objective["constants"]["beta"], objective["formula"]["kl"]) == (1, "kl_old")
    assert saved["config"]["objective"] == load_objective("tepo", {"beta": 1, "kl": "kl_old"}).digest
    page = store.parent / "page.html"
    shown(store, "report", "--out", page)
    (held,) = re.findall(r'id="run-rows">([^<]+)<', page.read_text())
    rows = gzip.decompress(base64.b64decode(held)).decode()
    assert f'<div id="run-{run.name}">0: finished' in rows
    assert "objective.beta=1" in rows
