"""A study as Python sees it: three frames of what is known of its runs, and its table."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from tepo.analysis.tables import study_table
from tepo.common.files import write_atomic
from tepo.common.grouping import grouped
from tepo.common.text import counted
from tepo.evaluation.statistics.samples import AVERAGE
from tepo.reporting.headline import headline
from tepo.reporting.tables.render import as_text
from tepo.reporting.tables.table import VERDICT, Table, verdict_in
from tepo.store.facts import Facts
from tepo.studies.plan import reported, row_key
from tepo.studies.plan_studies import Planned, scales_text

_ROWS, _LABEL = 16, 44  # of a table on one screen, and characters of a label


@dataclass(frozen=True, repr=False)
class StudyResult:
    """Facts of a study: `runs`, `scores` and `curves` are frames, and `table` is made from them.

    tables: as they are printed, one, or one a panel."""

    planned: Planned
    facts: Facts
    tables: tuple[Table, ...]

    @classmethod
    def of(cls, planned: Planned, facts: Facts) -> "StudyResult":
        """The tables of a plan, from the frames of its runs."""
        return cls(planned, facts, tuple(study_table(study, units, facts) for study, units in planned))

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A line a run of the plan: study, row (as in the table's own frame), label, setting, model, seed, objective,
        tuning, steps (planned), words (overrides), run (id), stale (a record of another run has its name), done,
        source ("store", "record" or nothing), finished, outcome, ending, trained (steps on record), made (sessions:
        versions, machine, dates), costs, validation, excerpt, cpu_s (seconds, all processes) and folder (in the
        store)."""
        folders = {unit.id: unit.folder.path for _, units in self.planned for unit in units}
        cpu = [sum(cost.cpu_s for cost in costs) for costs in self.facts.runs["costs"]]
        return self.facts.runs.assign(cpu_s=cpu, folder=self.facts.runs["run"].map(folders))

    @property
    def scores(self) -> pd.DataFrame:
        """A line a run, benchmark and problem: right, of samples; grader, task and timeouts of the measurement."""
        return self.facts.scores

    @property
    def curves(self) -> pd.DataFrame:
        """A line a run and step, a column a metric under verl's names; from records some metrics, with few digits."""
        return self.facts.curves

    @cached_property
    def table(self) -> pd.DataFrame:
        """A line a row of the tables, in percent and points.

        study, model, label; a column a benchmark; average with average_low and average_high (95%); difference to the
        baseline with difference_low and difference_high, its verdict and p (Holm's over the study); seeds; n: graded
        responses; runs: their ids. What was not measured is missing. The paper's figures are not among them."""
        return pd.DataFrame(list(self._lines()))

    @cached_property
    def charts(self) -> "dict[str, Any]":
        """Altair's charts of what was measured, by name: a notebook shows one, `.to_dict()` is its specification.
        `tepo figure STUDY` writes them to files."""
        from tepo.analysis.charts import study_charts
        from tepo.reporting.charts.style import styled

        return {
            chart.name: styled(chart.chart)
            for (study, units), table in zip(self.planned, self.tables, strict=True)
            for chart in study_charts(study, units, self.facts, table)
        }

    def to_markdown(self) -> str:
        """The tables, with the paper's figures below ours."""
        return "\n".join(as_text(table, "markdown") for table in self.tables)

    def save_page(self, path: str | Path) -> Path:
        """Write the self-contained HTML page: tables, curves, configurations, tokens. Returns its path."""
        from tepo.analysis.page import page, render_all

        write_atomic(Path(path), page(render_all(self.planned, self.facts)), "save_page(path)")
        return Path(path)

    def __repr__(self) -> str:
        """One screen: what was found, and averages and differences of the first rows."""
        runs = self.facts.runs.drop_duplicates(["run", "tuning"])
        several = len(self.tables) > 2
        titles = counted(len(self.tables), "table") if several else "; ".join(table.title for table in self.tables)
        lines = [
            f"{titles} ({scales_text(self.planned)}): {int(runs['done'].sum())} of {counted(len(runs), 'run')} measured"
        ]
        lines += [finding for table in self.tables[:2] if (finding := headline(table))]
        columns = [name for name in ("label", "average", "difference", "verdict") if name in self.table]
        rows = self.table[columns].head(_ROWS)
        if len(rows):
            short = rows["label"].str.slice(0, _LABEL)
            lines.append(rows.assign(label=short).to_string(index=False, na_rep="–", float_format="{:.1f}".format))
        if len(self.table) > len(rows):
            lines.append(f"… and {counted(len(self.table) - len(rows), 'row')} more in .table")
        return "\n".join(
            [*lines, ".runs .scores .curves .table: pandas frames; .charts: Altair's; .to_markdown(), .save_page(path)"]
        )

    def _repr_markdown_(self) -> str:
        """Markdown that a notebook shows."""
        return self.to_markdown()

    def _lines(self) -> Iterator[dict[str, Any]]:
        """The rows of `table`."""
        for table, (study, planned) in zip(self.tables, self.planned, strict=True):
            units = grouped((row_key(unit), unit) for unit in reported(planned))
            p_of = {
                comparison.row.key: comparison.measured.p for comparison in table.comparisons if comparison.measured
            }
            for block in table.blocks:
                for row in block.rows if not block.axis else ():
                    if not row.measured:
                        continue
                    cells = {column.key: cell for column, cell in zip(block.columns, row.cells, strict=True)}
                    average, row_units = cells[AVERAGE], units[row.key]
                    line: dict[str, Any] = {"study": study.name, "model": row_units[0].config.model.name}
                    line |= {"label": row_units[0].label} | {name: cells[name].mean for name in row_units[0].benchmarks}
                    line |= {"average": average.mean, "average_low": average.low, "average_high": average.high}
                    if delta := cells.get("delta"):
                        line |= {"difference": delta.mean, "difference_low": delta.low, "difference_high": delta.high}
                        line["verdict"] = verdict_in(cells[VERDICT].text) or None
                        line["p"] = p_of.get(row.key, math.nan)
                    runs = {
                        "seeds": [unit.seed for unit in row_units],
                        "n": average.n,
                        "runs": [unit.id for unit in row_units],
                    }
                    yield line | runs
