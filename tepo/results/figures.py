"""The papers' figures from the runs of `experiments/figures.yaml`, and that of a sweep or of fitted curves."""

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from tepo.common.errors import UserError
from tepo.reporting.figures.curves import RunCurves
from tepo.reporting.figures.figures import paper_figure
from tepo.results.tables import study_table
from tepo.studies.plan import Unit
from tepo.studies.study import Study


def curves(units: Sequence[Unit]) -> list[RunCurves]:
    """Metrics of trained units, one curve a row and seed."""
    trained = {(unit.label, unit.seed): unit for unit in units if unit.row.objective is not None}
    return [
        RunCurves(label, unit.row.objective or "", seed, unit.run.metrics(), unit.row.look, bool(unit.run.ending()))
        for (label, seed), unit in trained.items()
    ]


def draw_figure(study: Study, name: str, scale: str, units: Sequence[Unit], against: str = "steps") -> Figure:
    """One figure of the study; against: as `paper_figure`. Raises UserError naming the rows that were not run."""
    wanted = next(figure.rows for figure in study.figures if figure.name == name)
    chosen = [unit for unit in units if unit.row.label in wanted]
    missing = sorted({unit.label for unit in chosen if not unit.done()})
    if missing:
        raise UserError(
            f"figure {name} needs rows that were not run: {', '.join(missing)}",
            where=f"store {chosen[0].folder.parent}",
            fix=f"tepo ablate figures --scale {scale}",
        )
    table = study_table(replace(study, baseline=None), scale, chosen)
    return paper_figure(name, curves(chosen), table.blocks[0], against)
