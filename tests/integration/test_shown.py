"""What is shown of a run is what was trained and measured: explain, eval, table and page about one store."""

import base64
import csv
import gzip
import json
import re
from pathlib import Path

import pytest

from tepo import __version__
from tepo.common import provenance
from tepo.objectives import load_objective
from tepo.store.samples_file import read_table
from tests.integration.commands import tepo
from tests.unit.training.small import SMALL, few_problems, write

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


def shown_table(store: Path) -> list[dict[str, str]]:
    done = tepo("table", "mine", "--store", store, "--format", "csv", *WORDS, TEPO_PATH=str(store.parent))
    return list(csv.DictReader(done.stdout.splitlines()))


def test_explain_says_what_a_run_trained(store: Path) -> None:
    run = run_of(store)
    for name in (run, run.name, run.name[:5]):
        done = tepo("explain", name, "--store", store, "--vs", "tepo")
        first, second = done.stdout.splitlines()[:2]
        assert first == f"run {run.name}: model laptop, data laptop, seed 0, 1 step, finished"
        assert second.startswith(f"{run.name} (tepo): TEPO")
        constants, differences = done.stdout.split("Differs from tepo (- there, + here)\n")
        assert re.search(r"\n  beta = 1 ", constants)
        assert "\n  kl = kl_old\n" in constants
        assert "- kl: k3(d)\n  + kl: kl_old\n  - beta = 0.001\n  + beta = 1\n" in differences
    same = tepo("explain", "tepo", "beta=1", "kl=kl_old", "--store", store, "--vs", run.name)
    assert f"No difference from {run.name} (tepo)" in same.stdout
    assert "As shipped." in tepo("explain", "tepo", "--store", store).stdout
    for words, message in {
        (run.name, "beta=2"): "the settings of a run are those it trained with",
        (run.name + "0",): f"where '{run.name}' is the nearest run",
        ("tepoo", "--vs", run.name): "did you mean 'tepo'",
    }.items():
        wrong = tepo("explain", *words, "--store", store, code=2)
        assert message in wrong.stderr


def test_the_beginning_of_an_id_must_name_one_run(store: Path, tmp_path: Path) -> None:
    own = run_of(store).name
    for name in ("abc1", "abc2", own):
        (tmp_path / name).mkdir()
        for file in ("config.json", "manifest.json"):
            (tmp_path / name / file).write_bytes((run_of(store) / file).read_bytes())
    several = tepo("explain", "abc", "--store", tmp_path, code=2)
    assert "2 runs begin with 'abc': abc1, abc2" in several.stderr
    assert tepo("explain", own[:6], "--store", tmp_path).stdout.startswith(f"run {own}: ")


def test_eval_and_table_print_the_same_intervals(store: Path) -> None:
    """Problems lie in the file as add3-2, add3-10; a table's frame has them as add3-10, add3-2."""
    lines = shown_table(store)
    models = {"untrained": "package:laptop", "TEPO (1 steps)": run_of(store).name}
    for label, model in models.items():
        done = tepo("eval", "add3", "max4", "--model", model, "--store", store, "--quiet", TEPO_PATH=str(store.parent))
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
            (folder,) = store.glob(f"{'base-*' if model.startswith('package') else model}/eval/{name}")
            ends = json.loads((folder / "result.json").read_text())["interval"]
            assert [f"{100 * end:.6g}" for end in ends] == [table[name]["low"], table[name]["high"]]


def test_page_and_configuration_show_the_objective_of_the_loss(store: Path) -> None:
    saved = json.loads((run_of(store) / "config.json").read_text())
    objective = saved["full"]["objective"]
    assert (objective["constants"]["beta"], objective["formula"]["kl"]) == (1, "kl_old")
    assert saved["config"]["objective"] == load_objective("tepo", {"beta": 1, "kl": "kl_old"}).digest
    page = store.parent / "page.html"
    tepo("report", "mine", "--store", store, "--out", page, *WORDS, TEPO_PATH=str(store.parent))
    text = page.read_text()
    (held,) = re.findall(r'id="run-rows">([^<]+)<', text)
    rows = gzip.decompress(base64.b64decode(held)).decode()
    assert f'<div id="run-{run_of(store).name}">0: finished' in rows
    assert "objective.beta=1" in rows
    said = re.sub("<[^>]+>", "", text[text.index('id="methods"') :])
    assert "TEPO (1 steps)" in said
    assert "&#x003B2;&#x0003D;1" in said, "beta, among the constants"
    stored = [read_table(run_of(store) / "eval" / name / "samples.parquet")["problem"] for name in ("add3", "max4")]
    count = sum(len(problems.unique()) for problems in stored)
    assert f"{count} of {count} benchmark problems, with all their stored responses, of 2 runs" in text
    foot = text[text.index('<footer id="provenance"') :]
    assert f"<li>tepo {__version__}" in foot
    assert "different versions" not in text


def test_stored_responses_alone_and_beside_another_run(store: Path) -> None:
    run = run_of(store)
    (base,) = store.glob("base-*")
    problems = read_table(run / "eval" / "add3" / "samples.parquet").to_pandas().groupby("problem", sort=False)
    alone = tepo("responses", run.name[:5], "add3", "--store", store)
    heads = [line.split("  ")[0] for line in alone.stdout.splitlines() if line[0] != " "]
    assert heads == list(problems.groups)
    for right in (int(rows["correct"].sum()) for _, rows in problems):
        assert f"{run.name[:5]}: {right} of " in alone.stdout
    both = tepo("responses", run, "add3", "--vs", base.name, "--problem", heads[0], "--store", store)
    assert [line.split(":")[0].strip() for line in both.stdout.splitlines() if " right" in line and " of " in line] == [
        str(run),
        base.name,
    ]
    for words, message in {
        (run.name, "add4"): "did you mean 'add3'",
        ("nobody", "add3"): "no run 'nobody'",
        (run.name, "add3", "--show", "disagree"): "--vs RUN",
        (run.name, "add3", "--problem", "add3-x"): f"for example {heads[0]}",
    }.items():
        wrong = tepo("responses", *words, "--store", store, code=2)
        assert message in wrong.stderr


def test_every_result_says_where_it_comes_from(store: Path) -> None:
    run = run_of(store)
    (base,) = store.glob("base-*")
    names = {
        run: "train",
        **{folder / "eval" / name: "evaluate" for folder in (run, base) for name in ("add3", "max4")},
    }
    found = {folder: provenance.sessions(folder) for folder in names}
    for folder, what in names.items():
        assert [session["what"] for session in found[folder]] == [what]
    for (session,) in found.values():
        assert session["started"] <= session["ended"]
        assert (session["threads"], session["tepo"]) == (1, __version__)
    before = shown_table(store)
    kept = (run / provenance.FILE).read_text()
    (run / provenance.FILE).write_text(kept.replace(f'"torch": "{found[run][0]["torch"]}"', '"torch": "0.4"'))
    words = ("table", "mine", "--store", store, "--format", "markdown", *WORDS)
    note = tepo(*words, TEPO_PATH=str(store.parent)).stdout
    assert f"different versions or machines: torch {found[run][0]['torch']} and 0.4." in note
    assert shown_table(store) == before, "a note, and nothing else"
    (run / provenance.FILE).unlink()  # a run of an older version, or one copied without it
    assert shown_table(store) == before
    (run / provenance.FILE).write_text(kept)
