"""The `tepo` command: a Typer app whose commands import their work only when they run."""

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TextIO, cast

import typer
from typer.core import TyperGroup

from tepo import __version__
from tepo.common import interpreter, signals, trust
from tepo.common.errors import UserError
from tepo.common.text import spelt
from tepo.jobs.clean_process import go_on
from tepo_cli.commands.doctor import doctor
from tepo_cli.commands.evaluate import base, evaluate, measure, regrade, responses
from tepo_cli.commands.objectives import check_objective, explain
from tepo_cli.commands.problems import app as data_app
from tepo_cli.commands.problems import grade
from tepo_cli.commands.records import app as records_app
from tepo_cli.commands.runs import listing, watch
from tepo_cli.commands.studies import ablate, claims, plan, power, reproduce
from tepo_cli.commands.tables import audit, figure, report, table
from tepo_cli.commands.train import train, warmstart

_ASCII = {"−": "-", "–": "-", "±": "+-", "×": "x", "…": "...", "→": "->", "Δ": "d", "β": "beta", "∧": "and", "∨": "or"}
_ASCII |= {"Σ": "sum", "∇": "grad ", "π": "pi"}  # of formulas, and of their pictures
_ASCII |= {"●": "*", "○": "o", "◐": "8", "─": "-", "│": "|", "┼": "+"}

EXIT_CODES = (
    "Exit codes: 0 done; 1 a run, a figure or a self-test failed; 2 a mistake in what was asked; "
    "3 another process has the run; 75 asked to stop (SIGTERM, SIGUSR2, SIGHUP); 130 Ctrl-C."
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tepo {__version__}")
        raise typer.Exit


class _Grouped(TyperGroup):
    """Commands under the headings of their panels, in the order of registration; typer groups them with rich alone."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        shown = {name: command for name, command in self.commands.items() if not command.hidden}
        width = max(map(len, shown))
        panels = {name: str(getattr(command, "rich_help_panel", None) or "Commands") for name, command in shown.items()}
        for panel in dict.fromkeys(panels.values()):
            with formatter.section(panel):
                formatter.write_dl(
                    [
                        (name.ljust(width), command.get_short_help_str(formatter.width - width - 6))
                        for name, command in shown.items()
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


_RUN, _LOOK, _EXPLAIN, _MAINTAIN = "Run", "Look", "Explain", "Maintain"

app.command(rich_help_panel=_RUN)(train)
app.command("eval", rich_help_panel=_RUN)(evaluate)
app.command(rich_help_panel=_RUN)(plan)
app.command(rich_help_panel=_RUN)(ablate)
app.command(rich_help_panel=_RUN)(reproduce)
app.command(rich_help_panel=_RUN)(warmstart)
app.command(hidden=True)(base)
app.command(hidden=True)(measure)
app.command("list", rich_help_panel=_LOOK)(listing)
app.command(rich_help_panel=_LOOK)(watch)
app.command(rich_help_panel=_LOOK)(table)
app.command(rich_help_panel=_LOOK)(figure)
app.command(rich_help_panel=_LOOK)(report)
app.command(rich_help_panel=_LOOK)(claims)
app.command(rich_help_panel=_LOOK)(responses)
app.command(rich_help_panel=_EXPLAIN)(explain)
app.command("check-objective", rich_help_panel=_EXPLAIN)(check_objective)
app.command(rich_help_panel=_EXPLAIN)(power)
app.command(rich_help_panel=_EXPLAIN)(audit)
app.command(rich_help_panel=_MAINTAIN)(doctor)
app.add_typer(data_app, name="data", rich_help_panel=_MAINTAIN)
app.add_typer(records_app, name="records", rich_help_panel=_MAINTAIN)
app.command(rich_help_panel=_MAINTAIN)(grade)
app.command(rich_help_panel=_MAINTAIN)(regrade)


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


def main(command: Callable[[], object] | None = None) -> None:
    """Run the app, or what a command goes on with in a fresh process. A UserError or a file that cannot be read becomes
    a message on standard error and its exit code, Ctrl-C exits with 130, a scheduler's request to stop with 75.

    A command can replace this process only where it is the command's own: here, and not where a test or a program calls
    the app."""
    interpreter.settle()
    command = command or partial(app, prog_name="tepo", obj=partial(go_on, dict(os.environ), main))
    codecs.register_error("tepo", _spelt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="tepo")
    try:
        signals.at_once()
        with contextlib.redirect_stdout(cast(TextIO, _Shown(sys.stdout))):
            command()
    except signals.Stopped as stop:
        sys.stderr.write(f"{stop}: finished steps are kept, the same command goes on from there\n")
        raise
    except UserError as error:
        sys.stderr.write(spelt(f"error: {error}\n"))
        raise SystemExit(error.exit_code) from None
    except OSError as error:  # a file that may not be read, or a folder instead of one
        if error.filename is None:
            raise
        sys.stderr.write(spelt(f"error: {error.strerror}\nin: {error.filename}\n"))
        raise SystemExit(1) from None
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and stop.code != 130:  # typer ends with 130 on Ctrl-C, and without a word
            raise
        sys.stderr.write("interrupted: finished steps are kept, the same command goes on from there\n")
        raise SystemExit(130) from None
