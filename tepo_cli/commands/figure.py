"""`tepo figure`: a figure of the papers, from the store."""

from pathlib import Path
from typing import Annotated

import typer

from tepo_cli.options import Data, Scale, Seeds, SetAsRun, Store, check_store_exists, parse_seeds, row_overrides


def figure(
    name: Annotated[str, typer.Argument(help="2a 2b 3a 3b v1-1 v1-4 v1-5 gtpo-1 … gtpo-4, or `all`.")],
    scale: Scale = "laptop",
    seeds: Seeds = None,
    store: Store = Path("runs"),
    data: Data = None,
    override: SetAsRun = None,
    against: Annotated[str, typer.Option(help="What curves are drawn against: steps, samples or kl.")] = "steps",
    out: Annotated[Path, typer.Option(help="Folder for the SVG and PNG files.")] = Path("figures"),
) -> None:
    """Draw a figure from what the store holds; never trains (`tepo ablate figures` does).

    `all` draws those whose rows were run, names the others, and ends with exit code 1 if there are any."""
    from tepo.errors import UserError, unknown_name
    from tepo.reporting.against import AXES
    from tepo.reporting.curves import save
    from tepo.studies.plan_all import plan_all
    from tepo.studies.study_figures import draw_figure

    if against not in AXES:
        raise unknown_name("axis", against, AXES, where="--against")
    ((study, units),) = plan_all(
        ["figures"],
        scale,
        store=store,
        seeds=parse_seeds(seeds),
        overrides=row_overrides(override, data),
    )
    known = [figure.name for figure in study.figures]
    if name != "all" and name not in known:
        raise unknown_name("figure", name, [*known, "all"])
    check_store_exists(store)
    missing: list[UserError] = []
    suffix = "" if against == "steps" else f"-{against}"
    for chosen in known if name == "all" else [name]:
        try:
            drawn = draw_figure(study, chosen, scale, units, against)
        except UserError as error:
            if name != "all":
                raise
            missing.append(error)
            continue
        for path in save(drawn, out, f"figure-{chosen}{suffix}", "--out DIR"):
            typer.echo(path)
    if missing:
        what = "\n".join(
            [f"{len(missing)} of {len(known)} figures were not drawn:", *(f"  {error.what}" for error in missing)]
        )
        raise UserError(what, where=missing[0].where, fix=missing[0].fix, exit_code=1)
