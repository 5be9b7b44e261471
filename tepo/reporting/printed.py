"""Figures as papers print them: a CSV beside the study that they belong to.

Lines that begin with # stand at its head: the first names the paper, the others where its figures stand. A row is told
apart by `method`, and where that leaves several by `model`, `panel`, `steps`, `seed` and `kind`: `row` (a measurement,
also if it is left out), `mean` (over seeds) or another word for what is not measured. `label` is what the paper calls
it. All other columns are the paper's, in its order and under its names: percent, an empty cell is a dash. The last may
be its average, `Avg.`; a paper that prints none has the mean of its columns for one, and the table says so.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tepo.common.errors import UserError, unknown_name

AVERAGE = "Avg."
_CHOICES = ("model", "method", "panel", "steps", "seed")
_KEYS = (*_CHOICES, "kind", "label")


@dataclass(frozen=True)
class PaperRow:
    """A printed row. scores: printed name of a column -> percent, None for a dash. averaged: the average is the mean
    of the columns, which the paper does not print."""

    paper: str
    scores: Mapping[str, float | None]
    average: float
    method: str
    label: str
    model: str = ""
    panel: str = ""
    kind: str = "row"
    steps: str = ""
    seed: str = ""
    averaged: bool = False

    @property
    def complete(self) -> bool:
        return all(score is not None for score in self.scores.values())


@cache
def load_table(path: Path) -> tuple[PaperRow, ...]:
    """The rows of a printed table in the paper's order. Raises UserError for a file that is not there or not such a
    table, with its line."""
    where = str(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        what = f"no printed figures can be read: {error.strerror}"
        raise UserError(what, where=where, fix="`table:` is a CSV, from the folder of its study") from error
    head = [line.lstrip("# ") for line in lines if line.startswith("#")]
    if len(head) < 2:
        fix = "# DAPO, arXiv 2503.14476, and in the next line # https://arxiv.org/abs/2503.14476v2, Table 1"
        raise UserError("printed figures begin with two comments, the paper and where they stand", where=where, fix=fix)
    reader = csv.DictReader(lines[len(head) :])
    columns = [name for name in reader.fieldnames or () if name not in _KEYS]
    if not {"method", "label"} <= set(reader.fieldnames or ()) or not {*columns} - {AVERAGE}:
        fix = f"the columns {', '.join(_KEYS)} as far as needed, then those of the paper"
        raise UserError(
            "printed figures have the columns method and label, and some of the paper", where=where, fix=fix
        )
    rows = []
    for line in reader:
        here = f"{where}, line {len(head) + reader.line_num}"
        try:
            cells = {name: float(line[name]) if line[name] else None for name in columns}
        except (TypeError, ValueError) as error:
            raise UserError("a cell that is not a number", where=here, fix="percent, or nothing for a dash") from error
        average = cells.pop(AVERAGE, None)
        printed = [score for score in cells.values() if score is not None]
        if average is None and not printed:
            raise UserError("a row without a figure", where=here, fix="leave the row out")
        mean = sum(printed) / len(printed) if average is None else average
        keys = {name: line[name] for name in _KEYS if line.get(name)}
        rows.append(PaperRow(head[0], cells, mean, averaged=average is None and len(cells) > 1, **keys))
    return tuple(rows)


def printed_row(path: Path, **keys: str | int | None) -> PaperRow:
    """The printed row that fits the keys; None does not count. Raises UserError when there is no such row (with the
    nearest name) or more than one."""
    kind = keys.pop("kind", None) or "row"
    where = "/".join(map(str, (path.stem, *filter(None, (keys.get("model"), keys.get("method"))))))
    rows = [row for row in load_table(path) if row.kind == kind]
    for field in _CHOICES:
        choice = keys.get(field)
        if choice is None:
            continue
        matching = [row for row in rows if getattr(row, field) == str(choice)]
        if not matching:
            known = {getattr(row, field) or "(none)" for row in rows}
            raise unknown_name(f"{field} of {path.stem}", str(choice), known, where=f"reference row {where}")
        rows = matching
    if len({(tuple(row.scores.items()), row.average) for row in rows}) != 1:
        apart = "; ".join(
            " ".join(f"{field}={getattr(row, field) or '-'}" for field in ("model", "panel", "steps", "seed"))
            for row in rows
        )
        what = f"{len(rows)} rows of {path.stem} fit {where}"
        raise UserError(what, where="reference row", fix=f"give model, panel, steps or seed: {apart}")
    return rows[0]
