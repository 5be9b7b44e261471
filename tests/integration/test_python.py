import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.commands import TIME_LIMIT, python, tepo
from tests.support.runs import write

ROOT = Path(__file__).parents[2]
SMALL = ["train.steps=2", "train.prompts_per_step=8", "train.samples_per_prompt=8", "train.mini_batch_prompts=4"]
STUDY = {
    "title": "Ours",
    "baseline": "GRPO",
    "rows": [{"label": "GRPO", "objective": "grpo_dapo"}, {"label": "TEPO", "objective": "tepo"}],
    "scales": {"laptop": {"models": ["laptop"], "seeds": [0], "overrides": [*SMALL, "data.benchmarks=[sums]"]}},
}
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
    write(folder / "experiments/ours.yaml", yaml.safe_dump(STUDY))
    write(folder / "evals/sums.yaml", yaml.safe_dump(BENCHMARK))
    rows = [{"id": n, "problem": f"{n + 111}+{n + 218}=", "answer": str(2 * n + 329)} for n in range(12)]
    write(folder / "evals/sums.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write(folder / "cell.py", SCRIPT)
    return folder


@pytest.mark.disaster
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


@pytest.mark.disaster
def test_the_example_of_a_loop_of_ones_own_learns() -> None:
    assert float(python(ROOT / "examples/own_loop.py", PYTHONPATH=str(ROOT)).stdout.split()[-1]) > 0.9


FEW = "".join(f', "{word}"' for word in ["data.benchmarks=[sums]", *SMALL])


@pytest.mark.disaster
@pytest.mark.jupyter
def test_the_notebook_of_the_examples(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a real kernel, with fewer steps and a smaller study: two runs side by side, tables and bars in the cells."""
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("TEPO_PATH", os.pathsep.join([".", str(folder)]))
    for name, value in {"PYTHONPATH": ROOT, "HF_HUB_OFFLINE": 1, "IPYTHONDIR": tmp_path / "ipython"}.items():
        monkeypatch.setenv(name, str(value))
    notebook = nbformat.read(ROOT / "examples/first_look.ipynb", as_version=4)
    for old, new in (
        ("seeds=[0, 1]", "seeds=[0], jobs=2"),
        ('"panel_e", ', '"ours", '),
        ('"seed=3"', f'"seed=3"{FEW}'),
    ):
        assert sum(old in cell.source for cell in notebook.cells) == 1
        for cell in notebook.cells:
            cell.source = cell.source.replace(old, new)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    NotebookClient(notebook, timeout=TIME_LIMIT, resources={"metadata": {"path": str(tmp_path)}}).execute()

    shown, table, trained, metrics = (shown_in(cell) for cell in notebook.cells if "outputs" in cell)
    assert "baseline" in table
    assert "| GRPO" in shown
    assert "weights: " in trained
    assert "critic/score/mean" in metrics
    assert len(list(tmp_path.glob("runs/*/manifest.json"))) == 3
    assert (tmp_path / "panel_e.html").is_file()
    widgets = notebook.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]["state"].values()
    bars = [text_of(output) for widget in widgets for output in widget["state"].get("outputs", ())]
    assert any("2 runs" in bar and "%" in bar for bar in bars), bars  # the last frame may come after the cell's end


def shown_in(cell: Any) -> str:
    return "\n".join(map(text_of, cell.outputs))


def text_of(output: Any) -> str:
    """What an output shows: printed, as Markdown or as text."""
    return output.get("text") or output["data"].get("text/markdown") or output["data"].get("text/plain", "")
