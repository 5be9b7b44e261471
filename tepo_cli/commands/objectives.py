"""`tepo explain` and `tepo check-objective`: what an objective means, and whether it is sound."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from tepo.common.errors import UserError
from tepo_cli.cli_options import Store, Trust

if TYPE_CHECKING:
    from tepo.objectives import Objective
    from tepo.objectives.formula.row import Row


_WHAT = "An objective, e.g. tepo, or a run: its folder, its id or the beginning of it (`tepo list`)."
_SETTINGS = "Constants, lines, average or keep of it, for example beta=0.1 or average=responses."
_FORMULA = "A line of the formula, e.g. --formula 'J=min(w, clip(w, 1 - low, 1 + high))*A'; may be repeated."
_OTHER = "The objective or run to compare it with (default: the one that it is like, else grpo_dapo)."
_OPTIONS = (
    "The kinds of an axis (advantage, ratio …, or all) with every option; with OBJECTIVE, those of its files too."
)
_FORMATS = ("text", "latex")
_LINES = 40  # of a reward's file
_AS_SHIPPED = "As shipped. Scales and studies set some values anew: `tepo explain RUN`."


class Named(NamedTuple):
    """A row; `run` is a line about the run that trained it, empty for one as shipped. rewards: of the user's own that
    it trained on, by name, as the run's configuration keeps them."""

    row: "Row"
    run: str = ""
    rewards: Mapping[str, Any] = {}


def explain(
    objective: Annotated[str | None, typer.Argument(help=_WHAT, show_default=False)] = None,
    settings: Annotated[list[str] | None, typer.Argument(help=_SETTINGS, show_default=False)] = None,
    formula: Annotated[list[str] | None, typer.Option(metavar="LINE", help=_FORMULA, show_default=False)] = None,
    options: Annotated[str | None, typer.Option(metavar="AXIS", help=_OPTIONS, show_default=False)] = None,
    vs: Annotated[str | None, typer.Option(help=_OTHER, show_default=False)] = None,
    form: Annotated[str, typer.Option("--format", help="text, or latex: the formula alone.")] = "text",
    trust: Trust = False,
    store: Store = Path("runs"),
) -> None:
    """Print the formula of an objective, with its sources.

    Or of what a run trained; where each line is computed, what is detached, the coefficient of ∇log π as a picture, and
    what is changed of another objective."""
    import shutil

    from tepo.common.errors import unknown_name

    width = min(shutil.get_terminal_size((110, 24)).columns, 110)
    if options is not None:
        typer.echo(_options_text(options, named_objective(objective, ()) if objective else None, width))
        return
    if objective is None:
        raise UserError("no objective is named", where="tepo explain", fix="tepo list objectives shows all of them")
    if form not in _FORMATS:
        raise unknown_name("format", form, _FORMATS, where="--format")
    from tepo.objectives.formula.explain import explain as explained
    from tepo.objectives.formula.explain import to_latex, to_text

    words = [*(settings or ()), *(formula or ())]
    this = _named(objective, changes_of(words), store)
    explanation = explained(this.row, _named(vs, {}, store).row if vs else None)
    if this.run:
        print(("% " if form == "latex" else "") + this.run)
    print(to_latex(explanation) if form == "latex" else to_text(explanation, width))
    if this.rewards and form == "text":
        print(f"\n{_shown_rewards(this.rewards)}")
    if form == "text" and not (this.run or words):
        print(f"\n{_AS_SHIPPED}")


def changes_of(words: Sequence[str]) -> dict[str, str]:
    """Names and values of words such as beta=0.1, objective.beta=0.1 and J=w*A. Raises UserError for other words."""
    found = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign:
            fix = "write beta=1 to set a constant, J='w*A' a line, --vs NAME for an objective to compare with"
            raise UserError(f"not a setting of an objective: {word!r}", fix=fix)
        found[name.strip().removeprefix("objective.")] = value.strip()
    return found


def _options_text(axis: str, objective: "Objective | None", width: int) -> str:
    """The options of an axis, or of all, one after the other."""
    from tepo.objectives.kind_options import options_of, to_text
    from tepo.objectives.loading import AXES

    files = dict(objective.files) if objective else {}
    return "\n\n\n".join(to_text(options_of(name, files), width) for name in (AXES if axis == "all" else [axis]))


def _shown_rewards(rewards: Mapping[str, Any]) -> str:
    """Rewards of a user's own, each with its weight and the first lines of its file, which is not executed."""
    from tepo.common.files import content_hash

    lines = ["reward: the mean, by weight, of"]
    for name, one in rewards.items():
        text = str(one.get("text", "")).splitlines()
        source = (
            f"{one['function']} in {one['file']}, text {content_hash(one['text'])}" if text else "the grader's verdict"
        )
        lines.append(f"  {name}, weight {one['weight']:g}: {source}")
        lines += [f"    {line}".rstrip() for line in text[:_LINES]]
        lines += [f"    … {len(text) - _LINES} more lines in the run's config.json"] if len(text) > _LINES else []
    return "\n".join(lines)


def _named(name: str, changes: Mapping[str, str], store: Path) -> Named:
    """The row of that name or file with changes of its own, or the one that a run trained."""
    from dataclasses import replace

    from tepo.common.errors import unknown_name
    from tepo.common.text import counted
    from tepo.objectives.formula.row import load_row, names
    from tepo.store.find_run import find_run, nearest_run

    shipped = name.replace("-", "_")
    if shipped in names() or name.endswith((".yaml", ".yml")):
        return Named(load_row(shipped if shipped in names() else Path(name), changes))
    run = find_run(name, store)
    if run is None:
        near = nearest_run(name, store)
        where = f"--store {store}" + (f", where {near!r} is the nearest run" if near else "")
        raise unknown_name("objective or run", name, names(), where=where)
    if changes:
        what = f"the settings of a run are those it trained with: {next(iter(changes))!r}"
        raise UserError(what, where=f"run {run.path.name}", fix="leave them out, or name an objective")
    unknown, full, status = run.check_config(), run.config()["full"], run.manifest().get("status", "not started")
    trained = row_of_run(full["objective"], run.path)
    steps = full["train"]["steps"]
    made_of = f"model {full['model']['name']}, data {full['data']['name']}, seed {full['seed']}"
    line = f"run {run.path.name}: {made_of}, {counted(steps, 'step')}, {status}"
    line += unknown and f"; {unknown}"
    named = replace(trained, name=f"{run.path.name} ({trained.name})")
    return Named(named, line, full["data"].get("reward", {}))


def row_of_run(objective: Mapping[str, Any], run: Path) -> "Row":
    """The row of a run's configuration. Raises UserError for one that holds no formula."""
    raise UserError(f"its objective {objective.get('name', '')!r} is no formula", where=f"run {run.name}")


_NAMED_OBJECTIVE = "An objective: NAME of objective/NAME.yaml in a folder of TEPO_PATH, or a shipped one."
_OWN_SETTINGS = "Settings of it, for example surrogate.width=0.3."


def check_objective(
    objective: Annotated[str, typer.Argument(help=_NAMED_OBJECTIVE)],
    settings: Annotated[list[str] | None, typer.Argument(help=_OWN_SETTINGS, show_default=False)] = None,
) -> None:
    """Check an objective's gradient, and what it depends on.

    It must depend on nothing but its data, be a gradient, and be what it says it is.

    Exit code 1 where a check fails, 2 where the objective cannot be read."""
    from rich.table import Table

    from tepo.objectives.testing.checks import check_objective as checked
    from tepo_cli.screen import fixed, show

    found = named_objective(objective, settings or ())
    table = Table(fixed("check"), fixed("result"), "what", title=f"objective {found.name}")
    checks = checked(found)
    for check in checks:
        table.add_row(check.name, "fail" if check.wrong else "pass", check.wrong or check.what)
    show(table)
    if failed := sum(bool(check.wrong) for check in checks):
        typer.echo(f"{failed} of {len(checks)} checks fail: docs/library.md says what each means", err=True)
        raise typer.Exit(1)


def named_objective(name: str, settings: Sequence[str]) -> "Objective":
    """The objective of that name, shipped or in `objective/` of TEPO_PATH.

    settings: `KEY=VALUE` below `objective`. Raises UserError for a name or key that does not exist."""
    from tepo.common import paths
    from tepo.config.compose import compose
    from tepo.objectives import load_objective

    check_settings(settings)
    if not settings:
        return load_objective(name)
    words = [f"objective.{text.removeprefix('objective.')}" for text in settings]
    return load_objective(
        compose([f"objective={paths.find('objective', name).stem}", "train.kl_estimator=null", *words]).objective
    )


def check_settings(settings: Sequence[str]) -> None:
    """Raises UserError for what is no setting."""
    for text in settings:
        if "=" not in text:
            fix = "write penalty.coefficient=1 for a setting, --vs NAME for an objective to compare with"
            raise UserError(f"not a setting of an objective: {text!r}", fix=fix)
