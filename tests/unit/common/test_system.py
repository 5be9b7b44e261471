"""What is said on systems that tepo does not work on. The systems are named to it: no test runs on them."""

import platform
import runpy
import sys
from pathlib import Path

import pytest
import typer

import tepo_cli
from tepo.common.errors import UserError
from tepo.common.system import described, unsupported
from tepo.config.compose import compose
from tepo.training.preflight import check_machine
from tepo.training.run import Run
from tepo_cli.commands.doctor import doctor


@pytest.mark.parametrize(
    ("system", "said"), [("win32", "WSL2"), ("darwin", "/proc"), ("freebsd14", "nobody has tried")]
)
def test_doctor_says_it_in_a_line_and_nothing_trains(
    system: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    with pytest.raises(typer.Exit) as ended:
        doctor(tmp_path, selftest=False)
    first, line = capsys.readouterr().out.splitlines()
    assert (ended.value.exit_code, first.startswith("system ")) == (1, True)
    assert line.startswith("tepo needs Linux, and this is ")
    assert said in line
    with pytest.raises(UserError, match="tepo needs Linux"):
        check_machine(Run(compose([f"store={tmp_path}"])))


def test_on_windows_nothing_else_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit, match=r"^error: tepo needs Linux, and this is .* in WSL2 it is a Linux machine"):
        runpy.run_path(str(tepo_cli.__file__))


def test_linux_is_named_with_what_is_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unsupported() == ""
    monkeypatch.setattr(platform, "release", lambda: "5.15.153.1-microsoft-standard-WSL2")
    assert described() == f"Linux {platform.machine()}, in WSL2: nobody has run the tests there"
