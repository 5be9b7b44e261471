"""What a hand types wrong is refused at once, in a sentence, by every command that takes it."""

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.studies.sweep import axes_of, seeds_of, values_of
from tepo.training.preflight import check_settings
from tepo.training.run import Run
from tepo_cli.main import app

ROOT = Path(__file__).parents[3]
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
        (tmp_path / "file/below", "not a folder"),
        (tmp_path / "loop", "symbolic links"),
        (tmp_path / "dangling", "leads nowhere"),
        (tmp_path / ("x" * 300), "name too long"),
        ("", "no name"),
    ):
        assert said in typed(*command.split(), "--store", str(place)).lower(), place
    assert sorted(tmp_path.rglob("*")) == before


def test_commands_that_take_a_store_are_all_tried() -> None:
    from typer.main import get_command

    def paths_of(command: object, above: str = "") -> list[str]:
        if below := getattr(command, "commands", {}):
            return [path for name, one in below.items() for path in paths_of(one, f"{above} {name}".strip())]
        return [above] if any(one.name == "store" for one in getattr(command, "params", ())) else []

    assert {path for path in paths_of(get_command(app)) if not any(one.startswith(path) for one in WITH_STORE)} == set()


def test_a_store_by_its_key_and_a_missing_one_of_doctor_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "not a folder" in typed("train", f"store={tmp_path / 'file'}", "--dry-run")
    assert "no store there" in typed("doctor", "--store", str(tmp_path / "missing"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ablate panel-e --jobs 1000000", "1024"),
        ("ablate panel-e --seeds range(100000000000000000000)", "a range has at most 10,000 values"),
        ("ablate panel-e --seeds ²", "not a list of seeds"),
        ("ablate panel-e --seeds -1", "not a list of seeds"),
        ("ablate panel-e --seeds 9999999999999999999", "below 2^63"),
        ("ablate panel-e --seeds 0,0", "listed twice"),
        ("plan panel-e --difference nan", "difference"),
        ("chat package:laptop --temperature nan", "temperature"),
        ("model warmstart --noise nan", "noise"),
        ("data grade /dev/null --timeout -1", "timeout"),
        ("train train.learning_rate=nan", "train.learning_rate must be a number"),
        ("train train.learning_rate=1,5e-4", "1.5e-4 or the values 1 and 5e-4"),
        ("train train.steps=1,024", "1024 or the values 1 and 024"),
        *((f"train train.{key}=1e12", key) for key in ("steps", "samples_per_prompt", "max_new_tokens", "max_rounds")),
        ("ablate panel-e --set train.learning_rate=1,5e-4", "a decimal point is no comma"),
    ],
)
def test_numbers_that_nobody_means_are_refused_before_anything_starts(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in " ".join(typed(*words.split()).split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", ["eval add3 -m package:laptop", "figure panel-e --records", "records write panel-e"])
def test_a_folder_for_results_that_is_a_file_is_refused(words: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is a file" in typed(*words.split(), "--out", str(tmp_path / "file"))


def test_a_run_without_a_name_is_none(tmp_path: Path) -> None:
    assert "no run ''" in typed("responses", "", "add3", "--store", str(tmp_path))


@pytest.mark.parametrize("part", ["config.json", "manifest.json"])
def test_half_a_run_is_named_with_what_it_lacks(part: str, tmp_path: Path) -> None:
    run = tmp_path / "0123456789ab"
    run.mkdir()
    (run / "metrics.jsonl").write_text("")
    (run / ({"config.json", "manifest.json"} - {part}).pop()).write_text("{}")
    for words in (("push", str(run), "a/b"), ("push", "0123", "a/b"), ("responses", "0123", "add3")):
        said = typed(*words, "--store", str(tmp_path))
        assert f"half a run: no {part}\nin: {run}" in said


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


def test_values_that_are_no_number_stay_a_sweep() -> None:
    for key, text in (("seed", "1,100"), ("train.steps", "36,216"), ("train.temperature", "1,2,3")):
        assert axes_of([f"{key}={text}"]) == {key: text.split(",")}


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=5))
def test_seeds_are_read_as_they_are_written(seeds: list[int]) -> None:
    assert seeds_of(",".join(map(str, seeds))) == seeds
    assert values_of(f"range({seeds[0]},{seeds[0] + 3})") == [str(seeds[0] + add) for add in range(3)]


def test_no_message_names_a_file_that_a_wheel_lacks() -> None:
    """Docstrings and comments may: they are read in the source."""
    named = re.compile(r"\b(docs|ablations|experiments|examples|tests|requirements)/|CONTRIBUTING|CHANGELOG")
    found = []
    for file in [*(ROOT / "tepo").rglob("*.py"), *(ROOT / "tepo_cli").rglob("*.py")]:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        alone = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            text = node.value if isinstance(node, ast.Constant) and node not in alone else None
            if isinstance(text, str) and named.search(text):
                found.append(f"{file.relative_to(ROOT)}:{node.lineno}: {text}")
    assert found == []
