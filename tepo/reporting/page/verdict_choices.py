"""Verdicts under other choices: a comparison alone and in its family, at several margins, over some of its seeds.

All of them are computed when the page is made, by the functions that make the verdict of the table. The page's script
looks them up.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tepo.evaluation.statistics.comparison import Difference, Pair, corrected
from tepo.evaluation.statistics.comparison_verdict import FEWEST_SEEDS, Verdict
from tepo.evaluation.statistics.equivalence import decide
from tepo.reporting.colours import UNTRAINED
from tepo.reporting.headline import compared
from tepo.reporting.page.packed import packed
from tepo.reporting.paper.reference import printed_gains
from tepo.reporting.tables.cells import format_interval, format_value
from tepo.reporting.tables.renderers.html_table import swatch
from tepo.reporting.tables.table import IDENTICAL, Column, Kind, Table, difference_cell, verdict_words

MARGINS = {"0": 0.0, "1": 1.0, "2": 2.0, "4": 4.0}  # points
DEPENDS = "it depends on the seed left out"
_FIRST = (3, 5)  # seeds
_COLUMN = Column("", "", Kind.DELTA)
_MARKS: dict[str, str] = {
    Verdict.BETTER: "better",
    Verdict.WORSE: "worse",
    Verdict.EQUIVALENT: "equivalent",
    Verdict.NOT_DECIDED: "noise",
    DEPENDS: "depends",
}
_GLYPHS = {
    "better": "▲", "worse": "▼", "equivalent": "■", "noise": "○", "depends": "◊", "none": "–",
}  # fmt: skip
"""Shapes of the words, as letters that every font has."""

Seeds = tuple[int, ...]


@dataclass(frozen=True)
class Compared:
    """A measured comparison. section: a heading over neighbours. shown: False where it has no verdict of its own and
    counts in the family."""

    label: str
    pair: Pair
    swatch: Markup
    section: str
    shown: bool


@dataclass(frozen=True)
class Word:
    """A verdict under one choice: its word, and what is said of it."""

    word: str
    text: str

    @property
    def mark(self) -> str:
        """Name of its shape."""
        return _MARKS.get(self.word, "none")

    @property
    def glyph(self) -> str:
        return _GLYPHS[self.mark]


@dataclass(frozen=True)
class Strip:
    """A comparison under every choice. family: its size as declared. intervals: of each choice of seeds.
    words: [family: alone, as declared][seeds][margin]."""

    label: str
    swatch: Markup
    section: str
    family: int
    intervals: tuple[str, ...]
    words: tuple[tuple[tuple[Word, ...], ...], ...]


@dataclass(frozen=True)
class VerdictChoices:
    """The strips of a study; none where it has too few seeds. seeds, margins: names of the choices. declared: family,
    seeds and margin of the verdict in the table. order: seeds as declared."""

    name: str
    strips: tuple[Strip, ...] = ()
    seeds: tuple[str, ...] = ()
    margins: tuple[str, ...] = ()
    declared: tuple[int, int, int] = (1, 0, 0)
    order: tuple[int, ...] = ()

    @property
    def gains(self) -> str:
        """Gains that the paper printed, to be put beside a margin."""
        return printed_gains()

    @property
    def legend(self) -> list[Word]:
        """One word of each shape that occurs."""
        known = {one.mark: one for strip in self.strips for own in strip.words for part in own for one in part}
        return [known[mark] for mark in _GLYPHS if mark in known]

    @property
    def data(self) -> str:
        """Packed for the page's script."""
        strips = [
            [strip.intervals, [[[one.text for one in part] for part in own] for own in strip.words]]
            for strip in self.strips
        ]
        legend = {one.glyph: one.word for one in self.legend}
        names = {"seeds": self.seeds, "margins": self.margins, "declared": self.declared, "legend": legend}
        return packed(names | {"strips": strips})


def verdict_choices(table: Table) -> VerdictChoices | None:
    """Choices for each measured row beside its baseline; None where the table compares nothing. Rows whose runs are the
    baseline's have no verdict, here neither."""
    known = {one.row.key: one for one in table.comparisons if one.measured and one.pair}
    shared = {seed for one in known.values() if one.pair for seed in one.pair.seeds}
    rows = [row for one in known.values() for row in (one.baseline, one.row) if row.method != UNTRAINED]
    order = tuple(dict.fromkeys(seed for row in rows for seed in row.seeds if seed in shared))
    family = [
        Compared(block.label(row), pair, Markup(swatch(row.look, row.method)), block.part, verdict != IDENTICAL)
        for block in table.blocks
        for row, _, verdict in compared(block)
        if row.key in known and (pair := known[row.key].pair)
    ]
    if not family:
        return None
    sets = _seed_sets(order)
    if not sets:
        return VerdictChoices(table.name)
    size = next(one.measured.family for one in known.values() if one.measured)
    every = next(index for index, choice in enumerate(sets) if choice.startswith("all"))
    strips = tuple(_strips(family, size, sets))
    return VerdictChoices(table.name, strips, tuple(sets), tuple(MARGINS), (1, every, 0), order)


def _seed_sets(order: Seeds) -> dict[str, list[Seeds]]:
    """Choices of seeds: the first few, all of them, and each left out in turn. Empty for fewer than give a verdict."""
    if len(order) < FEWEST_SEEDS:
        return {}
    sets = {f"first {count}": [order[:count]] for count in _FIRST if count < len(order)}
    sets[f"all {len(order)}"] = [order]
    if len(order) > FEWEST_SEEDS:
        sets["one left out"] = [order[:left] + order[left + 1 :] for left in range(len(order))]
    return sets


def _strips(family: Sequence[Compared], size: int, sets: Mapping[str, Sequence[Seeds]]) -> list[Strip]:
    """Strips of the comparisons that are shown. size: of the family, with those that are not measured."""
    found = {
        seeds: [one.pair.over(seeds).difference() for one in family] for choice in sets.values() for seeds in choice
    }
    together = {
        (seeds, margin): _judged(differences, size, margin)
        for seeds, differences in found.items()
        for margin in MARGINS.values()
    }
    strips = []
    for number, one in enumerate(family):
        if not one.shown:
            continue
        alone = {
            (seeds, margin): _judged([differences[number]], 1, margin)[0]
            for seeds, differences in found.items()
            for margin in MARGINS.values()
        }
        own = {key: words[number] for key, words in together.items()}
        words = tuple(
            tuple(
                tuple(_summary([judged[seeds, margin] for seeds in choice]) for margin in MARGINS.values())
                for choice in sets.values()
            )
            for judged in (alone, own)
        )
        intervals = tuple(_interval([found[seeds][number] for seeds in choice]) for choice in sets.values())
        strips.append(Strip(one.label, one.swatch, one.section, size, intervals, words))
    return strips


def _judged(differences: Sequence[Difference], size: int, margin: float) -> list[Word]:
    """Verdicts of a family of so many: without a margin the rule of the table, else that with equivalence."""
    if margin == 0:
        return [_row_word(one, one.verdict, one.p_holm) for one in corrected(differences, size)]
    tested = [one if one.seeds >= FEWEST_SEEDS else None for one in differences]
    decided = decide([*tested, *[None] * (size - len(tested))], [margin / 100] * size)
    return [
        _row_word(one, decision.verdict, decision.p) if decision else _row_word(one, one.verdict, one.p_holm)
        for one, decision in zip(differences, decided, strict=False)
    ]


def _row_word(one: Difference, verdict: Verdict, p: float) -> Word:
    verdict = Verdict.NOT_DECIDED if verdict is Verdict.UNDECIDED else verdict
    return Word(verdict, verdict_words(verdict, p, one.seeds))


def _summary(words: Sequence[Word]) -> Word:
    """Verdict of one set of seeds, or what those of several have in common."""
    if len(words) == 1:
        return words[0]
    counts = Counter(one.word for one in words)
    if len(counts) == 1:
        return Word(words[0].word, f"{words[0].word}, whichever seed is left out")
    said = ", ".join(f"{word} in {count}" for word, count in counts.most_common())
    return Word(DEPENDS, f"{said} of {len(words)}")


def _interval(differences: Sequence[Difference]) -> str:
    """The difference with its interval; of several sets of seeds, the range of the differences."""
    cells = [difference_cell(one) for one in differences]
    means = sorted((cell.mean, format_value(cell, _COLUMN, 1)) for cell in cells if cell.mean is not None)
    if len(differences) > 1 and means:
        return f"{means[0][1]} to {means[-1][1]}"
    return " ".join(f"{format_value(cell, _COLUMN, 1)} {format_interval(cell, _COLUMN, 1)}".strip() for cell in cells)
