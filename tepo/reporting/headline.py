"""Findings of tables in a sentence, by rule from corrected verdicts: never the highest of many, and nothing from an
interval of one comparison among several."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from tepo.common.grouping import grouped
from tepo.common.text import counted, listed
from tepo.evaluation.statistics.samples import AVERAGE
from tepo.evaluation.statistics.verdict import FEWEST_SEEDS, DeltaVerdict
from tepo.reporting.colours import UNTRAINED
from tepo.reporting.tables.cells import number_text
from tepo.reporting.tables.table import (
    ENDED,
    IDENTICAL,
    OUTCOME,
    SAME,
    VERDICT,
    Cell,
    Table,
    TableBlock,
    TableRow,
    verdict_in,
)

_FEW, _LETTERS = 3, 90  # rows that a sentence names, and what their names take at most
_UNTESTED = {DeltaVerdict.NO_VERDICT, DeltaVerdict.NOT_COMPARABLE}
_TOO_FEW = f"Fewer than {FEWEST_SEEDS} seeds decide"


def headline(*tables: Table, own: Collection[str] = ()) -> str:
    """Finding of the tables in one sentence: how claims came out, and what rows are beside their baselines; of a single
    table without averages its first note. Empty where rows are compared with nothing. own: keys of the reader's own
    rows, which are named first."""
    parts = [_claims(table) for table in tables if OUTCOME in _columns(table)]
    blocks = [block for table in tables for block in decisive(table)]
    if blocks:
        drawn = f"On average over such {blocks[0].drawn}s: " if all(block.drawn for block in blocks) else ""
        parts.append(drawn + _verdicts(blocks, own))
    if not parts and len(tables) == 1 and tables[0].notes and AVERAGE not in _columns(tables[0]):
        parts.append(tables[0].notes[0].rstrip("."))
    return "; ".join(parts)


def decisive(table: Table) -> list[TableBlock]:
    """The blocks that compare rows with a baseline: over an axis that is drawn, where there are such."""
    blocks = [block for block in table.blocks if OUTCOME not in _columns(table) and compared(block)]
    return [block for block in blocks if block.drawn] or blocks


def _columns(table: Table) -> set[str]:
    return {column.key for block in table.blocks for column in block.columns}


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


_Entry = tuple[str, float | None, str]  # label, difference and verdict of a row


def _verdicts(blocks: Sequence[TableBlock], own: Collection[str]) -> str:
    """Verdicts of all blocks together, those of the reader's own rows first; a row that is another one, and a second
    time the same row, is not counted."""
    entries: dict[tuple[str, str], tuple[bool, _Entry]] = {}
    for block in blocks:
        for row, cell, word in compared(block):
            # with the model or setting of its block where it does not name that
            label = block.label(row).removesuffix(f" {SAME}").removesuffix(f" {ENDED}")  # marks are of tables
            label = _quoted(f"{label} ({block.part})" if block.part else label)
            entries.setdefault((label, word), (row.key in own, (label, cell.mean, word)))
    distinct = [entry for entry in entries.values() if entry[1][2] != IDENTICAL] or list(entries.values())
    baselines, parts = {block.baseline for block in blocks}, {block.part for block in blocks if block.part}
    baseline = _quoted(blocks[0].baseline) if len(baselines) == 1 else "their baseline"
    apart = f" (separately for {len(parts)} settings)" if len(parts) > 1 else ""
    first, others = ([entry for is_own, entry in distinct if is_own is flag] for flag in (True, False))
    if not first or not others:
        return _finding(first or others, baseline, ", none above") + apart
    names = [label for label, *_ in others]
    if all(word == DeltaVerdict.NO_VERDICT for *_, word in (*first, *others)):
        return f"{_finding(first, baseline)} and {_named(names, 'the {} others')} {_range(others)}{apart}"
    if all(word in (DeltaVerdict.NOT_DECIDED, IDENTICAL) for *_, word in (*first, *others)):
        return f"{_finding(first, baseline)}, nor can {_named(names, 'any of {} others')}{apart}"
    rest = _finding(others, "it" if len(baselines) == 1 else baseline)
    # words of ours, and no label, begin a sentence
    rest = rest[0].lower() + rest[1:] if rest.startswith(("None of", "All ", "No verdict", _TOO_FEW)) else rest
    return f"{_finding(first, baseline)}; {rest}{apart}"


def _range(rows: Sequence[_Entry]) -> str:
    """The smallest and the largest difference: "−4.0 to +0.4"."""
    deltas = [delta for _, delta, _ in rows if delta is not None]
    return " to ".join(number_text(end, 1, "+") for end in dict.fromkeys((min(deltas), max(deltas))))


def _finding(rows: Sequence[_Entry], baseline: str, none: str = "") -> str:
    """What the rows are beside their baseline. none: said where some are below it and none is above."""
    total = len(rows)
    named = grouped((word, label) for label, _, word in rows)
    if set(named) <= _UNTESTED:
        who = f"{rows[0][0]} lies" if total == 1 else f"{total} rows lie"
        why = f"{_TOO_FEW} nothing" if DeltaVerdict.NO_VERDICT in named else "No verdict"
        return f"{why}: {who} {_range(rows)} points from {baseline}"
    up, down = (named.get(word, []) for word in (DeltaVerdict.BETTER, DeltaVerdict.WORSE))
    untested = [label for word in _UNTESTED for label in named.get(word, ())]
    undecided = [label for label, *_ in rows if label not in (*up, *down, *untested)]
    without = f"; {len(untested)} without a verdict" if untested else ""
    if not up and not down:
        who = _named(undecided, "None of {} rows")
        return f"{who} can{'' if who.startswith('None of') else 'not'} be told apart from {baseline}{without}"
    parts = [f"{_subject(up, total)} above {baseline}"] if up else []
    if down:
        parts.append(
            f"{_subject(down, total)} below" + ("" if up else f" {baseline}{none if len(down) < total else ''}")
        )
    rest = f"; {len(undecided)} not decided" if undecided else ""
    return f"{', '.join(parts)}{rest}{without}"


def _quoted(label: str) -> str:
    """A label with a comma, apart from the words around it."""
    return f'"{label}"' if ", " in label else label


def _named(labels: Sequence[str], many: str) -> str:
    """The labels where they are few and short; else how many they are, in the words of `many`."""
    few = len(labels) <= _FEW and len(listed(labels)) <= _LETTERS
    return listed(labels) if few else many.format(len(labels))


def _subject(labels: Sequence[str], total: int) -> str:
    """ "A and B score", "12 of 16 rows score"."""
    many = f"All {total} rows" if len(labels) == total else f"{{}} of {total} rows"
    return f"{_named(labels, many)} {'score' if len(labels) > 1 else 'scores'}"
