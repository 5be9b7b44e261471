import importlib.metadata
import json
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
import yaml
from typer.core import TyperCommand, TyperGroup

from tepo.common.errors import UserError
from tepo.common.text import install_line
from tepo.jobs.selftest import what_failed
from tepo_cli.commands.doctor import doctor
from tepo_cli.commands.problems import _rows
from tepo_cli.main import app
from tests.support.commands import tepo
from tests.support.runs import SMALL, few_problems, write


def test_a_dry_run_answers_on_one_screen_and_leaves_nothing(tmp_path: Path) -> None:
    words = ("train", "objective=grpo_dapo", "seed=3", "--dry-run", "--store", tmp_path)
    lines = tepo(*words, "--evaluate").stdout.splitlines()
    said = {line[:11].strip(): line[11:] for line in lines}
    assert len(lines) < 15
    assert said["trains"] == "grpo_dapo, seed 3, scale laptop"
    assert re.fullmatch(r"36, each 64 prompts x 8 samples of at most 72 tokens, then \d+ updates", said["steps"])
    assert re.fullmatch(r"about \d+ CPU seconds, by a closed form, to a factor of four: .*", said["time"])
    assert re.fullmatch(r"about \d\.\d GiB, by a closed form", said["memory"])
    assert re.fullmatch(rf"{tmp_path}/[0-9a-f]{{12}}: new", said["run"])
    assert said["afterwards"].startswith("measured on the benchmarks add3, ")
    assert lines[-2].startswith("first prompt (")
    assert lines[-1].startswith("| ")
    shown = yaml.safe_load(tepo(*words, "--show-config").stdout)
    assert (shown["seed"], shown["train"]["learning_rate"]) == (3, 0.0001)
    assert "add --dry-run" in tepo("train", "--show-config", code=2).stderr
    assert not list(tmp_path.iterdir())


def test_a_dry_run_of_gpus_names_a_machine_and_what_is_not_known(tmp_path: Path) -> None:
    done = tepo("train", "scale=paper", "model=qwen3-14b", "--dry-run", cwd=tmp_path)
    assert re.search(
        r"^time +about [\d.]+ h on \d x \d .*, \$\d+, by a closed form, to a factor of 1.5", done.stdout, re.M
    )
    assert re.search(r"^memory +\d+ GiB of \d+ on each GPU; does not fit on ", done.stdout, re.M)
    assert "first prompt: not shown, as nothing is downloaded for it (no tokenizer)" in done.stdout
    assert done.stderr == ""


@pytest.mark.slow
def test_a_dry_run_says_how_far_the_run_is_and_is_priced_by_others(tmp_path: Path) -> None:
    few_problems(tmp_path)
    words = ("train", *SMALL, "--store", tmp_path / "runs")
    tepo(*words)
    said = tepo(*words, "--dry-run").stdout
    assert re.search(r"^time +none: nothing to do$", said, re.M)
    assert ": finished already (3 steps), it is not trained again" in said
    other = tepo(*words, "seed=1", "--dry-run").stdout
    assert re.search(r"^time +about \d+ CPU seconds?, by 1 run like it in ", other, re.M)


def test_the_first_prompt_is_shown_token_by_token_where_asked_and_bad_ones_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "mine.jsonl", '{"id": "one", "problem": "1+1=", "answer": "2"}\n')
    words = ("train", "data=mine.jsonl", "--store", "runs")
    shown = tepo(*words, "--dry-run", "--show-tokens", cwd=tmp_path).stdout
    assert re.search(r"\nfirst prompt \(\S+\), \d+ tokens:\n\| 1\+1=\n", shown)
    assert [line.split()[1:] for line in shown.splitlines()[-4:]] == [["'1'"], ["'+'"], ["'1'"], ["'='"]]
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
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In rich's markup `[vllm]` is a tag, and the command was to install tepo without it;
    in a narrow terminal it was broken in two."""

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "40")
    doctor(selftest=False)
    said = capsys.readouterr().out
    assert f"\ndeepspeed: {install_line('deepspeed')} (CPU: make engines)\n" in said
    for what in ("C compiler", "Python.h"):
        assert f"\n{what:24} missing\n" in said
        assert f"\n{what}: Triton's kernels on a GPU: apt-get install gcc python3-dev\n" in said
    (tmp_path / "Python.h").touch()
    (tmp_path / "gcc").touch(mode=0o755)
    doctor(selftest=False)
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
    assert "base %" not in alone.stdout
    assert {path.name for path in tmp_path.glob("runs/*/figures/*")} == {"training.svg"}
    assert "the base is not measured on 1 benchmark, this measures it: tepo eval -m 'base scale=l" in alone.stderr
    configured = " ".join(words[:-3])
    base = tepo("eval", "-m", f"base {configured}", *words[-3:], **own)
    (score,) = re.findall(r"add3 +│ +([\d.]+)", base.stdout)
    again = tepo("eval", "-m", f"base {configured}", "-m", f"train {configured}", *words[-3:], **own)
    assert re.search(rf"add3 +│ +{re.escape(score)} +│", again.stdout)
    beside = tepo("train", *words, "--evaluate", **own)
    assert "base %" in beside.stdout
    assert re.search(rf"add3 +│ +[\d.]+ +│ .* │ +{re.escape(score)} +│", beside.stdout), beside.stdout
    assert "is not measured" not in beside.stderr


def test_rows_that_cannot_be_graded_are_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    good = b'\xef\xbb\xbf{"gold": 5, "prediction": null}\r\n\n{"gold": "5", "prediction": "\xed\xa0\x80"}\n'
    wrong = {
        b'{"gold": "5"}': "no prediction",
        b"[1]": "no gold and no prediction",
        b"gold,prediction": "not JSON",
        b'{"gold": "5", "prediction": "\xe9"}': "not UTF-8 text",
        b'{"gold": ["5"], "prediction": "5"}': "gold must be text or a number",
    }
    file.write_bytes(good + b"\n".join(wrong) + b"\n[]" * 30)
    with pytest.raises(UserError) as caught:
        _rows(str(file))
    what = caught.value.what.splitlines()
    assert (len(what), what[0], what[-1]) == (22, "35 of 37 rows cannot be graded:", "  and 15 more")
    for number, (line, said) in enumerate(zip(what[1:6], wrong.values(), strict=True), 4):
        assert line.startswith(f"  line {number}: {said}")
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
    assert re.search(r"│ validation problems +│ \d+\.\d ", first.stdout)
    assert "accuracy" not in first.stderr
    assert "this measures it: tepo eval -m 'base train.prompts_per_step=8 " in first.stderr
    again = tepo(*words, *store, **own)
    assert again.stdout == first.stdout
    (run,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())
    line = again.stderr.splitlines()[0]
    assert line == f"finished already: {run}, 1 step, measured on add3, max4"
    assert "0/1" not in again.stderr
    (run / ".manifest.json.0123abcd").write_text("{}")  # a kill left it
    short = [word for word in words if word != "--validate"]
    assert tepo(*short, *store, **own).stderr.startswith("finished already: ")
    assert not (run / ".manifest.json.0123abcd").exists()
    (run / "metrics.jsonl").write_bytes(b"")
    for asked in (words, short):
        assert "the run says it is finished, but" in tepo(*asked, *store, **own, code=2).stderr


def test_a_run_that_is_refused_when_its_model_is_there_leaves_nothing(tmp_path: Path) -> None:
    """Only then it is known how long the model's prompts may be."""
    write(tmp_path / "mine.jsonl", json.dumps({"problem": "1+" * 60 + "1=", "answer": "61"}))
    words = ("train", "data=mine.jsonl", "train.max_prompt_tokens=200", "train.max_new_tokens=200", "--store", "runs")
    assert "the model has 256 positions" in tepo(*words, cwd=tmp_path, code=2).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.jsonl"]
    (tmp_path / "runs").mkdir()
    tepo(*words, cwd=tmp_path, code=2)
    assert not list((tmp_path / "runs").iterdir())


def test_each_thing_that_can_be_run_is_listed_with_a_line_of_description(tmp_path: Path) -> None:
    lines = tepo("list", cwd=tmp_path, COLUMNS="100").stdout.splitlines()
    names = [line for line in lines if line.startswith("  ")]
    assert len(names) > 150
    assert [line for line in names if len(line.split()) < 2 or len(line) > 100] == []
    said = {line.split()[0]: " ".join(line.split()[1:]) for line in names}
    assert said["panel_e"] == "Table 3, Panel E: TEPO with token-level KL divergence"
    assert said["gsm8k_math"] == "GSM8K's and MATH's training problems together"
    assert said["qwen3-14b"] == "Qwen/Qwen3-14B: TEPO Table 1"
    assert said["aime24"] == "American Invitational Mathematics Examination 2024, I and II"
    assert said["gspo"] == "GSPO 2507.18071: one ratio and one clip decision per response"
    assert not list(tmp_path.iterdir())


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
