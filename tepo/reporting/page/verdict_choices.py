"""Verdicts under other choices: a comparison alone and in its family, at several margins, over some of its seeds.

All of them are computed when the page is made, by the functions that make the verdict of the table. The page's script
looks them up.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tepo.evaluation.statistics.comparison import Difference, Pair, corrected
from tepo.evaluation.statistics.comparison_verdict import FEWEST_SEEDS, Verdict
from tepo.evaluation.statistics.equivalence import decide
from tepo.evaluation.statistics.region import Outcome, Region
from tepo.evaluation.statistics.region_decision import judge_regions
from tepo.reporting.colours import UNTRAINED
from tepo.reporting.headline import compared
from tepo.reporting.page.packed import packed
from tepo.reporting.paper.reference import printed_gains
from tepo.reporting.tables.cells import format_interval, format_value
from tepo.reporting.tables.renderers.html_table import swatch
from tepo.reporting.tables.table import IDENTICAL, Column, Kind, Table, difference_cell, outcome_words, verdict_words

MARGINS = {"0": 0.0, "1": 1.0, "2": 2.0, "4": 4.0}  # points
PARTS = {"0": 0.0, "½": 0.5, "1": 1.0, "2": 2.0}  # of the ends of a claim's region
DEPENDS = "it depends on the seed left out"
_FIRST = (3, 5)  # seeds
_COLUMN = Column("", "", Kind.DELTA)
_MARKS: dict[str, str] = {
    Verdict.BETTER: "better",
    Verdict.WORSE: "worse",
    Verdict.EQUIVALENT: "equivalent",
    Verdict.NOT_DECIDED: "noise",
    Outcome.HOLDS: "holds",
    Outcome.REFUTED: "refuted",
    Outcome.UNDECIDED: "noise",
    DEPENDS: "depends",
}
_GLYPHS = {
    "better": "▲", "worse": "▼", "equivalent": "■", "holds": "●", "refuted": "×", "noise": "○", "depends": "◊",
    "none": "–",
}  # fmt: skip
"""Shapes of the words, as letters that every font has."""

Places = tuple[int, ...]
"""Seeds by their place in the order of declaration."""


@dataclass(frozen=True)
class Compared:
    """A comparison. seeds: in the order of their declaration. over: its difference where none but these seeds was run;
    None where it was not measured. region: what a registered claim says of it. section: a heading over neighbours.
    shown: False where it has no verdict of its own and counts in the family."""

    label: str
    seeds: Sequence[int]
    over: Callable[[Sequence[int]], Difference] | None
    region: Region | None = None
    swatch: Markup | None = None
    section: str = ""
    shown: bool = True

    def at(self, places: Places) -> Difference | None:
        """The difference over the seeds at these places, as far as it has them."""
        return self.over([self.seeds[place] for place in places if place < len(self.seeds)]) if self.over else None

    def lacks(self, places: Places) -> bool:
        """True where these places leave out a seed of it."""
        return any(place not in places for place in range(len(self.seeds)))


@dataclass(frozen=True)
class Family:
    """Comparisons that are judged together, measured or not. size: with those that are not among them."""

    compared: Sequence[Compared]
    size: int


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
    swatch: Markup | None
    section: str
    family: int
    intervals: tuple[str, ...]
    words: tuple[tuple[tuple[Word, ...], ...], ...]


@dataclass(frozen=True)
class VerdictChoices:
    """The strips of a study; none where it has too few seeds. seeds, margins: names of the choices. declared: family,
    seeds and margin of the verdict in the table. order: seeds as declared; empty where each strip has its own."""

    name: str
    strips: tuple[Strip, ...] = ()
    seeds: tuple[str, ...] = ()
    margins: tuple[str, ...] = ()
    declared: tuple[int, int, int] = (1, 0, 0)
    order: tuple[int, ...] = ()

    @property
    def of_claims(self) -> bool:
        """True where the words are outcomes of registered claims."""
        return self.margins == tuple(PARTS)

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
        Compared(
            block.label(row),
            order,
            _over(pair),
            swatch=Markup(swatch(row.look, row.method)),
            section=block.part,
            shown=verdict != IDENTICAL,
        )
        for block in table.blocks
        for row, _, verdict in compared(block)
        if row.key in known and (pair := known[row.key].pair)
    ]
    if not family:
        return None
    size = next(one.measured.family for one in known.values() if one.measured)
    return choices_of(table.name, [Family(family, size)], MARGINS, "0", order)


def _over(pair: Pair) -> Callable[[Sequence[int]], Difference]:
    return lambda seeds: pair.over(seeds).difference()


def choices_of(
    name: str, families: Sequence[Family], margins: Mapping[str, float], declared: str, order: Sequence[int] = ()
) -> VerdictChoices:
    """Choices for all that was measured. margins: by name; for claims, times the ends of the region. declared: name of
    the margin that the table has. The other arguments are as in the result."""
    sets = _seed_sets({len(one.seeds) for family in families for one in family.compared})
    if not sets:
        return VerdictChoices(name)
    strips = [strip for family in families for strip in _strips(family, sets, margins)]
    every = next(index for index, choice in enumerate(sets) if choice.startswith("all"))
    return VerdictChoices(
        name, tuple(strips), tuple(sets), tuple(margins), (1, every, list(margins).index(declared)), tuple(order)
    )


def _seed_sets(counts: Collection[int]) -> dict[str, list[Places]]:
    """Choices of seeds, of which the comparisons have so many: the first few, all of them, and each left out in turn.
    Empty for fewer than give a verdict."""
    seeds = max(counts)
    if seeds < FEWEST_SEEDS:
        return {}
    every = tuple(range(seeds))
    sets = {f"first {count}": [every[:count]] for count in _FIRST if count < seeds}
    sets[f"all {seeds}" if len(counts) == 1 else "all"] = [every]
    if seeds > FEWEST_SEEDS:
        sets["one left out"] = [every[:left] + every[left + 1 :] for left in every]
    return sets


def _strips(family: Family, sets: Mapping[str, Sequence[Places]], margins: Mapping[str, float]) -> list[Strip]:
    """Strips of the comparisons that are measured and shown."""
    found = {places: [one.at(places) for one in family.compared] for choice in sets.values() for places in choice}
    together = {
        (places, margin): _judged(family.compared, differences, family.size, margin)
        for places, differences in found.items()
        for margin in margins.values()
    }
    strips = []
    for number, one in enumerate(family.compared):
        if one.over is None or not one.shown:
            continue
        choices = [[places for places in choice if len(choice) == 1 or one.lacks(places)] for choice in sets.values()]
        alone = {
            (places, margin): _judged([one], [differences[number]], 1, margin)[0]
            for places, differences in found.items()
            for margin in margins.values()
        }
        own = {key: words[number] for key, words in together.items()}
        words = tuple(
            tuple(
                tuple(_summary([judged[places, m] for places in choice]) for m in margins.values())
                for choice in choices
            )
            for judged in (alone, own)
        )
        intervals = tuple(_interval([found[places][number] for places in choice]) for choice in choices)
        strips.append(Strip(one.label, one.swatch, one.section, family.size, intervals, words))
    return strips


def _judged(
    compared: Sequence[Compared], differences: Sequence[Difference | None], size: int, margin: float
) -> list[Word]:
    """Verdicts of a family of so many. Claims: the composite rule, with the ends of their regions times the margin.
    Rows: without a margin the rule of the table, else that with equivalence."""
    if regions := [one.region.times(margin) for one in compared if one.region]:
        outcomes = [one and Word(one.outcome, outcome_words(one)) for one in judge_regions(differences, regions)]
        return [one or Word("", "") for one in outcomes]
    known = [one or Difference("", "") for one in differences]
    if margin == 0:
        return [_row_word(one, one.verdict, one.p_holm) for one in corrected(known, size)]
    tested = [one if one.seeds >= FEWEST_SEEDS else None for one in known]
    decided = decide([*tested, *[None] * (size - len(tested))], [margin / 100] * size)
    return [
        _row_word(one, decision.verdict, decision.p) if decision else _row_word(one, one.verdict, one.p_holm)
        for one, decision in zip(known, decided, strict=False)
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


def _interval(differences: Sequence[Difference | None]) -> str:
    """The difference with its interval; of several sets of seeds, the range of the differences."""
    cells = [difference_cell(one) for one in differences if one]
    means = sorted((cell.mean, format_value(cell, _COLUMN, 1)) for cell in cells if cell.mean is not None)
    if len(differences) > 1 and means:
        return f"{means[0][1]} to {means[-1][1]}"
    return " ".join(f"{format_value(cell, _COLUMN, 1)} {format_interval(cell, _COLUMN, 1)}".strip() for cell in cells)
