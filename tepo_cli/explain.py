"""`tepo explain`: what an objective means."""

from typing import Annotated

import typer


def explain(
    objective: Annotated[str, typer.Argument(help="Name of an objective, for example tepo; `tepo list` shows them.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings of it, for example penalty.coefficient=1.", show_default=False)] = None,
    vs: Annotated[str | None, typer.Option(help="The objective to compare it with (default: grpo_dapo).", show_default=False)] = None,
    latex: Annotated[bool, typer.Option("--latex", help="The formulas alone, as LaTeX.")] = False,
) -> None:
    """Print the formula of an objective, what is detached, its constants with their sources, and how it differs from another."""
    from tepo.config.compose import compose
    from tepo.errors import UserError
    from tepo.objectives import load_objective
    from tepo.objectives.explain import explain as explained
    from tepo.objectives.explain_text import to_latex, to_text

    name = load_objective(objective).name
    for text in overrides or ():
        if "=" not in text:
            raise UserError(f"not a setting of an objective: {text!r}", fix="write penalty.coefficient=1 for a setting, --vs NAME for an objective to compare with")
    chosen = (
        load_objective(compose([f"objective={name}", "train.kl_estimator=null", *(f"objective.{text.removeprefix('objective.')}" for text in overrides)]).objective)
        if overrides
        else load_objective(name)
    )
    explanation = explained(chosen, load_objective(vs) if vs else None)
    typer.echo(to_latex(explanation) if latex else to_text(explanation))
