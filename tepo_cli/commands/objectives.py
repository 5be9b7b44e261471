"""`tepo explain`: what an objective means, and whether it is sound."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tepo.common.errors import UserError, unknown_name
from tepo_cli.cli_options import Lines, Store, Trust, formula_words

if TYPE_CHECKING:
    from tepo.formula.row import Row


_WHAT = "An objective: its name or FILE.yaml, or a run: its folder or id (`tepo list`). None: all, with equations."
_SETTINGS = "Constants, lines, average or keep of it, for example beta=0.1 or average=responses."
_OTHER = "The objective or run to compare it with (default: the one that it is like, else grpo_dapo)."
_FORMAT = "text; latex: the formula alone; svg: its coefficient over the ratio, beside that of --vs."
_CHECK = "Instead: check its gradient, and what it depends on."
_FORMATS = ("text", "latex", "svg")
_LINES = 40  # of a reward's file


def explain(
    objective: Annotated[str | None, typer.Argument(help=_WHAT, show_default=False)] = None,
    settings: Annotated[list[str] | None, typer.Argument(help=_SETTINGS, show_default=False)] = None,
    formula: Lines = None,
    vs: Annotated[str | None, typer.Option(help=_OTHER, show_default=False)] = None,
    check: Annotated[bool, typer.Option("--check", help=_CHECK)] = False,
    form: Annotated[str, typer.Option("--format", help=_FORMAT)] = "text",
    trust: Trust = False,
    store: Store = Path("runs"),
) -> None:
    """Print the formula of an objective, with its sources.

    Or of what a run trained; where each line is computed, what is detached, the coefficient of ∇log π as a picture, and
    what is changed of another objective.

    With --check: its loss must have the gradient that it hands to the model, whatever the split, the order and the
    ranks. Exit code 1 where a check fails, 2 where the objective cannot be read.

    \b
    tepo explain tepo --vs gspo
    tepo explain mine.yaml --check
    tepo explain cispo --vs gspo --format svg >picture.svg"""
    import shutil

    width = min(shutil.get_terminal_size((110, 24)).columns, 110)
    if form not in _FORMATS:
        raise unknown_name("format", form, _FORMATS, where="--format")
    if objective is None:
        from tepo.formula.row import IDEAS, load_row, names
        from tepo.formula.typeset import equation
        from tepo_cli.screen import show

        of = {name: load_row(name) for name in names()}
        ordered = sorted(of.values(), key=lambda row: ([*IDEAS, ""].index(row.idea), row.year or 0, row.name))
        origins = {row.name: ", ".join(filter(None, (row.idea, str(row.year or "")))) for row in ordered}
        rows = [(f"{row.name}\n  {origins[row.name]}", "\n".join(equation(row))) for row in ordered]
        show(("objective", "equation"), rows, "objectives", wrapped=("equation",), lines=True)
        return
    words = [*(settings or ()), *formula_words(formula)]
    row, run, rewards = _named(objective, words, store)
    if check:
        _check(row)
        return
    other = _named(vs, [], store)[0] if vs else None
    if form == "latex":
        from tepo.formula.typeset import to_latex

        print(f"% {run}\n" * bool(run) + to_latex(row))
        return
    if form == "svg":
        from tepo.formula.row import changed_lines
        from tepo.objectives import Objective
        from tepo.objectives.explain import coefficients
        from tepo.reporting.charts.coefficients import coefficient_panels
        from tepo.reporting.charts.style import svg

        rows_by_name, below = {row.name: row}, dict[str, list[str]]()
        if other is not None:
            beside = f"{other.name} as shipped" if other.name == row.name else other.name
            rows_by_name[beside] = other
            for name, place in ((row.name, 0), (beside, 1)):  # what the coefficient does not show, A above all
                below[name] = [pair[place] for pair in changed_lines(row, other).values() if pair[place]]
        curves = {name: coefficients(Objective(**panel_row.parts)) for name, panel_row in rows_by_name.items()}
        print(svg(coefficient_panels(curves, below)))
        return
    from tepo.objectives.explain import to_text

    print("\n".join([*[run] * bool(run), to_text(row, other, width)]))
    _show_rewards(rewards)
    if not (run or words):
        print("\nAs shipped. Scales and studies set some values anew: `tepo explain RUN`.")


def _check(row: "Row") -> None:
    """Print whether an objective's gradient and what it depends on are right; exit code 1 where they are not."""
    from tepo.objectives import Objective
    from tepo.objectives.check import check_objective
    from tepo_cli.screen import show

    checks = check_objective(Objective(**row.parts))
    rows = [(check.name, "fail" if check.wrong else "pass", check.wrong or check.what) for check in checks]
    show(("check", "result", "what"), rows, f"objective {row.name}", wrapped=("what",))
    if failed := sum(bool(check.wrong) for check in checks):
        typer.echo(f"{failed} of {len(checks)} checks fail, and each says why", err=True)
        raise typer.Exit(1)


def _show_rewards(rewards: Mapping[str, Any]) -> None:
    """Print rewards of a user's own, each with its weight and the first lines of its file, which is not executed."""
    from tepo.common.files import content_hash

    if rewards:
        print("\nreward: the mean, by weight, of")
    for name, reward in rewards.items():
        text, source = str(reward.get("text", "")).splitlines(), "the grader's verdict"
        if text:
            source = f"{reward['function']} in {reward['file']}, text {content_hash(reward['text'])}"
        print(f"  {name}, weight {reward['weight']:g}: {source}")
        print("".join(f"    {line}".rstrip() + "\n" for line in text[:_LINES]), end="")
        if len(text) > _LINES:
            print(f"    … {len(text) - _LINES} more lines in the run's config.json")


def _named(name: str, words: Sequence[str], store: Path) -> tuple["Row", str, Mapping[str, Any]]:
    """The row of that name or file, changed by words such as beta=0.1, objective.beta=0.1 and J=w*A, or the one that a
    run trained, with a line about the run and the rewards of the user's own that it trained on."""
    from dataclasses import replace

    from tepo.common.text import counted
    from tepo.formula.row import labels, load_row, names
    from tepo.store.find_run import find_run, nearest_run

    changes = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign:
            fix = "write beta=1 to set a constant, J='w*A' a line, --vs NAME for an objective to compare with"
            raise UserError(f"not a setting of an objective: {word!r}", fix=fix)
        changes[key.strip().removeprefix("objective.")] = value.strip()
    shipped = name.replace("-", "_")
    if shipped in names() or name.endswith((".yaml", ".yml")):
        return load_row(shipped if shipped in names() else Path(name), changes), "", {}
    run = find_run(name, store)
    if run is None:
        near = nearest_run(name, store)
        where = f"--store {store}" + (f", where {near!r} is the nearest run" if near else "")
        raise unknown_name("objective or run", name, names(), where=where, labels=labels())
    if changes:
        what = f"the settings of a run are those it trained with: {next(iter(changes))!r}"
        raise UserError(what, where=f"run {run.path.name}", fix="leave them out, or name an objective")
    run.check_config()
    full, status = run.config()["full"], run.manifest().get("status", "not started")
    trained = row_of_run(full["objective"], run.path)
    made_of = f"model {full['model']['name']}, data {full['data']['name']}, seed {full['seed']}"
    line = f"run {run.path.name}: {made_of}, {counted(full['train']['steps'], 'step')}, {status}"
    return replace(trained, name=f"{run.path.name} ({trained.name})"), line, full["data"].get("reward", {})


def row_of_run(objective: Mapping[str, Any], run: Path) -> "Row":
    """The row of a run's configuration, with what the row of its name says of it as far as they agree. Raises UserError
    where its Python files are not the caller's own and he does not trust them."""
    from dataclasses import replace

    from tepo.formula.row import kept_row, present_row

    trained = kept_row(objective, run)
    named = present_row(trained.name)
    if named is None:
        return trained
    constants = {
        name: named.constants[name]
        if name in named.constants and named.constants[name].value == constant.value
        else constant
        for name, constant in trained.constants.items()
    }
    departs = named.departs if trained.formula.digest == named.formula.digest else ()
    return replace(trained, about=named.about, constants=constants, departs=departs, base=named)
