import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from tepo.integrations.lm_eval import main, write_tasks
from tepo.problems.benchmarks import PAPER, load_benchmark
from tests.integration.own_model import save_tiny
from tests.support.commands import python, tepo
from tests.support.runs import write
from tests.unit.problems.chats import FAMILIES, save_without_weights

ROOT = Path(__file__).parents[2]
ROWS = [
    {"id": "first", "problem": "Which digit is one?", "answer": "1"},
    {"id": "second", "problem": "Which digit is two?", "answer": "2"},
]
TWO = {"title": "Two", "dataset": {"path": "nobody/two", "revision": "0"}, "count": 2, "prompt": "boxed"}
TWO |= {"samples": 1, "temperature": 0.0, "max_new_tokens": 12}
ASK = """
import json, sys
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
folder, model = sys.argv[1:3]
found = simple_evaluate("hf", {"pretrained": model, "device": "cpu", "dtype": "float32"}, tasks=sys.argv[3:],
                        task_manager=TaskManager(include_path=folder), batch_size=1, bootstrap_iters=0)
print(json.dumps({"results": found["results"], "samples": found["samples"]}, default=str))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A benchmark, its problems in a folder for TEPO_DATA, and a model that boxes one of the answers."""
    folder = tmp_path_factory.mktemp("harness")
    for name, more in {"two": {}, "often": {"samples": 6, "temperature": 1.0}}.items():
        write(folder / f"evals/{name}.yaml", yaml.safe_dump(TWO | more))
        write(folder / f"data/{name}.jsonl", "".join(json.dumps(row) + "\n" for row in ROWS))
    save_tiny(folder / "tiny", [row["problem"] for row in ROWS], [row["answer"] for row in ROWS])
    return folder


@pytest.mark.disaster
@pytest.mark.lm_eval
def test_the_harness_agrees_with_tepo_eval(folder: Path) -> None:
    own = {"TEPO_PATH": str(folder), "TEPO_DATA": str(folder / "data"), "HF_HUB_OFFLINE": "1"}
    where = {"cwd": folder, "PYTHONPATH": str(ROOT), **own}
    said = python("-m", "tepo.integrations.lm_eval", "tasks", "two", "often", "--model", "tiny", **where).stdout
    assert said == "--include_path tasks --tasks tepo_two,tepo_often\n"
    done = python("-c", ASK, "tasks", "tiny", "tepo_two", "tepo_often", **where)
    answer = json.loads(done.stdout.splitlines()[-1])

    tepo("eval", "two", "--model", "tiny", "--out", "scored", "--quiet", cwd=folder, **own)
    ours = {row["problem"]: row for row in pq.read_table(folder / "scored/eval/two/samples.parquet").to_pylist()}
    theirs = {row["doc"]["id"]: row for row in answer["samples"]["tepo_two"]}
    assert set(ours) == set(theirs) == {"first", "second"}
    for name, row in theirs.items():
        assert row["arguments"][0][0] == ours[name]["prompt"]
        assert row["resps"][0][0] == ours[name]["response"]  # greedy: the same response
        assert row["accuracy"] == ours[name]["correct"]
    assert answer["results"]["tepo_two"]["accuracy,all"] == 0.5  # it boxes one of the two

    rows = answer["samples"]["tepo_often"]
    graded = [{"gold": row["doc"]["answer"], "prediction": text} for row in rows for text in row["resps"][0]]
    assert len(graded) == 12
    write(folder / "responses.jsonl", "".join(json.dumps(row) + "\n" for row in graded))
    lines = tepo("data", "grade", "responses.jsonl", "--boxed-only", cwd=folder, **own).stdout.splitlines()
    verdicts = [json.loads(line)["verdict"] for line in lines]
    for index, row in enumerate(rows):
        right = verdicts[6 * index : 6 * index + 6]
        assert (row["accuracy"], row["pass"]) == (sum(right) / 6, float(any(right)))
    assert answer["results"]["tepo_often"]["accuracy,all"] == pytest.approx(sum(verdicts) / 12)


def task(folder: Path, name: str) -> dict:
    return yaml.safe_load((folder / f"tepo_{name}.yaml").read_text().replace("!function ", ""))


def test_a_task_ends_where_a_turn_of_the_template_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen's bases have a template whose `<|im_end|>` they do not list as an end."""
    write(tmp_path / "evals/two.yaml", yaml.safe_dump(TWO))
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    model = save_without_weights(FAMILIES["base asked by ChatML"]()[0], tmp_path / "chat")
    main([str(tmp_path), "two", "--model", str(model)])
    plain = task(tmp_path, "two")
    assert plain["generation_kwargs"]["until"] == ["<|im_end|>"]
    assert plain["metadata"].items() >= {"model": str(model), "wrap": "auto"}.items()
    main([str(tmp_path), "two:deepseek_r1", "--model", str(model)])
    drawn = task(tmp_path, "two_deepseek_r1")["generation_kwargs"]
    assert [drawn.get(key) for key in ("temperature", "top_p", "top_k")] == [0.6, 0.95, 0]
    assert write_tasks(tmp_path, str(model)) == [f"tepo_{name}" for name in PAPER]
    for name in PAPER:
        benchmark, plain = load_benchmark(name), task(tmp_path, name)
        generation = plain["generation_kwargs"]
        assert (plain["repeats"], generation["max_gen_toks"]) == (benchmark.samples, benchmark.max_new_tokens)
        assert generation["do_sample"] == (benchmark.temperature > 0)
        assert generation.get("temperature", 0) == benchmark.temperature
        assert plain["metadata"]["version"] == benchmark.fingerprint
