"""Results of several studies as one short Markdown document: what was run, the registered claims, a table a study.

It is read at one sitting. What it leaves out (benchmarks, tuning, tolerance, notes) is in `tepo table` and on the page.
"""

from dataclasses import replace
from pathlib import Path

from tepo.analysis.claims_table import NAME as CLAIMS
from tepo.analysis.claims_table import summary
from tepo.common.files import write_atomic
from tepo.evaluation.statistics.samples import AVERAGE
from tepo.launch.run_units import spent
from tepo.reporting.charts.style import svg
from tepo.reporting.page import PageContent
from tepo.reporting.tables.render import as_text, markdown_text
from tepo.reporting.tables.table import VERDICT, Table, TableBlock
from tepo.store.facts import Facts
from tepo.studies.plan_studies import Planned

_SHOWN = (AVERAGE, "delta", VERDICT, "setting")  # columns of rows that are compared with a baseline
_HOW_TO_READ = (
    "How to read it: accuracy is the mean over all benchmarks in percent, Δ is in points. ± is half of the 95% "
    "interval over seeds and problems; brackets are 95% intervals too, each by itself, and 90% of a claim whose region "
    "has one end. p is corrected over the batch of a claim or the comparisons of a study. Bold: the best of a column, "
    "and what cannot be told apart from it. "
    "†: some runs ended early and were measured on their last weights. `tepo table NAME --records` has the benchmarks, "
    "the seeds and all notes."
)


def write_results(path: Path, rendered: PageContent, planned: Planned, facts: Facts, command: str) -> None:
    """Write the document, and its pictures as SVG beside it: `NAME-opening.svg`, and `NAME-MAP.svg` for each map of a
    sweep. command: the one behind it, which the document names."""
    runs = {unit.id: facts.of(unit.key) for _, units in planned for unit in units}
    costs = {run: known.costs for run, known in runs.items() if known.done}
    notes = {study.name: study.notes for study, _ in planned}
    pictures = {"opening": rendered.pictures[0].chart} if rendered.pictures else {}
    claims = [study.table for study in rendered.studies if study.table.name == CLAIMS]
    parts = [
        f"# {'Registered claims' if claims else 'Results'} at {rendered.head.scales} scale",
        f"Written by `{command}`.",
        *(f"![{markdown_text(chart.caption)}]({path.stem}-opening.svg)" for chart in rendered.pictures[:1]),
        " ".join(filter(None, (rendered.head.ran, rendered.head.caveat))),
        f"{spent(costs)}.",
        _HOW_TO_READ,
        *(part for table in claims for part in (f"## {markdown_text(table.title)}", summary(table))),
    ]
    for study in rendered.studies:
        if study.table.name == CLAIMS:
            continue
        blocks = shown_blocks(study.table)
        is_sweep = any(block.axis for block in blocks)
        maps = {chart.name: chart.chart for chart in study.charts if is_sweep and chart.kind == "map"}
        pictures |= maps
        short = replace(study.table, blocks=blocks, notes=notes.get(study.table.name, ()))
        title, _, rest = as_text(short, "markdown").partition("\n")
        parts += [title, f"**{markdown_text(study.finding)}.**" if study.finding else ""]
        parts += [f"![{markdown_text(study.table.title)}]({path.stem}-{name}.svg)" for name in maps]
        parts.append(rest.strip())
    for name, chart in pictures.items():
        write_atomic(path.with_name(f"{path.stem}-{name}.svg"), svg(chart), "--results FILE")
    write_atomic(path, "\n\n".join(filter(None, parts)) + "\n", "--results FILE")


def shown_blocks(table: Table) -> tuple[TableBlock, ...]:
    """Blocks of a table for a short document: rows beside their baseline (over an axis that is drawn, if any) with
    average, difference and verdict; without a baseline a sweep's averages, or the averages. All of another table."""
    blocks = [block for block in table.blocks if block.drawn]
    if not blocks and (compared := [*map(_narrow, _with_column(table, VERDICT))]):
        blocks = [replace(compared[0], rows=tuple(row for block in compared for row in block.rows))]
    blocks = blocks or [block for block in table.blocks if block.axis] or [*map(_narrow, _with_column(table, AVERAGE))]
    return tuple(replace(block, notes=()) for block in blocks or table.blocks)


def _with_column(table: Table, key: str) -> list[TableBlock]:
    return [block for block in table.blocks if any(column.key == key for column in block.columns)]


def _narrow(block: TableBlock) -> TableBlock:
    return block.with_columns(place for place, column in enumerate(block.columns) if column.key in _SHOWN)
