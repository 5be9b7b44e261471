"""A user's own Python: scripts, a notebook, a loop of training, rewards."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tepo.training.loop import train
from tepo.training.run import Run
from tests.support.commands import TIME_LIMIT, python, tepo
from tests.support.runs import SMALL, assert_same_run, interrupted, lasting, small, weights, write, write_study

pytestmark = pytest.mark.disaster
ROOT = Path(__file__).parents[2]
FEW = [*SMALL, "train.steps=2", "data.benchmarks=[sums]"]
BENCHMARK = {"title": "Sums", "dataset": {"path": "sums.jsonl"}, "count": 12, "prompt": "raw", "samples": 1}
BENCHMARK |= {"temperature": 0.0, "max_new_tokens": 8}
SCRIPT = """
import tepo
print("started")
result = tepo.run("ours", seeds=[0], progress=False)
frame = result.table
print(frame.to_json(orient="records"))
print(len(result.runs), result.save_page("page.html").stat().st_size > 10_000, "GRPO" in result.to_markdown())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("python")
    rows = {"GRPO": "grpo_dapo", "TEPO": "tepo"}
    write_study(folder, "ours", rows, *FEW, baseline="GRPO")
    write(folder / "evals/sums.yaml", yaml.safe_dump(BENCHMARK))
    rows = [{"id": n, "problem": f"{n + 111}+{n + 218}=", "answer": str(2 * n + 329)} for n in range(12)]
    write(folder / "evals/sums.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write(folder / "cell.py", SCRIPT)
    return folder


def test_a_script_without_a_guard_runs_a_study_once(folder: Path) -> None:
    where = {"TEPO_PATH": str(folder), "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = python("cell.py", cwd=folder, **where)
    started, table, rest = done.stdout.splitlines()
    assert (started, rest, done.stderr) == ("started", "2 True True", "")
    first, second = json.loads(table)
    assert (first["label"], first["verdict"], first["seeds"], first["n"]) == ("GRPO", "baseline", [0], 12)
    assert second["difference"] == pytest.approx(second["average"] - first["average"])
    assert set(first["runs"] + second["runs"]) == {path.parent.name for path in folder.glob("runs/*/manifest.json")}
    for log in folder.glob("runs/*/log.txt"):
        assert "started" not in log.read_text()  # the script was not run again in a process of the study
    shown = tepo("table", "ours", "--format", "csv", cwd=folder, TEPO_PATH=str(folder)).stdout
    assert all(run["label"] in shown for run in (first, second))


def test_the_example_of_a_loop_of_ones_own_learns() -> None:
    assert float(python(ROOT / "examples/own_loop.py", PYTHONPATH=str(ROOT)).stdout.split()[-1]) > 0.9


@pytest.mark.jupyter
def test_the_notebook_of_the_examples(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a real kernel, with fewer steps and a smaller study: two runs side by side, tables and bars in the cells."""
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("TEPO_PATH", os.pathsep.join([".", str(folder)]))
    for name, value in {"PYTHONPATH": ROOT, "HF_HUB_OFFLINE": 1, "IPYTHONDIR": tmp_path / "ipython"}.items():
        monkeypatch.setenv(name, str(value))
    notebook = nbformat.read(ROOT / "examples/first_look.ipynb", as_version=4)
    few = ", ".join(f'"{word}"' for word in ("seed=3", *FEW))
    changes = {"seeds=[0, 1]": "seeds=[0], jobs=2", '"panel_e", ': '"ours", ', '"seed=3"': few}
    for old, new in changes.items():
        assert sum(old in cell.source for cell in notebook.cells) == 1
        for cell in notebook.cells:
            cell.source = cell.source.replace(old, new)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    NotebookClient(notebook, timeout=TIME_LIMIT, resources={"metadata": {"path": str(tmp_path)}}).execute()

    outputs = [cell.outputs for cell in notebook.cells if "outputs" in cell]
    shown, table, trained, metrics = ("\n".join(map(text_of, cell)) for cell in outputs)
    assert "baseline" in table
    assert "| GRPO" in shown
    assert "weights: " in trained
    assert "critic/score/mean" in metrics
    assert len(list(tmp_path.glob("runs/*/manifest.json"))) == 3
    assert (tmp_path / "panel_e.html").is_file()
    widgets = notebook.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]["state"].values()
    bars = [text_of(output) for widget in widgets for output in widget["state"].get("outputs", ())]
    assert any("2 runs" in bar and "%" in bar for bar in bars), bars  # the last frame may come after the cell's end


def text_of(output: Any) -> str:
    """What an output shows: printed, as Markdown or as text."""
    return output.get("text") or output["data"].get("text/markdown") or output["data"].get("text/plain", "")


# rewards --------------------------------------------------------------------------------------------------------------
LENGTH = "def reward(problem, response):\n    return max(0.0, 1 - len(response) / 60)\n"


def test_a_run_learns_what_its_own_reward_asks_for(tmp_path: Path) -> None:
    file = write(tmp_path / "own.py", LENGTH)
    words = (f"data.reward={file}", "train.steps=8", "train.learning_rate=5e-4", "data.benchmarks=[]")
    rows = lasting(train(Run(small(tmp_path, *words))))
    assert all(row["critic/score/mean"] == pytest.approx(row["reward/own/mean"], abs=1e-6) for row in rows)
    assert all(row["reward/failed"] == 0 for row in rows)
    assert rows[-1]["response_length/mean"] < 0.7 * rows[0]["response_length/mean"]
    assert rows[-1]["critic/score/mean"] > rows[0]["critic/score/mean"] + 0.1


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    file = write(tmp_path / "own.py", LENGTH)
    mapping = f"data.reward={{correct: grader, own: {{file: {file}, weight: 0.3}}}}"
    words = (mapping, "objective=gdpo", "data.flip_rewards=0.2", "train.staleness=1", "grader.workers=1")
    whole = train(Run(small(tmp_path / "whole", *words)))
    begun = interrupted(small(tmp_path / "parts", *words), 2)
    again = train(Run(small(tmp_path / "parts", *words, "grader.workers=2")))
    assert again == begun.path
    assert_same_run(whole, again)
    assert all(row["rollout/flipped"] > 0 for row in lasting(whole))


def test_the_example_trains(tmp_path: Path) -> None:
    words = (*SMALL, "data=laptop_short", "objective=gdpo", "train.steps=2", f"store={tmp_path / 'runs'}")
    tepo("train", *words, cwd=tmp_path, TEPO_PATH=str(ROOT / "examples/own_reward"))
    (run,) = (path.parent for path in tmp_path.glob("runs/*/config.json"))
    assert {"reward/correct/mean", "reward/short/mean"} <= set(lasting(run)[0])
    assert weights(run)
