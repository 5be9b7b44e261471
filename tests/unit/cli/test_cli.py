import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tepo import __version__
from tepo.common.errors import UserError
from tepo.store.cost import Cost
from tepo.store.run_folder import RunFolder
from tepo_cli.commands.problems import _rows
from tests.support.commands import python, tepo
from tests.support.runs import SMALL, few_problems, write


def test_a_dry_run_answers_and_leaves_nothing(tmp_path: Path) -> None:
    words = ("train", "objective=grpo_dapo", "seed=3", "--dry-run", "--store", tmp_path)
    lines = tepo(*words, "--evaluate").stdout.splitlines()
    said = {line[:11].strip(): line[11:] for line in lines}
    assert said["trains"] == "grpo_dapo, seed 3, scale laptop"
    assert re.fullmatch(rf"{tmp_path}/[0-9a-f]{{12}}: new", said["run"])
    shown = yaml.safe_load(tepo(*words, "--show-config").stdout)
    assert (shown["seed"], shown["train"]["learning_rate"]) == (3, 0.0001)
    assert "add --dry-run" in tepo("train", "--show-config", code=2).stderr
    assert not list(tmp_path.iterdir())


def test_a_run_that_collapses_is_done_and_says_so(tmp_path: Path) -> None:
    words = ("train", *SMALL, "train.max_new_tokens=1", "--store", tmp_path)
    for _ in range(2):
        assert "training ended with collapse at step 1: all responses to the 16 prompts" in tepo(*words).stderr
    (run,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert (run / "checkpoints" / "step_000000" / "model.safetensors").exists()


def test_rows_that_cannot_be_graded_are_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    good = b'\xef\xbb\xbf{"gold": 5, "prediction": null}\r\n\n{"gold": "5", "prediction": "\xed\xa0\x80"}\n'
    file.write_bytes(good + b'[1]\n{"gold": "5", "prediction": "\xe9"}\n{"gold": ["5"], "prediction": "5"}\n')
    with pytest.raises(UserError, match=r"3 of 5 rows cannot be graded:\n  line 4: .*\n  line 5: .*\n  line 6: "):
        _rows(str(file))
    file.write_bytes(good)  # a byte order mark and Windows line ends do no harm
    assert [(row["gold"], row["prediction"]) for row in _rows(str(file))] == [(5, None), ("5", "\ud800")]


@pytest.mark.slow
def test_scores_are_printed_and_a_finished_run_says_so_in_one_line(tmp_path: Path) -> None:
    own = few_problems(tmp_path)
    words = ("train", *SMALL, "train.steps=1", "data.benchmarks=[add3,max4]", "--evaluate", "--validate")
    store = ("--store", tmp_path / "runs")
    first = tepo(*words, "--quiet", *store, **own)
    assert re.search(r"│ add3 +│ \d+\.\d ", first.stdout)
    again = tepo(*words, *store, **own)
    assert again.stdout == first.stdout
    (run,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())
    assert again.stderr.startswith(f"finished already: {run}, 1 step, measured on add3, max4\n")
    (run / ".manifest.json.0123abcd").write_text("{}")  # a kill left it
    tepo(*words, *store, **own)
    assert not (run / ".manifest.json.0123abcd").exists()
    (run / "metrics.jsonl").write_bytes(b"")
    assert "the run says it is finished, but" in tepo(*words, *store, **own, code=2).stderr


def test_a_run_that_is_refused_when_its_model_is_there_leaves_nothing(tmp_path: Path) -> None:
    """Only then it is known how long the model's prompts may be."""
    write(tmp_path / "mine.jsonl", json.dumps({"problem": "1+" * 60 + "1=", "answer": "61"}))
    words = ("train", "data=mine.jsonl", "train.max_prompt_tokens=200", "train.max_new_tokens=200", "--store", "runs")
    said = tepo(*words, cwd=tmp_path, code=2).stderr
    assert "the model has 256 positions" in said
    assert "train.max_prompt_tokens=56 with data.overlong_prompts=" in said, "what the model has beside a response"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.jsonl"]


@pytest.mark.parametrize(
    ("words", "code"),
    [("explain gspo >/dev/full", 1), ("--help >/dev/full", 1), ("explain gspo >&-", 0), ("explain gspoo 2>&-", 2)],
)
def test_a_full_or_closed_stream_is_told_without_a_traceback(words: str, code: int) -> None:
    command = f"{shlex.quote(sys.executable)} -m tepo_cli {words}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    said = "error: No space left on device\nin: standard output, or a file being written\n"
    assert (done.returncode, done.stderr) == (code, said if code == 1 else "")


LIGHT = {"rich", "hydra", "omegaconf", "numpy", "pandas"}
HEAVY = {"torch", "transformers", "vllm", "deepspeed", "altair", "vl_convert", "sympy", "scipy.stats"}
CODE = """
import sys
from tepo_cli.main import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""
COMPLETION = {"_TEPO_COMPLETE": "complete_bash", "COMP_WORDS": "tepo ta", "COMP_CWORD": "1"}  # as bash asks


@pytest.mark.parametrize(
    ("words", "environment", "answer", "not_imported"),
    [
        ("model warmstart smolm2", {}, "", HEAVY),  # which is refused
        ("--version", {}, f"tepo {__version__}\n", LIGHT | HEAVY),
        ("", COMPLETION, "table\n", LIGHT | HEAVY),
        ("plan --help", {}, "--card", LIGHT | HEAVY),
        ("list", {}, "", HEAVY),
        ("plan panel-e", {}, "", HEAVY),
        ("table panel-e", {}, "", HEAVY),
        ("train --dry-run --show-config", {}, "", HEAVY - {"torch"}),  # the first prompt takes a tokenizer
    ],
)
def test_what_a_command_does_not_need_is_not_imported(
    words: str, environment: dict[str, str], answer: str, not_imported: set[str], tmp_path: Path
) -> None:
    priced = Cost("laptop", "tepo", steps=36, benchmarks=7, cpu_s=60, training_s=50, measuring_s=5, tokens=10**6)
    (tmp_path / "runs/0123456789ab").mkdir(parents=True)
    RunFolder(tmp_path / "runs/0123456789ab").add_cost(priced)  # else `plan` probes two steps
    done = python("-c", CODE, *words.split(), cwd=tmp_path, code=2 if "smolm2" in words else 0, **environment)
    assert answer in done.stdout
    assert not_imported & set(done.stderr.split()) == set()
