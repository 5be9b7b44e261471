"""What a hand types wrong is refused at once, in a sentence, by every command that takes it."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import run_id
from tepo.studies.sweep import axes_of, plan_sweep, seeds_of, values_of
from tepo.training.preflight import check_settings
from tepo.training.run import Run
from tepo_cli.main import app
from tepo_cli.show_scores import find_target
from tests.support.commands import tepo
from tests.support.runs import SMALL, few_problems, write

WITH_STORE = [
    "train --dry-run", "train seed=0,1", "eval add3 -m package:laptop", "ablate panel-e", "ablate panel-e --dry-run",
    "reproduce panel-e", "plan panel-e", "table panel-e", "table claims", "figure panel-e", "report panel-e", "report",
    "list", "list --watch", "responses run add3", "chat package:laptop", "explain tepo", "doctor --no-selftest",
    "data regrade", "records write panel-e", "push run org/name", "model fetch --all panel-e",
]  # fmt: skip


def typed(*words: str) -> str:
    """What a command line prints, or the error that it ends with. Its exit code is 2."""
    ended = CliRunner().invoke(app, list(words))
    error = ended.exception
    assert isinstance(error, UserError | SystemExit), ended.exc_info
    assert (error.exit_code if isinstance(error, UserError) else error.code) == 2
    return str(error) if isinstance(error, UserError) else ended.output


@pytest.mark.parametrize("command", WITH_STORE)
def test_a_store_that_can_be_none_is_refused_by_every_command(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    before = sorted(tmp_path.rglob("*"))
    for place, said in (
        (tmp_path / "file", "not a folder"),
        (tmp_path / "loop", "symbolic links"),
        (tmp_path / "dangling", "leads nowhere"),
        (tmp_path / ("x" * 300), "name too long"),
        ("", "no name"),
    ):
        assert said in typed(*command.split(), "--store", str(place)).lower(), place
    assert sorted(tmp_path.rglob("*")) == before


def test_a_store_by_its_key_and_a_missing_one_of_doctor_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "not a folder" in typed("train", f"store={tmp_path / 'file'}", "--dry-run")
    assert "no store there" in typed("doctor", "--store", str(tmp_path / "missing"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ablate panel-e --jobs 1000000", "1024"),
        ("ablate panel-e --seeds range(100000000000000000000)", "a range has at most 10,000 values"),
        ("ablate panel-e --seeds range(0,5,0)", "a range has"),
        ("ablate panel-e --seeds ²", "not a list of seeds"),
        ("ablate panel-e --seeds -1", "in: --seeds"),
        ("ablate panel-e --seeds 9999999999999999999", "below 2^63"),
        (f"ablate panel-e --seeds {'9' * 5000}", "not a list of seeds"),
        ("ablate panel-e --seeds 0,0", "listed twice"),
        ("plan panel-e --difference nan", "difference"),
        ("data grade /dev/null --timeout -1", "timeout"),
        ("train train.learning_rate=nan", "train.learning_rate must be a number"),
        ("train train.learning_rate=1,5e-4", "1.5e-4 or the values 1 and 5e-4"),
        ("train train.steps=1,024", "1024 or the values 1 and 024"),
        *((f"train train.{key}=1e12", key) for key in ("steps", "prompts_per_step", "samples_per_prompt", "epochs")),
        ("ablate panel-e --set train.prompts_per_step=1e12", "prompts_per_step"),
        ("ablate panel-e --set train.learning_rate=1,5e-4", "a decimal point is no comma"),
        ("ablate panel-x", "panel_"),
        ("ablate panel-e --scale labtop", "'laptop'"),
        ("ablate panel-e --slurm minutes=5", "add --launcher slurm"),
        ("ablate panel-e --set objective.hgih=1 --dry-run", "row 'GRPO/DAPO'"),
        ("eval ad3 --model package:laptop", "add3"),
        ("eval --model base --model package:laptop", "another kind of model with a conf"),
        ("explain tepo gspo", "--vs NAME"),
        ("train objective.betta=1 --dry-run", "'beta'"),
        ("train train.max_new_tokens=100000", "the model has 256 positions"),
        ("table panel-e", "--records"),
        ("report", "--records"),
    ],
)
def test_what_nobody_means_is_refused_before_anything_starts(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in " ".join(typed(*words.split()).split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    ["eval add3 -m package:laptop", "figure panel-e --records", "records write panel-e", "model warmstart laptop"],
)
def test_a_folder_for_results_that_is_a_file_is_refused(words: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is a file" in typed(*words.split(), "--out", str(tmp_path / "file"))


def test_a_run_without_a_name_is_none(tmp_path: Path) -> None:
    assert "no run ''" in typed("responses", "", "add3", "--store", str(tmp_path))


@pytest.mark.parametrize("part", ["config.json", "manifest.json"])
def test_half_a_run_is_named_with_what_it_lacks(part: str, tmp_path: Path) -> None:
    run = tmp_path / "0123456789ab"
    write(run / "metrics.jsonl", "")
    write(run / ({"config.json", "manifest.json"} - {part}).pop(), "{}")
    for words in (("push", str(run), "a/b"), ("responses", "0123", "add3")):
        assert f"half a run: no {part}\nin: {run}" in typed(*words, "--store", str(tmp_path))


def test_rows_that_are_not_there_cannot_be_graded(tmp_path: Path) -> None:
    assert "no rows" in typed("data", "grade", "/dev/null")
    assert "a folder" in typed("data", "grade", str(tmp_path))


def test_more_responses_a_step_than_a_machine_holds_are_refused() -> None:
    config = compose(["train.prompts_per_step=100000", "train.samples_per_prompt=100000"])
    with pytest.raises(UserError, match="10,000,000,000 responses a step"):
        check_settings(Run(config))


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(-9, 9))
def test_a_number_with_a_comma_is_never_a_sweep(whole: int, part: int, power: int) -> None:
    """What stands for it in the advice is one."""
    for text in (f"{whole},{part}", f"{whole},{part}e{power}"):
        with pytest.raises(UserError, match="may be the number") as caught:
            axes_of([f"train.learning_rate={text}"])
        number, values = re.fullmatch(
            r"(\S+) for the number, '(.*)' in quotes for the values", caught.value.fix
        ).groups()
        assert float(number.partition("=")[2]) == float(text.replace(",", "."))
        assert axes_of([number]) == {}
        assert axes_of([values]) == {"train.learning_rate": text.split(",")}


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=5))
def test_seeds_are_read_as_they_are_written(seeds: list[int]) -> None:
    assert seeds_of(",".join(map(str, seeds))) == seeds
    assert values_of(f"range({seeds[0]},{seeds[0] + 3})") == [str(seeds[0] + add) for add in range(3)]


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("seed=range(4,10,2)", ["4", "6", "8"]),
        ("objective=gspo, tepo", ["gspo", "tepo"]),
        ("train.steps=36,216", ["36", "216"]),
        ("train.learning_rate=1e-4,4e-4", ["1e-4", "4e-4"]),
        ("data.benchmarks=[add3,max4],[add3]", ["[add3,max4]", "[add3]"]),
        ("data.benchmarks=[add3,max4]", []),
        ("objective.J=min(w, clip(w, 1 - low, 1 + high))*A", []),
        ("tracking.group=a,b", []),
        ("seed=1,", []),
    ],
)
def test_several_values_are_an_axis_and_one_stays_what_it_was(word: str, values: list[str]) -> None:
    assert axes_of([word]) == ({word.partition("=")[0]: values} if values else {})


def test_its_runs_are_those_of_single_commands(tmp_path: Path) -> None:
    words = ["seed=0,1", "objective=tepo,gspo", "train.learning_rate=1e-4,4e-4", "train.steps=2"]
    ((study, units),) = plan_sweep(words, axes_of(words), tmp_path)
    single = {
        run_id(compose([f"seed={seed}", f"objective={name}", f"train.learning_rate={rate}", "train.steps=2"]))
        for seed in (0, 1)
        for name in ("tepo", "gspo")
        for rate in ("1e-4", "4e-4")
    }
    assert {unit.id for unit in units} == single
    assert study.baseline == "tepo"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["scale=laptop,paper", "seed=0,1"], "unknown scale option 'laptop,paper'"),
        (["objective=gspo,tpo"], "unknown objective option 'tpo'"),
    ],
)
def test_a_wrong_value_is_named(words: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        plan_sweep(words, axes_of(words), tmp_path)


def test_a_dry_run_shows_every_run_and_leaves_nothing(tmp_path: Path) -> None:
    words = ("train", "seed=range(2)", "objective=gspo,tepo", "-m", "--jobs", "2")
    assert tepo(*words, "--dry-run", cwd=tmp_path).stderr.startswith("4 runs, 4 to do: ")
    tepo(*words, "train.stepz=2", cwd=tmp_path, code=2)
    assert "of Hydra's sweeps is not understood" in tepo("train", "seed=interval(0,1)", cwd=tmp_path, code=2).stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_all_runs_are_made_and_the_table_printed(tmp_path: Path) -> None:
    words = ("train", *SMALL, "train.steps=1", "data.benchmarks=[add3]", "objective=gspo,grpo_dapo", "--jobs", "2")
    done = tepo(*words, cwd=tmp_path, **few_problems(tmp_path))
    assert re.search(r"^gspo +\d+\.\d.*\n(?:.*\n)?grpo_dapo +\d+\.\d", done.stdout, re.M)
    assert len(list((tmp_path / "runs").glob("*/eval/add3/result.json"))) == 2
    again = tepo(*words, cwd=tmp_path, **few_problems(tmp_path))
    assert again.stdout == done.stdout
    assert "nothing to do" in again.stderr


def test_a_run_to_evaluate_that_is_not_there_or_not_whole(tmp_path: Path) -> None:
    write(tmp_path / "0123456789ac/config.json", "[]")
    write(tmp_path / "0123456789ac/checkpoints/any", "")
    for name in ("0123456789ab", "0199999999ab"):
        folder = RunFolder(tmp_path / name)
        folder.create(compose([f"store={tmp_path}"]), {})
        folder.mark("running")
    for model, message in (
        ("0123456789ad", "no model and no run .*\n.*\n.*did you mean '0123456789a"),  # the network is not asked
        ("0123456789ac", "another version"),
        ("01", "2 runs begin with '01'"),
        ("0199", "0199999999ab"),  # it has no checkpoint
    ):
        with pytest.raises(UserError, match=message):
            find_target(model, tmp_path, None)


@pytest.mark.parametrize(
    "words", [("reproduce", "panel-a", "--records", "--scale", "paper"), ("records", "write", "panel-a"), ("report",)]
)
def test_where_nothing_was_measured_nothing_is_written(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "report.html").write_text("mine")
    assert "error: no" in tepo(*words, cwd=tmp_path, code=2).stderr
    assert (tmp_path / "report.html").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "runs"]
