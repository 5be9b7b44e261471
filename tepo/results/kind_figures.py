"""The figures that a study has by its own keys: a sweep's, the fits of its curves, what tuning found."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from tepo.common.errors import UserError
from tepo.reporting.figures.expected_max_figure import expected_best_figure
from tepo.reporting.figures.plane_figure import plane_figure
from tepo.reporting.figures.scaling_figure import saturation_figure
from tepo.reporting.figures.sweep_figure import sweep_figure
from tepo.reporting.tables.sensitivity_table import BEST
from tepo.reporting.tables.table import Table
from tepo.results.scaling_fits import curve_rows
from tepo.results.tables import study_table
from tepo.results.tuning_table import tuned_lines
from tepo.studies.plan import Unit
from tepo.studies.study import Study


@dataclass(frozen=True)
class Drawn:
    """A figure, the name of its file, and what it shows."""

    name: str
    caption: str
    figure: Figure


def own_figures(study: Study, scale: str, units: Sequence[Unit], table: Table) -> list[Drawn]:
    """What can be drawn of what was measured; table: the study's."""
    return [*_fits(study, units), *_tuned(study, scale, units), *_sweep(table)]


def _fits(study: Study, units: Sequence[Unit]) -> list[Drawn]:
    """Scores over compute of the rows that were trained."""
    rows = [row for row in curve_rows(study, units) if row.fit] if study.curve else []
    if not rows or study.curve is None:
        return []
    return [Drawn(study.name, f"Fitted curves of {study.title}", saturation_figure(rows, study.curve.over))]


def _tuned(study: Study, scale: str, units: Sequence[Unit]) -> list[Drawn]:
    """The expected best over the number of settings tried."""
    tune = study.tune_at(scale)
    lines = tuned_lines(units, tune) if tune else []
    if not any(line.best for line in lines):
        return []
    return [Drawn(study.name, f"Expected best validation accuracy in {study.title}", expected_best_figure(lines))]


def _sweep(table: Table) -> list[Drawn]:
    """Accuracy over what a sweep varies, and the plane of best score against what a blind choice loses."""
    blocks = [block for block in table.blocks if block.axis]
    if not any(cell.mean is not None for block in blocks for row in block.rows for cell in row.cells):
        return []
    planes = [
        Drawn(f"{table.name}-plane", f"Best score and what a blind choice loses in {table.title}", plane_figure(block))
        for block in table.blocks
        if block.columns[0].key == BEST
    ]
    return [Drawn(table.name, f"Average accuracy in {table.title}", sweep_figure(blocks)), *planes]


def draw_study(study: Study, scale: str, units: Sequence[Unit]) -> list[Drawn]:
    """The study's own figures. Raises UserError where it has none, or nothing was measured."""
    tunes = study.tune_at(scale) is not None
    if not study.curve and not tunes and not study.vary_at(scale):
        fix = "`vary:`, `curve:` or `tune:` in its file: docs/tables.md"
        raise UserError(f"{study.name} varies nothing at {scale} scale", fix=fix)
    drawn = own_figures(study, scale, units, study_table(study, scale, units))
    if not drawn:
        raise UserError(
            f"no row of {study.name} was tried at all its settings" if tunes else f"nothing of {study.name} was run",
            where=f"store {units[0].folder.parent}",
            fix=f"tepo ablate {study.name} --scale {scale}",
        )
    return drawn
