"""Registered claims: their table, their lines in figures and on the page, and their summary in Markdown."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tepo.common.text import counted
from tepo.evaluation.statistics.comparison_verdict import Verdict
from tepo.evaluation.statistics.exact_tests import smallest_exchange_p, smallest_sign_flip_p
from tepo.evaluation.statistics.over_environments import predicted
from tepo.evaluation.statistics.region import Outcome
from tepo.planning.laptop_cost import price
from tepo.reporting.figures.claims_figure import ClaimLine
from tepo.reporting.page.verdict_choices import PARTS, Compared, Family, VerdictChoices, choices_of
from tepo.reporting.paper.reference import printed_gains
from tepo.reporting.tables.cells import format_interval, format_value, number_text
from tepo.reporting.tables.table import MISSING, Block, Cell, Column, Kind, Table, TableRow, outcome_words, percent_cell
from tepo.results.claim_outcomes import COMPOSITE_SINCE, ClaimOutcome
from tepo.results.tables import record_notes
from tepo.store.cost import Cost
from tepo.studies.claims import FEWEST_SEEDS, MEASURES, Claim, Claims

NAME = "registered"  # of the table
_COLUMNS = (
    Column("delta", "Δ", Kind.DELTA),
    Column("unit", "Unit", Kind.TEXT),
    Column("verdict", "A against B", Kind.TEXT),
    Column("claim", "The claim", Kind.TEXT),
    Column("composite", "Composite rule", Kind.TEXT),
    Column("exact", "Exact p", Kind.TEXT),
    Column("expect", "It says", Kind.TEXT),
    Column("margin", "Margin", Kind.TEXT),
    Column("runs", "Runs", Kind.TEXT),
    Column("price", "CPU hours to do", Kind.TEXT),
    Column("registered", "Registered", Kind.TEXT),
    Column("ran", "Ran", Kind.TEXT),
)


def claims_table(claims: Claims, judged: Sequence[ClaimOutcome], known: Sequence[Cost]) -> Table:
    """Table of all claims. judged: the testable ones, in order. known: costs of earlier runs, for prices."""
    by_name = {one.claim.name: one for one in judged}
    rows = []
    for claim in claims.claims:
        if claim.needs:
            known_cells = {"delta": MISSING, "claim": Cell(text="not testable yet")}
            cells = tuple(known_cells.get(column.key, Cell()) for column in _COLUMNS)
        else:
            cells = _cells(by_name[claim.name], known)
        rows.append(TableRow(claim.name, claim.name, cells, sentence=claim.sentence))
    notes = (*_notes(claims, judged), *record_notes([unit for one in judged for unit in one.units]))
    said = tuple(
        f"{one.name}: {one.sentence}. {one.pair}. {one.details}".replace(" . ", " ")
        for one in claim_lines(claims, judged)
    )
    return Table(
        NAME, "Claims registered before their runs", (Block("Claims", _COLUMNS, tuple(rows), notes=said),), notes
    )


def claim_choices(judged: Sequence[ClaimOutcome]) -> VerdictChoices | None:
    """Outcomes of the measured claims by the composite rule: alone and in the batch, over some of the seeds, and with
    other ends of the region. None where no claim is measured."""
    if not any(one.over for one in judged):
        return None
    batches: dict[int, list[Compared]] = {}
    for one in judged:
        compared = Compared(
            one.claim.sentence,
            range(len(one.claim.bases or one.claim.seeds)),
            one.over,
            one.claim.tested,
            shown=not one.censored,
        )
        batches.setdefault(one.claim.batch, []).append(compared)
    return choices_of(NAME, [Family(part, len(part)) for part in batches.values()], PARTS, "1")


def claim_lines(claims: Claims, judged: Sequence[ClaimOutcome]) -> list[ClaimLine]:
    """All claims in order, to be drawn in their units, with what is to be known of each."""
    by_name = {one.claim.name: one for one in judged}
    return [_claim_line(claim, by_name.get(claim.name), _usual_refutation(claims)) for claim in claims.claims]


def _claim_line(claim: Claim, one: ClaimOutcome | None, usual: str) -> ClaimLine:
    pair = f"{claim.a.label} against {claim.b.label}" if claim.a and claim.b else ""
    unit = "".join(MEASURES[claim.measure])
    line = ClaimLine(claim.name, claim.sentence.rstrip("."), pair, _details(claim, one, usual), unit)
    if one is None or one.difference is None:
        return line
    if one.censored:
        return replace(line, outcome=str(one.outcome))
    tested = 100 * claim.tested.low, 100 * claim.tested.high
    low, delta, high = (100 * end for end in (one.difference.low, one.difference.delta, one.difference.high))
    return replace(
        line,
        outcome=str(one.outcome),
        delta=delta,
        low=low,
        high=high,
        seeds=[100 * value for value in one.by_seed],
        regions=((-math.inf, tested[0]), (tested[1], math.inf)) if claim.tested.outside else (tested,),
    )


def summary(table: Table) -> str:
    """The claims of their table in Markdown, a line each: the sentence, the outcomes, and the difference."""
    (block,) = table.blocks
    place = {column.key: index for index, column in enumerate(block.columns)}
    lines = ["| claim | outcome | composite rule | A above B |", "| :-- | :-- | :-- | --: |"]
    for row in block.rows:
        unit, outcome, composite = (row.cells[place[key]].text for key in ("unit", "claim", "composite"))
        delta, column = row.cells[place["delta"]], block.columns[place["delta"]]
        value = f"{format_value(delta, column, 1)} {format_interval(delta, column, 1)}"
        measured = delta.text or f"{value} {unit}".strip()
        cells = (f"{row.sentence} (`{row.label}`)", outcome or "not run yet", composite, measured)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def _cells(one: ClaimOutcome, known: Sequence[Cost]) -> tuple[Cell, ...]:
    claim, total, found = one.claim, len(one.units), one.difference
    priced = f"{price(one.units, known, '').cpu_s / 3600:.2f}" if known or one.done == total else ""
    words = (
        claim.unit,
        one.decision.verdict if one.decision else "",
        one.outcome or "",
        outcome_words(one.composite) if one.composite else "",
        "" if one.exact_p is None else f"{one.exact_p:.2g}",
        " or ".join(claim.expect) or _region(claim),
        f"{claim.margin:g} {claim.unit}" if claim.margin else "",
        *(f"{one.done} of {total}", priced, one.since, one.ran),
    )
    delta = percent_cell(found.delta, found.low, found.high) if found else MISSING
    delta = Cell(text="censored") if one.censored else delta
    return (delta, *(Cell(text=text) for text in words))


def _region(claim: Claim) -> str:
    """The region that the composite rule tests, in words."""
    region = claim.tested
    low, high = (f"{100 * end:+g}".replace("-", "−") for end in (region.low, region.high))
    if region.outside:
        return f"below {low} or above {high} {claim.unit}"
    if math.isinf(region.high):
        return f"at least {low} {claim.unit}"
    return f"at most {high} {claim.unit}" if math.isinf(region.low) else f"{low} to {high} {claim.unit}"


def _notes(claims: Claims, judged: Sequence[ClaimOutcome]) -> tuple[str, ...]:
    batches = sorted({claim.batch for claim in claims.testable})
    sizes = [sum(claim.batch == batch for claim in claims.testable) for batch in batches]
    used = dict.fromkeys(claim.measure for claim in claims.testable)
    measures = ", ".join("points of average accuracy" if one == "accuracy" else "".join(MEASURES[one]) for one in used)
    families = ", ".join(f"batch {batch} of {size}" for batch, size in zip(batches, sizes, strict=True))
    usual = _usual_refutation(claims)
    least = smallest_exchange_p(FEWEST_SEEDS, FEWEST_SEEDS), smallest_sign_flip_p(FEWEST_SEEDS)
    return (
        f"Δ = A above B with its 95% interval: {measures} (docs/evaluation.md). Verdicts are at 5%, corrected by "
        f"Holm's procedure over the claims of a batch, measured or not: {families}.",
        "A against B is the rule of claims with a margin: better or worse where the difference is not 0, equivalent "
        "where it is within the margin.",
        f"The composite rule, since {COMPOSITE_SINCE:%Y-%m-%d}, tests the region that a claim states: it holds where "
        "all outside is rejected, and is refuted where the region is. Claims of an earlier day keep the verdict of "
        "their own rule. p: one-sided, corrected, of what was rejected, or where nothing was the smaller of the two.",
        "Exact p: two-sided, of the claim alone, that the runs of A and of B have one distribution, by dealing them "
        f"anew, so without normal luck; {FEWEST_SEEDS} runs each give none below {least[0]:.2g}. Of training, by the "
        f"signs of the seeds: none below {least[1]:.2g}. What is smaller rests on Student's t.",
        "A margin, and the end of a region, says which differences matter; refuted and equivalent mean it, and not the "
        "sign. Smaller effects remain possible as far as the interval holds them. To compare a margin of 2 points "
        f"with: {printed_gains()}.",
        "A claim is judged when all of its runs are measured. Registered: the commit since which it reads as it does.",
        *_shared(judged),
        *([f"Refuted by, where a claim has nothing else: {usual}."] if usual else []),
    )


def _shared(judged: Sequence[ClaimOutcome]) -> list[str]:
    """A note for each B that several measured claims are compared with: what one of its runs does, all of them show."""
    by_runs: dict[tuple[str, ...], list[str]] = {}
    for one in judged:
        if one.difference:
            baseline = tuple(unit.id for unit in one.units if unit.row.label == one.units[0].row.label)
            by_runs.setdefault(baseline, []).append(one.claim.name)
    return [
        f"Compared with the same runs, so no findings apart from each other: {', '.join(names)}."
        for names in by_runs.values()
        if len(names) > 1
    ]


def _usual_refutation(claims: Claims) -> str:
    """Outcome that would refute most claims, to be said once; empty where each has its own."""
    ((text, number),) = Counter(claim.refuted_by for claim in claims.claims).most_common(1) or (("", 0),)
    return text if number > 1 else ""


def _details(claim: Claim, one: ClaimOutcome | None, usual: str) -> str:
    """Region of a claim, how and on which seeds it is tested, since when, and what follows where it holds.
    usual: what refutes it is not said where it is this."""
    refuted = "" if claim.refuted_by == usual else f"Refuted by: {claim.refuted_by}."
    if one is None:
        return " ".join(filter(None, (f"Not testable yet: it needs {claim.needs}.", refuted)))
    parts = [
        f"Region: {_region(claim)}.",
        f"{one.censored[0].upper()}{one.censored[1:]}." if one.censored else "",
        f"By the composite rule of {COMPOSITE_SINCE:%Y-%m-%d}: {outcome_words(one.composite)}."
        if one.decision and one.composite
        else "",
        "" if one.difference else f"Not run yet: {one.done} of {counted(len(one.units), 'run')} measured.",
        _possible(one),
        _one_more(one),
        f"{one.seeds_to_decide[0].upper()}{one.seeds_to_decide[1:]}." if one.seeds_to_decide else "",
        f"Settings: {claim.rule}. {counted(len(one.units), 'run')}{_ended(one)}. {_runs(claim)}; new test problems "
        f"from seed {claim.problems}. Registered {one.since}{f', run {one.ran}' if one.ran else ''}.",
        refuted,
        claim.means if one.outcome is Outcome.HOLDS else "",
    ]
    return " ".join(filter(None, parts))


def _ended(one: ClaimOutcome) -> str:
    """Number of the runs that ended before their last step, of each side; empty for none."""
    baseline = one.units[0].row.label
    sides = Counter("B" if unit.row.label == baseline else "A" for unit in one.units if unit.run.ending())
    return "".join(f", {number} of {side} ended early" for side, number in sorted(sides.items()))


def _runs(claim: Claim) -> str:
    seeds = f"Seeds {', '.join(map(str, claim.seeds))}"
    return f"{seeds} from each of {len(claim.bases)} bases" if claim.bases else seeds


def _possible(one: ClaimOutcome) -> str:
    """Effects short of what a refuted claim or a margin asks for, as far as its interval holds any; empty for none."""
    if one.difference is None or one.censored:
        return ""
    low, high = 100 * one.difference.low, 100 * one.difference.high
    ends = [f"{end:+.1f}".replace("-", "−") for end in (low, high)]
    region, refuted = one.claim.tested, one.outcome is Outcome.REFUTED
    if refuted and region.low > 0 and high > 0:
        return f"A gain of up to {ends[1]} {one.claim.unit} remains possible."
    if refuted and region.high < 0 and low < 0:
        return f"A loss of up to {ends[0]} {one.claim.unit} remains possible."
    if one.decision and one.decision.verdict is Verdict.EQUIVALENT:
        return f"Differences from {ends[0]} to {ends[1]} {one.claim.unit} remain possible."
    return ""


def _one_more(one: ClaimOutcome) -> str:
    """Range of the difference on a single further base; empty for a claim over seeds."""
    if not one.claim.bases or not one.by_seed:
        return ""
    low, high = (number_text(100 * end, 1) for end in predicted(one.by_seed))
    text = f"On average over such bases; one more base, measured like these, lies in 95% of cases from {low} to {high}"
    return f"{text} {one.claim.unit}."
