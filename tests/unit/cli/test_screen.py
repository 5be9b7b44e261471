"""What a person copies from the screen is whole: in narrow terminals, in locales without Δ, with odd folder names."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tepo.studies import slurm_job
from tepo.studies.dispatch import command
from tepo.studies.plan_all import plan_all
from tepo_cli import screen
from tepo_cli.commands.train import train
from tepo_cli.main import main
from tepo_cli.show_plan import show_plan
from tepo_cli.study_outputs import show_tables
from tests.integration.commands import tepo

ODD = "a folder of [1] ü, with x=2 and a name that is far longer than any screen is wide, as they are on clusters"


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 40 columns."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")  # of a dumb one rich does not ask the width
    monkeypatch.setattr(Console, "is_terminal", True)


@pytest.mark.usefixtures("narrow")
def test_a_plan_cuts_no_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ((_, units),) = plan_all(["panel-e"], "laptop", store=tmp_path)
    show_plan(units)
    shown = capsys.readouterr().err
    assert all(f" {unit.id} " in shown for unit in units)
    assert "7 benchmarks" in shown
    assert "…" not in shown


@pytest.mark.usefixtures("narrow")
def test_a_table_is_cut_into_parts_that_fit_and_lose_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ((study, units),) = plan_all(["panel-e"], "laptop", store=tmp_path)
    show_tables([(study, units)], "laptop", "terminal")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(len, shown.splitlines())) <= 40
    assert "OlympiadBench" in shown
    assert "baseline" in shown
    assert "32.59" in shown


@pytest.mark.parametrize(
    "words",
    [("audit",), ("audit", "--all"), ("plan", "panel-e", "table2", "--scale", "paper"), ("explain", "tepo")],
    ids=" ".join,
)
def test_80_columns_are_enough(words: tuple[str, ...], tmp_path: Path) -> None:
    done = [tepo(*words, cwd=tmp_path, COLUMNS=columns) for columns in ("80", "400")]
    assert [each.returncode for each in done] == [0, 0]
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
    assert f"store: {tmp_path / ODD}\n" in shown
    ((_, (unit, *_)),) = plan_all(["panel-e"], "laptop", store=tmp_path / ODD)
    rest = command(unit)[1:]
    in_job = slurm_job.in_shell(tmp_path / ODD, "node", "0", "n1:15000")
    assert shlex.split(in_job)[-5:] == ["tepo.studies.slurm_job", "node", str(tmp_path / ODD), "0", "n1:15000"]
    assert f"--store={tmp_path / ODD}" in "=".join(rest)


def test_ctrl_c_says_what_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tepo_cli.commands.list._runs", interrupted)
    monkeypatch.setattr(sys, "argv", ["tepo", "list", "--store", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert "interrupted: finished steps are kept" in capsys.readouterr().err


def test_a_locale_without_the_characters_gets_others_and_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tepo_cli", "audit"],
        capture_output=True,
        timeout=120,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"   -0.33 \n" in done.stdout
