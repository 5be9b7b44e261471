import io
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn
from rich.table import Table

from tepo.common.errors import UserError
from tepo.common.files import write_json
from tepo.evaluation.scores import score
from tepo.launch import slurm_job
from tepo.launch.local import command
from tepo.reporting.progress import Screen
from tepo.store.evaluation_result import SAMPLES, Result, save_result
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import RECIPE
from tepo.store.samples_file import table_of, write_table
from tepo.studies.plan_studies import plan_all
from tepo_cli import screen
from tepo_cli.cli_options import Asked
from tepo_cli.commands.train import train
from tepo_cli.main import main
from tepo_cli.show_plan import show_units
from tepo_cli.study_outputs import show_tables
from tests.support.commands import alone, tepo
from tests.support.results import facts_of

ODD = "a folder of [1] ü, with x=2 and a name that is far longer than any screen is wide, as they are on clusters"


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")  # of a dumb one rich does not ask the width
    monkeypatch.setattr(Console, "is_terminal", True)


@pytest.mark.usefixtures("narrow")
def test_a_plan_cuts_no_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ((_, units),) = plan_all(["panel-e"], "laptop", store=tmp_path)
    show_units(units)
    shown = capsys.readouterr().err
    assert all(f" {unit.id} " in shown for unit in units)
    assert "7 benchmarks" in shown
    assert "…" not in shown


def test_a_plan_has_a_line_a_row_over_its_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ((_, units),) = plan_all(["panel-e"], "laptop", store=tmp_path, seeds=[0, 1, 2])
    units[0].folder.path.mkdir()
    units[0].folder.mark("finished")
    show_units(units, rows=True)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("│")]
    assert len(lines) == 5
    assert re.search(r"0, 1, 2 +│ 1 x done, 2 x 36 steps +│ 7 benchmarks", lines[0])
    assert re.search(r"0, 1, 2 +│ 36 steps +│ 7 benchmarks", lines[1])


def test_data_is_an_override_of_every_row_and_comes_last() -> None:
    asked = Asked(override=["data=laptop", "train.steps=2"], data="laptop_sparse", store=Path("runs"))
    ((_, units),) = asked.plan(["panel-e"])
    assert {(unit.config.data.name, unit.config.train.steps) for unit in units} == {("laptop_sparse", 2)}


@pytest.mark.usefixtures("narrow")
def test_a_table_is_cut_into_parts_that_fit_and_lose_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ((study, units),) = plan_all(["panel-e"], "laptop", store=tmp_path)
    show_tables([(study, units)], facts_of(study, units), "terminal")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(len, shown.splitlines())) <= 40
    assert "OlympiadBench" in shown
    assert "baseline" in shown
    assert "32.59" in shown


@pytest.mark.disaster
@pytest.mark.parametrize("words", [("plan", "table2", "--scale", "paper"), ("explain", "tepo")], ids=" ".join)
def test_80_columns_are_enough(words: tuple[str, ...], tmp_path: Path) -> None:
    done = [tepo(*words, cwd=tmp_path, COLUMNS=columns) for columns in ("80", "400")]
    narrow, wide = (each.stdout + each.stderr for each in done)
    assert max(map(len, narrow.splitlines())) <= 80
    assert [
        word for word in set(wide.split()) - set(narrow.split()) if word.strip("━┏┳┓┡╇┩└┴┘─")
    ] == []  # nothing is cut


def test_a_pipe_has_no_edge_unless_columns_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert screen.screen_width() == 150
    monkeypatch.setenv("COLUMNS", "40")
    assert screen.screen_width() == 40
    screen.say(str(tmp_path / ODD))
    assert capsys.readouterr().err == f"{tmp_path / ODD}\n"


def test_any_store_can_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(["objective=tepo"], store=tmp_path / ODD, dry_run=True)
    shown = capsys.readouterr().out
    assert re.search(rf"^run +{re.escape(str(tmp_path / ODD))}/[0-9a-f]+: new$", shown, re.M)
    ((_, (unit, *_)),) = plan_all(["panel-e"], "laptop", store=tmp_path / ODD)
    rest = command(unit)[1:]
    in_job = slurm_job.in_shell(tmp_path / ODD, "node", "0", "n1:15000")
    assert shlex.split(in_job)[-5:] == ["tepo.launch.slurm_job", "node", str(tmp_path / ODD), "0", "n1:15000"]
    assert f"--store={tmp_path / ODD}" in "=".join(rest)


def test_ctrl_c_says_what_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tepo_cli.show_runs.show_runs", interrupted)
    monkeypatch.setattr(sys, "argv", ["tepo", "list", "--store", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert "interrupted: finished steps are kept" in capsys.readouterr().err


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
    ("words", "count"),
    [(("responses", "base-x", "add3"), 3), (("list", "--watch"), 2), (("list",), 4), (("list", "--all"), 4)],
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


def test_an_error_names_a_stranger_s_text_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a terminal, where rich colours: its own codes are the only ones."""
    monkeypatch.setattr(sys, "argv", ["tepo", "list", "--store", str(tmp_path)])
    monkeypatch.setattr("tepo_cli.show_runs.show_runs", lambda *_: _fail())
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"error: a\tb {SPELT}\nin: {SPELT}\n" in capsys.readouterr().err


def _fail() -> None:
    raise UserError(f"a\tb {HOSTILE}", where=HOSTILE)


def test_bars_and_tables_in_a_terminal_colour_nothing_that_a_label_asks_for(tmp_path: Path) -> None:
    out = io.StringIO()
    terminal = Screen(file=out, force_terminal=True, color_system="standard", width=400, highlight=False)
    with Progress(TextColumn("{task.description}", markup=False), console=terminal) as progress:
        progress.add_task(HOSTILE, total=1)
    table = Table("name", title=HOSTILE)
    table.add_row(HOSTILE)
    terminal.print(table)
    text = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", out.getvalue())  # of rich
    assert text.count(SPELT) >= 2
    assert "]0;title" not in text.replace(r"\x1b]0;title", "")
    assert not re.search(r"[\x07\x08\x1b\x9b\u202e\u2066]", text)
