import importlib.metadata
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
import yaml
from typer.core import TyperCommand, TyperGroup

from tepo import __version__
from tepo.common.errors import UserError
from tepo.common.text import install_line
from tepo.store.cost import Cost
from tepo.store.run_folder import RunFolder
from tepo_cli.commands.doctor import doctor
from tepo_cli.commands.problems import _rows
from tepo_cli.main import app
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


def test_the_first_prompt_is_shown_token_by_token_where_asked_and_bad_ones_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "mine.jsonl", '{"id": "one", "problem": "1+1=", "answer": "2"}\n')
    words = ("train", "data=mine.jsonl", "--store", "runs")
    shown = tepo(*words, "--dry-run", "--show-tokens", cwd=tmp_path).stdout
    assert [line.split()[1:] for line in shown.splitlines()[-4:]] == [["'1'"], ["'+'"], ["'1'"], ["'='"]]
    write(tmp_path / "mine.jsonl", '{"id": "one\\u001b", "problem": "1+1=<eos>7", "answer": "2"}\n')
    refused = tepo(*words, cwd=tmp_path, code=2).stderr
    assert "1 statement with control tokens of the model: one\\x1b (<eos>)\n" in refused
    assert not (tmp_path / "runs").exists()


def test_a_run_that_collapses_is_done_and_says_so(tmp_path: Path) -> None:
    words = ("train", *SMALL, "train.max_new_tokens=1", "--store", tmp_path)
    for _ in range(2):
        assert "training ended with collapse at step 1: all responses to the 16 prompts" in tepo(*words).stderr
    (run,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert (run / "checkpoints" / "step_000000" / "model.safetensors").exists()


def test_doctor_says_how_to_get_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In rich's markup `[vllm]` is a tag, and the command was to install tepo without it;
    in a narrow terminal it was broken in two."""

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    monkeypatch.setenv("COLUMNS", "40")
    doctor(selftest=False)
    assert f"\ndeepspeed: {install_line('deepspeed')} (CPU: make engines)\n" in capsys.readouterr().out


def test_rows_that_cannot_be_graded_are_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    good = b'\xef\xbb\xbf{"gold": 5, "prediction": null}\r\n\n{"gold": "5", "prediction": "\xed\xa0\x80"}\n'
    file.write_bytes(good + b'[1]\n{"gold": "5", "prediction": "\xe9"}\n{"gold": ["5"], "prediction": "5"}\n')
    with pytest.raises(
        UserError, match=r"3 of 5 rows cannot be graded:\n  line 4: .*\n  line 5: .*\n  line 6: "
    ) as caught:
        _rows(str(file))
    assert caught.value.exit_code == 2
    file.write_bytes(good)
    first, second = _rows(str(file))
    assert first == {"gold": 5, "prediction": None}  # a byte order mark and Windows line ends do no harm
    assert second["prediction"] == "\ud800"


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
    assert "the model has 256 positions" in tepo(*words, cwd=tmp_path, code=2).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.jsonl"]


def commands(group: TyperGroup, *path: str) -> Iterator[tuple[tuple[str, ...], TyperCommand]]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, *path, name)
        else:
            yield (*path, name), command


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("path", COMMANDS, ids="-".join)
def test_the_help_of_a_command_ends_its_text_with_examples_of_it(path: tuple[str, ...]) -> None:
    """Their options exist; a pipe may stand before."""
    command = COMMANDS[path]
    examples = (command.help or "").partition("\b")[2]
    lines = [line.strip() for line in examples.splitlines() if line.strip()]
    assert lines, f"tepo {' '.join(path)} --help has no example"
    options = {name for parameter in command.params for name in parameter.opts}
    for line in lines:
        words = shlex.split(line.rpartition("| ")[2])
        assert words[: len(path) + 1] == ["tepo", *path]
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options, line


@pytest.mark.parametrize(
    ("words", "code"), [("explain gspo >/dev/full", 1), ("--help >/dev/full", 1), ("explain gspo >&-", 0)]
)
def test_a_full_or_closed_standard_output_is_told_without_a_traceback(words: str, code: int) -> None:
    command = f"{shlex.quote(sys.executable)} -m tepo_cli {words}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stderr == (
        "error: No space left on device\nin: standard output, or a file being written\n" if code else ""
    )


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


def test_version_and_completion_answer_at_once() -> None:
    """As bash asks: what may follow `tepo ta`. Neither imports more than --help does."""
    heavy = ["rich", "hydra", "omegaconf", "numpy", "pandas", "torch"]
    code = (
        "import sys\nfrom tepo_cli.main import main\ntry:\n    main()\n"
        f"finally:\n    print([n for n in {heavy} if n in sys.modules], file=sys.stderr)"
    )
    asked = {"_TEPO_COMPLETE": "complete_bash", "COMP_WORDS": "tepo ta", "COMP_CWORD": "1"}
    cases = ((["--version"], {}, f"tepo {__version__}\n"), ([], asked, "table\n"), (["plan", "--help"], {}, "--card"))
    for words, environment, answer in cases:
        done = python("-c", code, *words, **environment)
        assert answer in done.stdout
        assert done.stderr == "[]\n"
