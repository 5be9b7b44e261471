"""Findings of tables in a sentence, by rule from corrected verdicts: never the highest of many, and nothing from an
interval of one comparison among several."""

from collections import Counter
from collections.abc import Mapping, Sequence

from tepo.common.text import counted, listed
from tepo.evaluation.statistics.samples import AVERAGE
from tepo.evaluation.statistics.verdict import FEWEST_SEEDS, DeltaVerdict
from tepo.reporting.colours import UNTRAINED
from tepo.reporting.tables.cells import number_text
from tepo.reporting.tables.table import IDENTICAL, VERDICT, Cell, Table, TableBlock, TableRow, verdict_in

OUTCOME = "claim"  # the column of a registered claim's outcome
_FEW, _LETTERS = 3, 90  # rows that a sentence names, and what their names take at most
_TOO_FEW = f"Fewer than {FEWEST_SEEDS} seeds decide"


def headline(table: Table) -> str:
    """Finding of the table: how its claims came out, or what its rows are beside their baseline; of a table without
    averages its first note. Empty where rows are compared with nothing."""
    columns = {column.key for block in table.blocks for column in block.columns}
    if OUTCOME in columns:
        return _claims(table)
    blocks = [block for block in table.blocks if compared(block)]
    if drawn_blocks := [block for block in blocks if block.drawn]:
        return f"On average over such {drawn_blocks[0].drawn}s: {_verdicts(drawn_blocks)}"
    if blocks:
        return _verdicts(blocks)
    return table.notes[0].rstrip(".") if table.notes and AVERAGE not in columns else ""


def compared(block: TableBlock) -> list[tuple[TableRow, Cell, str]]:
    """The trained rows of a block with their measured difference and verdict; empty where it compares none."""
    deltas, words = block.column("delta"), block.column(VERDICT)
    trained = [row for row in block.rows if row.method != UNTRAINED]
    measured = [row for row in trained if deltas and words and deltas[row.key].mean is not None]
    return [(row, deltas[row.key], verdict_in(words[row.key].text)) for row in measured]


def _claims(table: Table) -> str:
    words = Counter(cell.text.partition(";")[0] for *_, column, cell in table.cells() if column.key == OUTCOME)
    judged_count = sum(words[outcome] for outcome in DeltaVerdict)
    if not judged_count:
        return f"{counted(words.total(), 'registered claim')}, none of them measured yet"
    return f"Of {counted(judged_count, 'registered claim')} {outcomes_text(words)}"


def outcomes_text(words: Mapping[str, int]) -> str:
    """Numbers of claims by their outcome: "2 hold, 1 is refuted and 1 is undecided"."""
    verbs = {DeltaVerdict.HOLDS: ("holds", "hold")}
    counts = [(outcome, words[outcome]) for outcome in DeltaVerdict if words.get(outcome)]
    return listed([f"{n} {verbs.get(outcome, (f'is {outcome}', f'are {outcome}'))[n > 1]}" for outcome, n in counts])


def _verdicts(blocks: Sequence[TableBlock]) -> str:
    """Verdicts of all blocks together; a row that is another one is not counted."""
    rows = [
        # with the model or setting of its block where it does not name that
        (_quoted(f"{block.label(row)} ({block.part})" if block.part else block.label(row)), cell.mean, word)
        for block in blocks
        for row, cell, word in compared(block)
    ]
    rows = [entry for entry in rows if entry[2] != IDENTICAL] or rows
    total, (first, *_), baseline = len(rows), rows, _quoted(blocks[0].baseline)
    apart = f" (separately for {len(blocks)} settings)" if len(blocks) > 1 else ""
    named: dict[str, list[str]] = {}
    for label, _, word in rows:
        named.setdefault(word, []).append(label)
    if set(named) <= {DeltaVerdict.NO_VERDICT, DeltaVerdict.NOT_COMPARABLE}:
        deltas = [delta for _, delta, _ in rows if delta is not None]
        ends = " to ".join(number_text(end, 1, "+") for end in dict.fromkeys((min(deltas), max(deltas))))
        who = f"{first[0]} lies" if total == 1 else f"{total} rows lie"
        why = f"{_TOO_FEW} nothing" if DeltaVerdict.NO_VERDICT in named else "No verdict"
        return f"{why}: {who} {ends} points from {baseline}{apart}"
    up, down = (named.get(word, []) for word in (DeltaVerdict.BETTER, DeltaVerdict.WORSE))
    untested = sum(len(named.get(word, ())) for word in (DeltaVerdict.NO_VERDICT, DeltaVerdict.NOT_COMPARABLE))
    undecided = total - len(up) - len(down) - untested
    without = f"; {untested} without a verdict" if untested else ""
    if undecided == total - untested:
        who = f"{first[0]} cannot" if total == 1 else f"None of {undecided} rows can"
        return f"{who} be told apart from {baseline}{without}{apart}"
    parts = [f"{_subject(up, total)} above {baseline}"] if up else []
    if down:
        none = "" if len(down) == total else ", none above"
        parts.append(f"{_subject(down, total)} below" + ("" if up else f" {baseline}{none}"))
    rest = (f"; {undecided} not decided" if undecided else "") + without
    return f"{', '.join(parts)}{rest}{apart}"


def _quoted(label: str) -> str:
    """A label with a comma, apart from the words around it."""
    return f'"{label}"' if ", " in label else label


def _subject(labels: Sequence[str], total: int) -> str:
    """ "A and B score", "12 of 16 rows score"."""
    if len(labels) <= _FEW and len(named := listed(labels)) <= _LETTERS:
        who = named
    else:
        who = f"All {total} rows" if len(labels) == total else f"{len(labels)} of {total} rows"
    return f"{who} {'score' if len(labels) > 1 else 'scores'}"
