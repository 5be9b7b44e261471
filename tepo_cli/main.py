"""The `tepo` command: a Typer app whose commands import their work only when they run."""

import codecs
import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, TextIO, cast

import typer
from typer.core import TyperGroup

from tepo import __version__
from tepo.common import interpreter, signals, trust
from tepo.common.errors import UserError
from tepo.common.text import spelt
from tepo_cli.commands.board import app as board
from tepo_cli.commands.chat import chat
from tepo_cli.commands.doctor import doctor
from tepo_cli.commands.evaluate import evaluate, responses
from tepo_cli.commands.model import app as model
from tepo_cli.commands.objectives import explain
from tepo_cli.commands.problems import app as data
from tepo_cli.commands.push import push
from tepo_cli.commands.records import app as records
from tepo_cli.commands.runs import listing
from tepo_cli.commands.studies import ablate, plan, reproduce
from tepo_cli.commands.tables import figure, report, table
from tepo_cli.commands.train import train

_ASCII = {"−": "-", "–": "-", "±": "+-", "×": "x", "…": "...", "→": "->", "Δ": "d", "β": "beta", "∧": "and", "∨": "or"}
_ASCII |= {"Σ": "sum", "∇": "grad ", "π": "pi"}  # of formulas, and of their pictures
_ASCII |= {"●": "*", "○": "o", "◐": "8", "─": "-", "│": "|", "┼": "+"}

_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

EXIT_CODES = (
    "Exit codes: 0 done; 1 a run, a figure or a self-test failed; 2 a mistake in what was asked; "
    "3 another process has the run; 75 asked to stop (SIGTERM, SIGUSR2, SIGHUP); 130 Ctrl-C."
)


def _version(flag: bool) -> None:
    if flag:
        typer.echo(f"tepo {__version__}")
        raise typer.Exit


class _Grouped(TyperGroup):
    """Commands under the headings of their panels, in the order of registration; typer groups them with rich alone."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = {name: command for name, command in self.commands.items() if not command.hidden}
        width = max(map(len, commands))
        panels = {
            name: str(getattr(command, "rich_help_panel", None) or "Commands") for name, command in commands.items()
        }
        for panel in dict.fromkeys(panels.values()):
            with formatter.section(panel):
                formatter.write_dl(
                    [
                        (name.ljust(width), command.get_short_help_str(formatter.width - width - 6))
                        for name, command in commands.items()
                        if panels[name] == panel
                    ]
                )


app = typer.Typer(
    cls=_Grouped,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode=None,  # plain help: importing rich for it takes longer than everything else together
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(epilog=EXIT_CODES)
def tepo(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Regenerate the tables of TEPO and GTPO / GRPO-S, on a laptop or on GPUs."""
    context.with_resource(trust.caller())


_COMMANDS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {  # by their headings, in order
    "Run": {"train": train, "eval": evaluate, "ablate": ablate, "reproduce": reproduce, "plan": plan},
    "Look": {
        "list": listing,
        "table": table,
        "figure": figure,
        "board": board,
        "report": report,
        "responses": responses,
        "chat": chat,
    },
    "Explain": {"explain": explain},
    "Maintain": {"doctor": doctor, "data": data, "records": records, "model": model, "push": push},
}
for _panel, _commands in _COMMANDS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
        else:
            app.command(_name, rich_help_panel=_panel)(_command)


def _spelt(error: UnicodeError) -> tuple[str, int]:
    """Spelling of characters that the encoding of a locale lacks, and where to go on: a minus must not become a
    question mark."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_ASCII.get(character, "?") for character in error.object[error.start : error.end]), error.end


class _Shown:
    """Standard output of which control characters are spelt out: it shows what files, models and strangers wrote.

    Consoles of rich find the stream behind it by `rich_proxied_file`. They spell before they colour."""

    def __init__(self, stream: TextIO):
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(spelt(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def main() -> None:
    """Run the app. A UserError or a file that cannot be read becomes a message on standard error and its exit code,
    Ctrl-C exits with 130, a scheduler's request to stop with 75."""
    interpreter.settle()
    interpreter.quiet_others()
    codecs.register_error("tepo", _spelt)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell (`>&-`)
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="tepo")
    try:
        signals.at_once()
        with contextlib.redirect_stdout(cast(TextIO, _Shown(sys.stdout))):
            try:
                app(prog_name="tepo")
            finally:
                with contextlib.suppress(BrokenPipeError):
                    sys.stdout.flush()  # a full disk is told here, and not by Python at its exit
    except signals.Stopped as stop:
        sys.stderr.write(f"{stop}: finished steps are kept, the same command goes on from there\n")
        raise
    except UserError as error:
        sys.stderr.write(spelt(f"error: {error}\n"))
        raise SystemExit(error.exit_code) from None
    except OSError as error:  # a file that may not be read, or a folder instead of one; a write has no name of its file
        where = error.filename
        if where is None:
            if error.errno not in _WRITE_ERRORS:
                raise
            where = "standard output, or a file being written"
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # where Python writes at its exit what it still has
        sys.stderr.write(spelt(f"error: {error.strerror}\nin: {where}\n"))
        raise SystemExit(1) from None
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and stop.code != 130:  # typer ends with 130 on Ctrl-C, and without a word
            raise
        sys.stderr.write("interrupted: finished steps are kept, the same command goes on from there\n")
        raise SystemExit(130) from None
