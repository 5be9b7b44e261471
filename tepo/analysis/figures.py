"""Figures of studies: the papers', from the runs of `experiments/figures.yaml`, and those of a sweep and of tuning."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tepo.analysis.tables import study_table
from tepo.analysis.tuned_part import tuned_lines
from tepo.common.errors import UserError
from tepo.common.text import setting_text
from tepo.reporting.figures import Figure
from tepo.reporting.figures.curves import RunCurves
from tepo.reporting.figures.paper_figures import paper_figure
from tepo.reporting.figures.study_figures import LINES, sweep_figure, tried_figure
from tepo.reporting.tables.table import Table
from tepo.store.facts import Facts
from tepo.studies.plan import Unit
from tepo.studies.study import Study
from tepo.studies.vary import shown_axes


@dataclass(frozen=True)
class StudyFigure:
    """A figure, the name of its file, and what it shows."""

    name: str
    caption: str
    figure: Figure


def curves(units: Sequence[Unit], facts: Facts) -> list[RunCurves]:
    """Metrics of trained units, one curve a row and seed. Rows are called by their setting too where there are
    several."""
    several = len({setting_text(unit.row.setting.point) for unit in units}) > 1
    trained = {
        (unit.label if several else unit.row_label, unit.seed): unit for unit in units if unit.row.objective is not None
    }
    return [
        RunCurves(
            label, unit.row.objective or "", seed, facts.metrics(unit.id), unit.row.look, bool(facts.of(unit.id).ending)
        )
        for (label, seed), unit in trained.items()
    ]


def draw_figure(
    study: Study, name: str, scale: str, units: Sequence[Unit], facts: Facts, against: str = "steps"
) -> Figure:
    """One figure of the study; against: as `paper_figure`. Raises UserError naming the rows that were not run."""
    wanted = next(figure.rows for figure in study.figures if figure.name == name)
    chosen = [unit for unit in units if unit.row.label in wanted]
    missing = sorted({unit.label for unit in chosen if not facts.of(unit.id, tuning=unit.tuning).done})
    if missing:
        raise UserError(
            f"figure {name} needs rows that were not run: {', '.join(missing)}",
            where=f"store {chosen[0].folder.parent}",
            fix=f"tepo ablate figures --scale {scale}",
        )
    table = study_table(replace(study, baseline=None), scale, chosen, facts)
    return paper_figure(name, curves(chosen, facts), table.blocks[0], against)


def study_figures(study: Study, scale: str, units: Sequence[Unit], facts: Facts, table: Table) -> list[StudyFigure]:
    """Figures of what was measured. With `tune:` validation accuracy at each setting that was tried, along the first
    range; with `vary:` accuracy over what varies. table: the study's."""
    tune = study.tune_at(scale)
    lines = tuned_lines(units, tune, facts) if tune else []
    if tune and tune.first_range and any(line.known for line in lines):
        axis = shown_axes(tune.space)[tune.first_range]
        caption = f"Validation accuracy over {axis} in {study.title}; filled: with all tuning seeds, ringed: chosen"
        drawn = tried_figure(lines, axis, log="log" in tune.space[tune.first_range])
        return [StudyFigure(f"{study.name}-settings", caption, drawn)]
    swept = [block for block in table.blocks if block.axis]
    if any(cell.mean is not None for block in swept for row in block.rows for cell in row.cells):
        return [StudyFigure(table.name, LINES, sweep_figure(swept))]
    return []


def draw_study(study: Study, scale: str, units: Sequence[Unit], facts: Facts) -> list[StudyFigure]:
    """The study's own figures. Raises UserError where it has none, or nothing was measured."""
    drawn = study_figures(study, scale, units, facts, study_table(study, scale, units, facts))
    if drawn:
        return drawn
    tune = study.tune_at(scale)
    if not study.vary_at(scale) and not (tune and tune.first_range):
        what = f"{study.name} has no figure at {scale} scale: it varies nothing, and tunes no range of numbers"
        raise UserError(what, fix="`vary:` or `tune:` in its file: docs/tables.md")
    raise UserError(
        f"nothing of {study.name} was run",
        where=f"store {units[0].folder.parent}",
        fix=f"tepo ablate {study.name} --scale {scale}",
    )
