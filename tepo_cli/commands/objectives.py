"""`tepo explain` and `tepo check-objective`: what an objective means, and whether it is sound."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from tepo.common.errors import UserError
from tepo_cli.cli_options import Store, Trust

if TYPE_CHECKING:
    from tepo.objectives import Objective


_WHAT = "An objective, e.g. tepo, or a run: its folder, its id or the beginning of it (`tepo list`)."
_SETTINGS = "Settings of an objective, for example penalty.coefficient=1."
_OTHER = "The objective or run to compare it with (default: grpo_dapo)."
_OPTIONS = (
    "The kinds of an axis (advantage, ratio …, or all) with every option; with OBJECTIVE, those of its files too."
)
_LINES = 40  # of a reward's file
_AS_SHIPPED = "As shipped. Scales and studies set some values anew: `tepo explain RUN`."


class Named(NamedTuple):
    """An objective with what it is called; `run` is a line about the run that trained it, empty for one as shipped.
    rewards: of the user's own that it trained on, by name, as the run's configuration keeps them."""

    objective: "Objective"
    name: str
    run: str = ""
    rewards: Mapping[str, Any] = {}


def explain(
    objective: Annotated[str | None, typer.Argument(help=_WHAT, show_default=False)] = None,
    overrides: Annotated[list[str] | None, typer.Argument(help=_SETTINGS, show_default=False)] = None,
    options: Annotated[str | None, typer.Option(metavar="AXIS", help=_OPTIONS, show_default=False)] = None,
    vs: Annotated[str | None, typer.Option(help=_OTHER, show_default=False)] = None,
    latex: Annotated[bool, typer.Option("--latex", help="The formulas alone, as LaTeX.")] = False,
    trust: Trust = False,
    store: Store = Path("runs"),
) -> None:
    """Print the formula of an objective, with its sources.

    Or of what a run trained; what is detached, its constants with their sources, and how it differs from another; or
    all kinds of an axis with their options."""
    import shutil
    from dataclasses import replace

    width = min(shutil.get_terminal_size((110, 24)).columns, 110)
    if options is not None:
        typer.echo(
            _options_text(options, _named(objective, overrides or (), store).objective if objective else None, width)
        )
        return
    if objective is None:
        fix = "tepo list shows the names; tepo explain --options AXIS the kinds of an axis, all those of all"
        raise UserError("no objective is named", where="tepo explain", fix=fix)
    from tepo.objectives.explain import explain as explained
    from tepo.objectives.explain import to_latex, to_text

    this = _named(objective, overrides or (), store)
    other = _named(vs, (), store) if vs else None
    explanation = explained(this.objective, other.objective if other else None)
    explanation = replace(explanation, name=this.name, other=other.name if other else explanation.other)
    if this.run:
        typer.echo(("% " if latex else "") + this.run)
    typer.echo(to_latex(explanation) if latex else to_text(explanation, width=width))
    if this.rewards and not latex:
        typer.echo(f"\n{_shown_rewards(this.rewards)}")
    if not (this.run or overrides or latex):
        typer.echo(f"\n{_AS_SHIPPED}")


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


def _named(name: str, overrides: Sequence[str], store: Path) -> Named:
    """The objective of that name with settings of its own, or the one that a run trained."""
    from tepo.common.errors import unknown_name
    from tepo.objectives import names

    check_settings(overrides)
    if name in names() or name.replace("-", "_") in names():
        objective = named_objective(name, overrides)
        return Named(objective, objective.name)
    from tepo.common.text import counted
    from tepo.objectives.loading import kept_objective
    from tepo.store.find_run import find_run, nearest_run

    run = find_run(name, store)
    if run is None:
        near = nearest_run(name, store)
        where = f"--store {store}" + (f", where {near!r} is the nearest run" if near else "")
        raise unknown_name("objective or run", name, names(), where=where)
    if overrides:
        what = f"the settings of a run are those it trained with: {overrides[0]!r}"
        raise UserError(what, where=f"run {run.path.name}", fix="leave them out, or name an objective")
    unknown, full, status = run.check_config(), run.config()["full"], run.manifest().get("status", "not started")
    trained = kept_objective(full["objective"], run.path)
    steps = full["train"]["steps"]
    made_of = f"model {full['model']['name']}, data {full['data']['name']}, seed {full['seed']}"
    line = f"run {run.path.name}: {made_of}, {counted(steps, 'step')}, {status}"
    line += unknown and f"; {unknown}"
    return Named(trained, f"{run.path.name} ({trained.name})", line, full["data"].get("reward", {}))


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
