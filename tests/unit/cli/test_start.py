import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import tepo
from tepo.store.cost import Cost
from tepo.store.run_folder import RunFolder
from tests.support.commands import python
from tests.support.commands import tepo as command

HEAVY = ("torch", "transformers", "vllm", "deepspeed", "altair", "vl_convert", "sympy", "scipy.stats")
CODE = """
import json, sys
from tepo_cli.main import main
try:
    main()
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def imported(*words: str, cwd: Path) -> set[str]:
    return set(json.loads(python("-c", CODE, *words, cwd=cwd).stderr.splitlines()[-1]))


@pytest.mark.parametrize("words", [("list",), ("plan", "panel-e"), ("table", "panel-e")], ids=" ".join)
def test_what_is_read_from_the_store_imports_no_torch(words: tuple[str, ...], tmp_path: Path) -> None:
    priced = Cost("laptop", "tepo", steps=36, benchmarks=7, cpu_s=60, training_s=50, measuring_s=5, tokens=10**6)
    (tmp_path / "runs/0123456789ab").mkdir(parents=True)
    RunFolder(tmp_path / "runs/0123456789ab").add_cost(priced)  # else `plan` probes two steps
    assert sorted(imported(*words, cwd=tmp_path) & {*HEAVY, "tepo.problems.grader.grader"}) == []


def test_a_dry_run_imports_torch_for_the_objective_alone(tmp_path: Path) -> None:
    words = ("train", "--dry-run", "--show-config")  # the first prompt takes a tokenizer, and so transformers
    assert sorted(imported(*words, cwd=tmp_path) & set(HEAVY)) == ["torch"]


def test_a_missing_file_is_named_without_torch(tmp_path: Path) -> None:
    said = python("-c", CODE, "train", "data=mine.jsonl", cwd=tmp_path, code=2).stderr.splitlines()
    assert sorted(set(json.loads(said[-1])) & set(HEAVY)) == []
    assert "no such file" in "".join(said[:-1])


def test_what_needs_no_tokenizer_is_refused_without_transformers(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def reward(problem, response) return 1")
    (tmp_path / "golds.csv").write_text("question,answer\n4,2+2=\n6,3+3=\n")
    model = ("--model", "package:laptop")
    mistakes = {
        ("eval", "add3", *model, "--dtype", "int8"): "not one of",
        ("eval", "add3", *model, "--wrap", "chat"): "not one of",
        ("chat", "runs/nowhere"): "no model and no run",
        ("chat", "package:laptop", "--backend", "vlm"): "unknown backend",
        ("train", "data.reward=broken.py"): "not valid Python",
        ("train", "data=golds.csv"): "no reward would be given",
    }
    code = """
import json, sys
from typer.testing import CliRunner
from tepo_cli.main import app
for words in json.loads(sys.argv[1]):
    ended = CliRunner().invoke(app, words)
    code = getattr(ended.exception, "exit_code", ended.exit_code)
    print(json.dumps([code, "transformers" in sys.modules, f"{ended.output} {ended.exception}"]))
"""
    lines = python("-c", code, json.dumps(list(mistakes)), cwd=tmp_path).stdout.splitlines()
    for (words, hint), line in zip(mistakes.items(), lines, strict=True):
        exit_code, loaded, said = json.loads(line)
        assert (exit_code, loaded) == (2, False), words
        assert hint in said


@pytest.mark.slow
def test_a_finished_run_is_shown_without_torch(tmp_path: Path) -> None:
    words = ("train", "train.steps=1", "train.prompts_per_step=8", "train.mini_batch_prompts=8", "train.max_rounds=8")
    words += ("data.benchmarks=[]", "--quiet")
    command(*words, cwd=tmp_path)
    assert sorted(imported(*words, cwd=tmp_path) & set(HEAVY)) == []


@pytest.mark.slow
def test_finished_results_are_shown_without_torch(tmp_path: Path) -> None:
    words = ("eval", "add3", "--model", "package:laptop", "--limit", "5", "--quiet")
    command(*words, cwd=tmp_path)
    assert sorted(imported(*words, cwd=tmp_path) & set(HEAVY)) == []


def test_version_and_completion_answer_at_once() -> None:
    """As bash asks: what may follow `tepo ta`. Neither imports more than --help does."""
    heavy = ["rich", "hydra", "omegaconf", "numpy", "pandas", "torch"]
    code = (
        "import sys\nfrom tepo_cli.main import main\ntry:\n    main()\n"
        f"finally:\n    print([n for n in {heavy} if n in sys.modules], file=sys.stderr)"
    )
    asked = {"_TEPO_COMPLETE": "complete_bash", "COMP_WORDS": "tepo ta", "COMP_CWORD": "1"}
    cases = (
        (["--version"], {}, f"tepo {tepo.__version__}\n"),
        ([], asked, "table\n"),
        (["plan", "--help"], {}, "--card"),
    )
    for words, environment, answer in cases:
        done = python("-c", code, *words, **environment)
        assert answer in done.stdout
        assert done.stderr == "[]\n"


def test_completion_is_shown_for_the_shell_that_asks() -> None:
    # true: else bash makes way for python, and no shell is there to find
    script = f"{shlex.quote(sys.executable)} -m tepo_cli --show-completion; true"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert "complete -o default -F _tepo_completion tepo" in done.stdout, done.stderr
