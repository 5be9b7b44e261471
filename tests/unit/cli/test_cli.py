"""The command line as a user meets it: exit codes, messages, no tracebacks, nothing heavy for --help."""

import importlib.metadata
import re
import sysconfig
from pathlib import Path

import pytest
import yaml

import tepo_cli
from tepo.common.errors import UserError
from tepo.common.paths import PACKAGE
from tepo.common.text import install_line
from tepo.jobs.selftest import what_failed
from tepo_cli.commands.doctor import doctor
from tepo_cli.commands.problems import _rows
from tests.integration.commands import python, tepo
from tests.unit.training.small import SMALL, few_problems, write


def test_help_imports_nothing_heavy() -> None:
    heavy = {"torch", "transformers", "vllm", "deepspeed", "pandas", "numpy", "hydra", "altair", "vl_convert", "sympy"}
    code = (
        "import sys\nfrom tepo_cli.main import app\nfrom typer.testing import CliRunner\n"
        "result = CliRunner().invoke(app, ['--help'])\n"
        f"assert result.exit_code == 0 and 'ablate' in result.output\nprint({heavy} & set(sys.modules))"
    )
    assert python("-c", code).stdout == "set()\n"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("train", "train.stepz=3"), "train.steps"),
        (("train", "objective=tep"), "'tepo'"),
        (("ablate", "panel-x"), "panel_"),
        (("table", "panel-q"), "panel_"),
        (("ablate", "panel-e", "--scale", "labtop"), "'laptop'"),
        (("ablate", "panel-e", "--seeds", "a,b"), "--seeds 0,1,2"),
        (("eval", "ad3", "--model", "package:laptop"), "add3"),
        (("eval", "add3", "--model", "nowhere/at/all"), "no model"),
        (("explain", "tepoo"), "'tepo'"),
        (("figure", "3a", "--against", "sample"), "'samples'"),
        (("explain", "tepo", "gspo"), "--vs NAME"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(words: tuple[str, ...], hint: str, tmp_path: Path) -> None:
    done = tepo(*words, cwd=tmp_path, code=2)
    assert "Traceback" not in done.stderr + done.stdout
    assert hint in done.stderr
    assert not list(tmp_path.glob("runs/*")), "nothing may be left on disk"


def test_dry_run_prints_configuration_and_plan_and_trains_nothing(tmp_path: Path) -> None:
    done = tepo("train", "objective=grpo_dapo", "seed=3", "--dry-run", "--store", tmp_path)
    assert "learning_rate: 0.0001" in done.stdout
    assert "# plan: run " in done.stdout
    assert "first prompt" not in done.stdout
    assert yaml.safe_load(done.stdout)["seed"] == 3
    assert not list(tmp_path.iterdir())


def test_the_first_prompt_is_shown_token_by_token_where_asked_and_bad_ones_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "mine.jsonl", '{"id": "one", "problem": "1+1=", "answer": "2"}\n')
    words = ("train", "data=mine.jsonl", "--store", "runs")
    shown = tepo(*words, "--dry-run", "--show-tokens", cwd=tmp_path).stdout
    assert re.search(r"\n# first prompt \(\S+\), \d+ tokens:\n# \| 1\+1=\n", shown)
    assert [line.split()[2:] for line in shown.splitlines()[-4:]] == [["'1'"], ["'+'"], ["'1'"], ["'='"]]
    write(tmp_path / "mine.jsonl", '{"id": "one\\u001b", "problem": "1+1=<eos>7", "answer": "2"}\n')
    for more in ((), ("--dry-run", "--show-tokens")):
        refused = tepo(*words, *more, cwd=tmp_path, code=2).stderr
        assert "1 statement with control tokens of the model: one\\x1b (<eos>)\n" in refused
    assert "add --dry-run" in tepo("train", "--show-tokens", cwd=tmp_path, code=2).stderr
    assert not (tmp_path / "runs").exists()


def test_a_run_that_collapses_is_done_and_says_so(tmp_path: Path) -> None:
    words = ("train", *SMALL, "train.max_new_tokens=1", "--store", tmp_path)
    for _ in range(2):
        done = tepo(*words)
        assert "training ended with collapse at step 1: all responses to the 16 prompts drawn were wrong" in done.stderr
        assert "its weights are those it started from" in done.stderr
    (run,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert (run / "checkpoints" / "step_000000" / "model.safetensors").exists()
    listed = tepo("list", "--all", "--store", tmp_path)
    (line,) = (line for line in listed.stdout.splitlines() if line.startswith(run.name))
    assert line.endswith("finished: collapse at step 1 0/3 0")


def test_table_renders_dashes_for_what_was_not_run_and_never_trains(tmp_path: Path) -> None:
    done = tepo("table", "panel-e", "--store", tmp_path, "--format", "markdown")
    assert "32.59" in done.stdout  # the paper's own block
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_collapsed_row_does_not_fail_its_study(tmp_path: Path) -> None:
    own = few_problems(tmp_path)
    write(
        tmp_path / "experiments" / "mine.yaml",
        "title: mine\nrows:\n  - {label: small steps, objective: grpo_dapo}\n"
        "  - {label: large steps, objective: grpo_dapo, overrides: [train.learning_rate=0.1]}\n"
        "scales:\n  laptop: {models: [laptop], seeds: [0]}\n",
    )
    sets = [part for word in (*SMALL, "data.benchmarks=[add3]") for part in ("--set", word)]
    words = ("mine", *sets, "--store", tmp_path / "runs", "--format", "markdown")
    first = tepo("ablate", *words, cwd=tmp_path, **own)
    assert "large steps seed 0 ended with collapse at step 2: all responses to the 16 prompts" in first.stderr
    assert "| large steps † | 0.0" in first.stdout
    assert "| small steps | " in first.stdout
    assert "large steps (seed 0: collapse at step 2)." in first.stdout
    again = tepo("ablate", *words, cwd=tmp_path, **own)
    assert "nothing to do" in again.stderr
    assert again.stdout == first.stdout


def test_doctor_says_how_to_get_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In rich's markup `[vllm]` is a tag, and the command was to install tepo without it;
    in a narrow terminal it was broken in two."""

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    monkeypatch.setenv("COLUMNS", "40")
    doctor(Path("runs"), selftest=False)
    assert f"\ndeepspeed: {install_line('deepspeed')} (CPU: make engines)\n" in capsys.readouterr().out


def test_doctor_says_what_the_kernels_of_a_gpu_are_built_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    doctor(Path("runs"), selftest=False)
    said = capsys.readouterr().out
    for what in ("C compiler", "Python.h"):
        assert f"\n{what:24} missing\n" in said
        assert f"\n{what}: Triton's kernels on a GPU: apt-get install gcc python3-dev\n" in said
    (tmp_path / "Python.h").touch()
    (tmp_path / "gcc").touch(mode=0o755)
    doctor(Path("runs"), selftest=False)
    said = capsys.readouterr().out
    assert f"\n{'C compiler':24} {tmp_path / 'gcc'}\n{'Python.h':24} {tmp_path / 'Python.h'}\n" in said


def test_a_selftest_says_what_was_wrong_and_not_what_to_do_in_a_run() -> None:
    error = (
        "Traceback:\n  File x\ntepo.common.errors.RunFailed: step 2: the loss is nan\n"
        "in: objective=tepo\ntry: lower train.learning_rate\n"
    )
    assert what_failed(error) == "tepo.common.errors.RunFailed: step 2: the loss is nan"
    assert what_failed("[rank0]: ValueError: no\n") == "ValueError: no"


@pytest.mark.slow
def test_the_base_stands_beside_the_score_once_it_is_measured(tmp_path: Path) -> None:
    own = few_problems(tmp_path / "own")
    words = ("scale=laptop", *SMALL, "train.steps=1", "data.benchmarks=[add3]", "--store", tmp_path / "runs", "-q")
    alone = tepo("train", *words, "--evaluate", **own)
    assert "base %" not in alone.stderr
    assert {path.name for path in tmp_path.glob("runs/*/figures/*")} == {"training.svg"}
    assert "the base is not measured on 1 benchmark: `tepo base` with the same words measures it" in alone.stderr
    base = tepo("base", *words, **own)
    (score,) = re.findall(r"add3 +│ +([\d.]+)", base.stderr)
    configured = " ".join(words[:-3])
    again = tepo("eval", "-m", f"base {configured}", "-m", f"train {configured}", *words[-3:], **own)
    assert re.search(rf"add3 +│ +{re.escape(score)} +│", again.stderr)
    one = tepo("eval", "-m", f"base {configured}", *words[-3:], **own)
    assert one.stderr == base.stderr
    beside = tepo("train", *words, "--evaluate", **own)
    assert "base %" in beside.stderr
    assert re.search(rf"add3 +│ +[\d.]+ +│ .* │ +{re.escape(score)} +│", beside.stderr), beside.stderr
    assert "is not measured" not in beside.stderr


def test_text_in_brackets_is_printed_as_it_is() -> None:
    """Golds, paths and overrides hold brackets; a console that reads them as tags drops them or raises."""
    folders = (Path(tepo_cli.__file__).parent, PACKAGE)
    source = "\n".join(path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py"))
    assert re.findall(r"(?<!class Screen\()\bConsole\(.*", source) == []  # all are a Screen, which takes text as it is
    columns = re.findall(r"\bTextColumn\((.*)\)", source)
    assert len(columns) > 2
    assert [arguments for arguments in columns if arguments.startswith('"{') and "markup=False" not in arguments] == [
        '"{task.percentage:>3.0f}%"'
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"gold": "5"}', "no prediction"),
        (b"[1]", "no gold and no prediction"),
        (b"gold,prediction", "not JSON"),
        (b'{"gold": "5", "prediction": "\xe9"}', "not UTF-8 text"),
        (b'{"gold": ["5"], "prediction": "5"}', "gold must be text or a number"),
    ],
)
def test_a_row_that_cannot_be_graded_is_named(line: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_bytes(
        b'\xef\xbb\xbf{"gold": 5, "prediction": null}\r\n\n{"gold": "5", "prediction": "\xed\xa0\x80"}\n' + line
    )
    with pytest.raises(UserError, match=message) as caught:
        _rows(str(file))
    assert caught.value.where.endswith("line 4")
    file.write_bytes(file.read_bytes().removesuffix(line))
    first, second = _rows(str(file))
    assert first == {"gold": 5, "prediction": None}  # a byte order mark and Windows line ends do no harm
    assert second["prediction"] == "\ud800"


def test_every_row_that_cannot_be_graded_is_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text('{"gold": "5"}\n{"gold": "5", "prediction": "5"}\nno\n' + "[]\n" * 30)
    with pytest.raises(UserError) as caught:
        _rows(str(file))
    what = caught.value.what.splitlines()
    assert what[:3] == ["32 of 33 rows cannot be graded:", "  line 1: no prediction", "  line 3: not JSON"]
    assert (len(what), what[-1]) == (22, "  and 12 more")
