import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tepo.common.files import write_json
from tepo.evaluation.scores import score
from tepo.launch import slurm_job
from tepo.launch.local import command
from tepo.policy.model.load_policy import load_policy
from tepo.sampling.embedded.torch_sampler import TorchSampler
from tepo.sampling.sampler import SamplingParams, response_texts
from tepo.store.evaluation_result import SAMPLES, Result, save_result
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import RECIPE
from tepo.store.samples_file import table_of, write_table
from tepo.studies.plan_studies import plan_all
from tepo.training.loop import train
from tepo.training.run import Run
from tepo_cli.cli_options import Asked
from tepo_cli.main import app, main
from tests.support.commands import Terminal, alone
from tests.support.runs import small

ODD = "a folder of [1] ü, with x=2 and a name that is far longer than any screen is wide, as they are on clusters"


def test_data_is_an_override_of_every_row_and_comes_last() -> None:
    asked = Asked(override=["data=laptop", "train.steps=2"], data="laptop_sparse", store=Path("runs"))
    ((_, units),) = asked.plan(["panel-e"])
    assert {(unit.config.data.name, unit.config.train.steps) for unit in units} == {("laptop_sparse", 2)}


def test_any_store_can_be_named(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["train", "--dry-run", "--store", str(tmp_path / ODD)]).stdout
    assert re.search(rf"^run +{re.escape(str(tmp_path / ODD))}/[0-9a-f]+: new$", shown, re.M)
    ((_, (unit, *_)),) = plan_all(["panel-e"], "laptop", store=tmp_path / ODD)
    in_job = slurm_job.in_shell(tmp_path / ODD, "node", "0", "n1:15000")
    assert shlex.split(in_job)[-5:] == ["tepo.launch.slurm_job", "node", str(tmp_path / ODD), "0", "n1:15000"]
    assert f"--store={tmp_path / ODD}" in "=".join(command(unit)[1:])


def test_a_locale_without_the_characters_gets_others_and_no_traceback() -> None:
    assert "\nCoefficient of grad log pi of a token" in alone("explain", "tepo", PYTHONIOENCODING="ascii").stdout


HOSTILE = "\x1b]0;title\x07\x1b[2Jred\x9b31m over\rwritten\b\u202eback\u2066 [link=http://x]a[/link] :warning:"
SPELT = r"\x1b]0;title\x07\x1b[2Jred\x9b31m over\rwritten\x08\u202eback\u2066 [link=http://x]a[/link] :warning:"


def _run(store: Path) -> RunFolder:
    """A run whose files a stranger wrote: status, names and responses are hostile."""
    folder = RunFolder(store / "0123456789ab")
    names = {group: {"name": f"{group}{HOSTILE}"} for group in ("objective", "model", "data")}
    full = {**names, "seed": 0, "train": {"steps": 2}}
    write_json(folder.config_file, {"id": folder.path.name, "tepo": "0.1.0", "recipe": RECIPE, "full": full})
    folder.append_metrics({"training/global_step": 1, "critic/score/mean": 0.5})
    folder.mark("failed " + HOSTILE)
    row = {"problem": "p", "sample": 0, "family": "f", "prompt": f"prompt{HOSTILE}", "gold": "2", "tokens": 1}
    row |= {"response": f"one\n\ttwo{HOSTILE}", "correct": True, "reason": HOSTILE, "finish": "stop", "grader": "g"}
    samples = table_of([row])
    write_table(folder.evaluation("add3") / SAMPLES, samples)
    save_result(folder.evaluation("add3"), Result("add3", 1, 1, 1.0, None, score(samples), {}, "g", {}))
    return folder


@pytest.mark.parametrize(
    ("words", "count"), [(("responses", "base-x", "add3"), 3), (("list", "--watch"), 2), (("list", "--all"), 4)]
)
def test_what_a_stranger_wrote_moves_no_cursor(
    words: tuple[str, ...], count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    """Newlines and tabs stay; nothing is taken for markup. Responses are those of a base: the run is not what it says,
    so nothing of it is shown but in a list."""
    shutil.copytree(_run(tmp_path).evaluations, tmp_path / "base-x" / "eval")
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setattr(sys, "argv", ["tepo", *words, "--store", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert ended.value.code == 0, shown.err
    assert shown.out.count(SPELT) == count, shown.out
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2066]", shown.out + shown.err)
    if words[0] == "responses":
        assert "one\n        \ttwo" in shown.out


def chat(*words: str | Path, lines: str) -> Any:
    return CliRunner().invoke(app, ["chat", *map(str, words)], input=lines)


def greedy(model: str, prompt: str) -> str:
    policy = load_policy(model)
    sampler = TorchSampler(policy.model, policy.tokenizer)
    params = SamplingParams(n=1, temperature=0.0, max_new_tokens=40)
    ((response,),) = sampler.sample([policy.tokenizer(prompt)["input_ids"]], [0], params)
    return response_texts([response], policy.tokenizer)[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Trained with a prompt of its own around each problem."""
    words = ("data.prompt='0+{problem}'", "model.wrap=raw", "train.steps=1")
    return RunFolder(train(Run(small(tmp_path_factory.mktemp("runs"), *words))))


def test_each_line_of_a_pipe_gets_a_response_on_standard_output_alone() -> None:
    done = chat("package:laptop", "--temperature", "0", lines="347+285=\n\n   \nwhy?\n<eos>1\n12*3=\r\n")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [greedy("package:laptop", asked) for asked in ("347+285=", "12*3=")]
    assert done.stderr.count("\nnot asked: ") == 2


def test_a_run_is_asked_as_it_was_trained(run: RunFolder) -> None:
    weights = str(run.checkpoint(1))
    for named in ((run.path,), (run.path.name[:6], "--store", run.path.parent)):
        done = chat(*named, "--temperature", "0", lines="347+285=\n")
        assert done.stdout == greedy(weights, "0+347+285=") + "\n"
    raw = chat(run.path, "--raw", "--temperature", "0", lines="347+285=\n")
    assert raw.stdout == greedy(weights, "347+285=") + "\n" != done.stdout


def test_in_a_terminal() -> None:
    terminal = Terminal("chat", "package:laptop", "--max-new-tokens", "12")
    terminal.wait_for("> ")
    terminal.type("1+1=\n")
    assert terminal.wait_for("> ").partition("1+1=")[2]
    assert terminal.leave("\x03") == 0
