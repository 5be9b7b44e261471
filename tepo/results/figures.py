"""Figures of studies: the papers', from the runs of `experiments/figures.yaml`, and those of a sweep, of fitted curves,
of tuning, and of the runs behind the means."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.figure import Figure

from tepo.common.errors import UserError
from tepo.common.text import setting_text
from tepo.reporting.figures.curves import RunCurves
from tepo.reporting.figures.paper_figures import paper_figure
from tepo.reporting.figures.study_figures import (
    LINES,
    expected_best_figure,
    plane_figure,
    profile_figure,
    scaling_figure,
    sweep_figure,
    tried_figure,
)
from tepo.reporting.tables.sweep_table import BEST
from tepo.reporting.tables.table import Table
from tepo.results.run_scores import study_groups
from tepo.results.scaling_fits import curve_rows
from tepo.results.tables import study_table
from tepo.results.tuned_part import tuned_lines
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
        RunCurves(label, unit.row.objective or "", seed, facts.metrics(unit.id), unit.row.look, bool(facts.of(unit.id).ending))
        for (label, seed), unit in trained.items()
    ]


def draw_figure(study: Study, name: str, scale: str, units: Sequence[Unit], facts: Facts, against: str = "steps") -> Figure:
    """One figure of the study; against: as `paper_figure`. Raises UserError naming the rows that were not run."""
    wanted = next(figure.rows for figure in study.figures if figure.name == name)
    chosen = [unit for unit in units if unit.row.label in wanted]
    missing = sorted({unit.label for unit in chosen if not facts.of(unit.id).done})
    if missing:
        raise UserError(
            f"figure {name} needs rows that were not run: {', '.join(missing)}",
            where=f"store {chosen[0].folder.parent}",
            fix=f"tepo ablate figures --scale {scale}",
        )
    table = study_table(replace(study, baseline=None), scale, chosen, facts)
    return paper_figure(name, curves(chosen, facts), table.blocks[0], against)


def study_figures(study: Study, scale: str, units: Sequence[Unit], facts: Facts, table: Table) -> list[StudyFigure]:
    """Figures of what was measured. With `curve:`, `tune:` or `vary:`: scores over compute with their fits, the
    expected best over the number of settings tried, validation accuracy at each of them, accuracy over what a sweep
    varies, and the plane of best score against what a blind choice loses. Without `vary:`: profiles of the rows with
    two runs or more. table: the study's."""
    figures = []
    if study.curve and (rows := [row for row in curve_rows(study, units) if row.fit]):
        drawn = scaling_figure(rows, study.curve.over)
        figures.append(StudyFigure(study.name, "Fitted curves", drawn))
    tune = study.tune_at(scale)
    lines = tuned_lines(units, tune, facts) if tune else []
    if any(line.best for line in lines):
        caption = "Expected best validation accuracy"
        figures.append(StudyFigure(study.name, caption, expected_best_figure(lines)))
    if tune and tune.first_range and any(line.best for line in lines):
        axis = shown_axes(tune.space)[tune.first_range]
        caption = f"Validation accuracy over {axis} in {study.title}; filled: with all tuning seeds, ringed: chosen"
        drawn = tried_figure(lines, axis, log="log" in tune.space[tune.first_range])
        figures.append(StudyFigure(f"{study.name}-settings", caption, drawn))
    swept = [block for block in table.blocks if block.axis]
    if any(cell.mean is not None for block in swept for row in block.rows for cell in row.cells):
        figures.append(StudyFigure(table.name, LINES, sweep_figure(swept)))
        caption = "Best score and what a blind choice loses"
        planes = [plane_figure(block) for block in table.blocks if block.columns[0].key == BEST]
        figures += [StudyFigure(f"{table.name}-plane", caption, plane) for plane in planes]
    for number, group in enumerate([] if swept else study_groups(study, units), start=1):
        name = f"{table.name}-profiles" + (f"-{number}" if group.title else "")
        figures.append(StudyFigure(name, f"Runs behind the means in {table.title}", profile_figure(group)))
    return figures


def draw_study(study: Study, scale: str, units: Sequence[Unit], facts: Facts) -> list[StudyFigure]:
    """The study's own figures. Raises UserError where it has none, or nothing was measured."""
    drawn = study_figures(study, scale, units, facts, study_table(study, scale, units, facts))
    if drawn:
        return drawn
    tunes = study.tune_at(scale) is not None
    if not study.curve and not tunes and not study.vary_at(scale):
        what = f"{study.name} varies nothing at {scale} scale, and no two rows of it were measured under two seeds"
        raise UserError(what, fix="`vary:`, `curve:` or `tune:` in its file: docs/tables.md; or `--seeds 0,1,2`")
    raise UserError(
        f"no row of {study.name} was tried at all its settings" if tunes else f"nothing of {study.name} was run",
        where=f"store {units[0].folder.parent}",
        fix=f"tepo ablate {study.name} --scale {scale}",
    )
