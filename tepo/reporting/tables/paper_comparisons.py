"""The papers' comparisons beside ours: for each row that a study compares with its baseline, the printed difference,
the measured one, and whether it shows."""

import math
from collections.abc import Mapping, Sequence

from tepo.evaluation.statistics.verdict import FEWEST_SEEDS, DeltaVerdict
from tepo.reporting.colours import UNTRAINED
from tepo.reporting.tables.table import Cell, Column, Kind, RowComparison, Table, TableBlock, TableRow

_COLUMNS = (
    Column("paper", "Δ Avg., paper", Kind.DELTA),
    Column("here", "Δ Avg., here", Kind.DELTA),
    Column("verdict", "Here", Kind.TEXT),
)
_FOUND = Column("found", "Could be seen", Kind.TEXT)


def paper_comparisons(tables: Sequence[Table], found: Mapping[str, str] | None = None) -> Table:
    """A block for each table, with a row for each of its compared rows that the paper printed too, but for the base.

    found: name of a table -> the smallest difference that its runs find with 80%, in words; a column of them."""
    printed = [
        (table, comparison, outcome(comparison))
        for table in tables
        for comparison in table.comparisons
        if comparison.paper is not None and comparison.row.method != UNTRAINED
    ]
    columns = (*_COLUMNS, *([_FOUND] if found is not None else []))
    blocks = []
    for title in dict.fromkeys(table.title for table, *_ in printed):
        rows = [
            TableRow(
                f"{table.name}/{comparison.row.key}",
                f"{comparison.row.label} against {comparison.baseline.label}",
                (
                    Cell(comparison.paper),
                    comparison.cell,
                    Cell(text=words),
                    Cell(text=(found or {}).get(table.name, "")),
                )[: len(columns)],
                comparison.row.method,
                comparison.row.look,
            )
            for table, comparison, words in printed
            if table.title == title
        ]
        blocks.append(TableBlock(title, columns, tuple(rows), decimals=2))
    outcomes = [words for _, one, words in printed if not one.same_as]
    same_count = len(printed) - len(outcomes)
    shown_count, lacking = sum(words.startswith("shows: ") for words in outcomes), outcomes.count("not measured")
    alone = sum(words.endswith(DeltaVerdict.NO_VERDICT) for words in outcomes)
    note = (
        f"{shown_count} of {len(outcomes)} differences of the papers to the baseline of their table show here: "
        "same sign, and better or worse as in the table of its study"
        + (f"; {lacking} not measured" if lacking else "")
        + (f"; left out: {same_count} of rows that train as another one here" if same_count else "")
        + (f"; {alone} of fewer than {FEWEST_SEEDS} seeds, so without a verdict" if alone else "")
    )
    caution = (
        "Other models on other problems: "
        "a difference that does not show here is not refuted, one that shows is not confirmed."
    )
    seen = f"{_FOUND.title}: the smallest difference that as many runs find with 80%, corrected as in the study."
    notes = (f"{note}.", caution, *([seen] if found is not None else []))
    return Table("gains", "What of the papers' comparisons shows at this scale", tuple(blocks), notes)


def outcome(one: RowComparison) -> str:
    """Words for a printed and a measured difference, with the verdict of its table. It shows where it is decided and
    has the sign of the printed one; what sets a row apart from another cannot, where the two train alike."""
    assert one.paper is not None
    if one.same_as:
        return f"trains as {one.same_as} here"
    if one.measured is None or math.isnan(one.measured.delta):
        return "not measured"
    if one.measured.verdict is DeltaVerdict.NO_VERDICT:
        return one.words
    if one.measured.verdict not in (DeltaVerdict.BETTER, DeltaVerdict.WORSE):
        return f"does not show: {one.words}"
    return f"{'shows' if (one.measured.delta > 0) == (one.paper > 0) else 'opposite'}: {one.words}"
