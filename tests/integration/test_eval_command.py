import importlib
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from tepo.policy.model.model_location import resolve
from tests.integration.published import NAMES, make_sets
from tests.support.commands import OwnSignal, Started, _run_module, alone, started, tepo, until
from tests.unit.problems.chats import FAMILIES, byte_tokenizer, save_without_weights

LAPTOP = ("--model", "package:laptop", "--quiet")


def rows_of(folder: Path) -> list[dict]:
    return pq.read_table(folder / "samples.parquet").to_pylist()


def test_dry_run_shows_the_first_prompt_and_writes_nothing(tmp_path: Path) -> None:
    sets = make_sets(tmp_path / "sets", prompt="boxed")
    words = ("eval", "gcd", "amc", "--dry-run", "--limit", "2", "--store", tmp_path / "runs", "--model")
    plain = save_without_weights(byte_tokenizer(eos_token="</s>"), tmp_path / "plain")
    done = tepo(*words, plain, **sets)
    assert "gcd: 2 problems x 4 samples at temperature 1, at most 72 tokens; backend torch; to do" in done.stdout
    assert "\n--- first prompt (gcd-" in done.stdout
    (first, *others) = words
    r1 = tepo(first, "gcd:deepseek_r1:samples2", *others[2:], plain, **sets).stdout
    assert "gcd:deepseek_r1:samples2: 2 problems x 2 samples at temperature 0.6, top_p 0.95, at most 32,768" in r1
    asked = json.loads((tmp_path / "sets/data/amc.jsonl").read_text().split("\n")[0])["problem"]
    instruction = "Please reason step by step, and put your final answer within \\boxed{}."
    assert f"--- first prompt (amc-0)\nQuestion:\n{asked}\n\n{instruction}\n\nAnswer:\n\n---" in done.stdout
    chat = save_without_weights(FAMILIES["content in parts"]()[0], tmp_path / "chat")
    shown = f"«<|im_start|>»user\n{asked}\n\n{instruction}«<|im_end|>»\n«<|im_start|>»assistant\n\n---"
    assert f"--- first prompt (amc-0)\n{shown}" in tepo(*words, chat, **sets).stdout
    assert not (tmp_path / "runs").exists()


def test_all_of_a_model_is_the_papers_seven_with_both_averages(tmp_path: Path) -> None:
    sets = make_sets(tmp_path / "sets")
    words = ("eval", "all", "--model", resolve("package:laptop"), "--quiet", "--store", tmp_path / "runs")
    done = tepo(*words, **sets)
    (base,) = (tmp_path / "runs").iterdir()
    assert sorted(path.name for path in (base / "eval").iterdir()) == sorted(NAMES)
    correct = {name: [row["correct"] for row in rows_of(base / "eval" / name)] for name in NAMES}
    assert {name: len(found) for name, found in correct.items()} == {
        name: 6 if name in NAMES[:3] else 3 for name in NAMES
    }
    everything = np.mean([value for found in correct.values() for value in found])
    plain = np.mean([np.mean(found) for found in correct.values()])
    assert 0 < plain != everything
    lines = {line.split("│")[1].strip(): line for line in done.stdout.splitlines() if line.startswith("│")}
    assert f" {100 * everything:.2f} ±" in lines["all samples"]
    assert f" {100 * plain:.2f} ±" in lines["mean of benchmarks"]
    shown = tepo(*words, "--dry-run", **sets)
    assert shown.stdout.count("; done; ") == 7


def test_a_hub_id_without_an_owner_is_a_model(tmp_path: Path) -> None:
    """Old ids such as gpt2. The model lies in the hub's cache, as a download leaves it there."""
    snapshot = tmp_path / "hub/hub/models--gpt2/snapshots" / ("0" * 40)
    shutil.copytree(resolve("package:laptop"), snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs/main").write_text("0" * 40)
    offline = {"HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    words = ("eval", "add3", "--limit", "2", "--quiet", "--store", tmp_path / "runs", "--model")
    alone(*words, "gpt2", **offline)
    (result,) = (tmp_path / "runs").glob("base-*/eval/add3@first2/result.json")
    assert json.loads(result.read_text())["task"]["policy"] == {"weights": f"gpt2@{'0' * 40}"}


def test_a_killed_evaluation_goes_on_and_gives_the_same_rows(tmp_path: Path) -> None:
    words = ("eval", "max4", *LAPTOP, "--limit", "128", "--store")
    after_a_part = OwnSignal(signal.SIGKILL, tmp_path, "os.rename */parts/*.parquet", 2)
    started(*words, tmp_path / "cut", own_signal=after_a_part).end(code=-signal.SIGKILL)
    (part,) = (tmp_path / "cut").rglob("parts/*.parquet")
    kept = pq.read_table(part).to_pylist()
    for place in ("cut", "whole"):
        tepo(*words, tmp_path / place)
    cut, whole = (next((tmp_path / place).rglob("samples.parquet")).parent for place in ("cut", "whole"))
    assert len(rows_of(whole)) == 512
    assert rows_of(cut) == rows_of(whole)
    assert rows_of(cut)[: len(kept)] == kept
    assert (cut / "result.json").read_text() == (whole / "result.json").read_text()


def stopped_in(place: str, *words: str) -> None:
    """The command, which stops itself (SIGSTOP) when it first comes to a function."""
    module, _, name = place.rpartition(".")
    holder = importlib.import_module(module)
    real = getattr(holder, name)

    def stop(*arguments: Any) -> Any:
        setattr(holder, name, real)
        os.kill(os.getpid(), signal.SIGSTOP)
        return real(*arguments)

    setattr(holder, name, stop)
    _run_module("tepo_cli", *words)


def test_a_second_evaluation_or_regrading_of_a_run_leaves_the_first_alone(tmp_path: Path) -> None:
    measured = ("eval", "add3", *LAPTOP, "--limit", "5", "--store", str(tmp_path))
    graded = ("data", "regrade", str(tmp_path))
    first_of = (("tepo.evaluation.evaluate.ask", measured), ("tepo.evaluation.regrade.grade_again", graded))
    for (place, words), seconds in zip(first_of, ([measured], [graded, (*measured, "--seed", "1")]), strict=True):
        first = Started(stopped_in, place, *words)
        until(lambda first=first: " T " in Path(f"/proc/{first.pid}/stat").read_text(), first)
        before = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
        for second in seconds:
            done = tepo(*second, code=3)
            assert "error: another process has this run (measure)" in done.stderr
        assert {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()} == before
        os.kill(first.pid, signal.SIGCONT)
        done = first.end()
    (folder,) = (path.parent for path in tmp_path.rglob("result.json"))
    assert len(rows_of(folder)) == 20
