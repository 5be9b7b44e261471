"""A study as Python sees it: its tables and its runs."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tepo.common.files import write_atomic
from tepo.evaluation.statistics.comparison import AVERAGE, Difference
from tepo.reporting.tables.render import as_text
from tepo.reporting.tables.table import VERDICT, Block, Table, TableRow, verdict_in
from tepo.results.run_result import RunResult
from tepo.results.tables import study_table
from tepo.store.facts import Facts
from tepo.studies.plan import Unit, row_key, unique
from tepo.studies.planned_facts import Planned, read_facts


@dataclass(frozen=True)
class StudyResult:
    """Results of a study. tables: one, or one a panel."""

    planned: Planned
    scale: str
    facts: Facts
    tables: tuple[Table, ...]

    @classmethod
    def of(cls, planned: Planned, scale: str) -> "StudyResult":
        """Read what the store holds of a plan."""
        planned, facts = read_facts(planned, scale)
        return cls(planned, scale, facts, tuple(study_table(study, scale, units, facts) for study, units in planned))

    @property
    def runs(self) -> list[RunResult]:
        """The runs behind the tables, each once: trained ones and untrained bases."""
        return [RunResult(unit.folder) for unit in unique(unit for _, units in self.planned for unit in units)]

    def to_pandas(self) -> pd.DataFrame:
        """A line a row of the tables, in percent and points.

        study, model, label; a column a benchmark; average with average_low and average_high (95%); difference to the
        baseline with difference_low and difference_high, its verdict and p (Holm's over the study); seeds; n: graded
        responses; runs: their ids. What was not measured is missing. The paper's figures are not among them."""
        return pd.DataFrame(list(self._lines()))

    def to_markdown(self) -> str:
        """The tables, with the paper's figures below ours."""
        return "\n".join(as_text(table, "markdown") for table in self.tables)

    def save_page(self, path: str | Path) -> Path:
        """Write the self-contained HTML page: tables, curves, configurations, tokens. Returns its path."""
        from tepo.results.page import page, render_all

        write_atomic(Path(path), page(render_all(self.planned, self.facts, self.scale)), "save_page(path)")
        return Path(path)

    def _repr_markdown_(self) -> str:
        """Markdown that a notebook shows."""
        return self.to_markdown()

    def _lines(self) -> Iterator[dict[str, Any]]:
        for table, (study, planned) in zip(self.tables, self.planned, strict=True):
            units: dict[str, list[Unit]] = {}
            for unit in planned:
                if not unit.tuning:
                    units.setdefault(row_key(unit), []).append(unit)
            measured = {one.row.key: one.measured for one in table.comparisons if one.measured}
            for block in table.blocks:
                for row in block.rows:
                    if row.measured and not block.axis:
                        yield {"study": study.name, **_line(block, row, units[row.key], measured.get(row.key))}


def _line(block: Block, row: TableRow, units: list[Unit], one: Difference | None) -> dict[str, Any]:
    """A row of results."""
    cells = {column.key: cell for column, cell in zip(block.columns, row.cells, strict=True)}
    average, first = cells[AVERAGE], units[0]
    line: dict[str, Any] = {"model": first.config.model.name, "label": first.label}
    line |= {name: cells[name].mean for name in first.benchmarks}
    line |= {"average": average.mean, "average_low": average.low, "average_high": average.high}
    if "delta" in cells:
        delta = cells["delta"]
        line |= {"difference": delta.mean, "difference_low": delta.low, "difference_high": delta.high}
        line["verdict"] = verdict_in(cells[VERDICT].text) or None
        line["p"] = math.nan if one is None else one.p_holm
    line |= {"seeds": [unit.seed for unit in units], "n": average.n, "runs": [unit.id for unit in units]}
    return line
