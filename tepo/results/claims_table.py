"""Registered claims as a table, and as the sentences that open the page."""

import math
from collections.abc import Sequence

from tepo.common.text import counted
from tepo.evaluation.statistics.exact_tests import smallest_exchange_p, smallest_sign_flip_p
from tepo.evaluation.statistics.intervals import LEVEL
from tepo.evaluation.statistics.region import Outcome
from tepo.planning.laptop_cost import price
from tepo.reporting.figures.claims_figure import ClaimLine
from tepo.reporting.page.verdict_choices import PARTS, Compared, Family, VerdictChoices, choices_of
from tepo.reporting.tables.cells import format_interval, format_value
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
            said = {"delta": MISSING, "claim": Cell(text="not testable yet")}
            cells = tuple(said.get(column.key, Cell()) for column in _COLUMNS)
        else:
            cells = _cells(by_name[claim.name], known)
        rows.append(TableRow(claim.name, claim.name, cells, sentence=claim.sentence))
    notes = (*_notes(claims, judged), *record_notes([unit for one in judged for unit in one.units]))
    return Table(NAME, "Claims registered before their runs", (Block("Claims", _COLUMNS, tuple(rows)),), notes)


def claim_choices(judged: Sequence[ClaimOutcome]) -> VerdictChoices | None:
    """Outcomes of the measured claims by the composite rule: alone and in the batch, over some of the seeds, and with
    other ends of the region. None where no claim is measured."""
    if not any(one.over for one in judged):
        return None
    batches: dict[int, list[Compared]] = {}
    for one in judged:
        compared = Compared(
            one.claim.sentence, range(len(one.claim.bases or one.claim.seeds)), one.over, one.claim.tested
        )
        batches.setdefault(one.claim.batch, []).append(compared)
    return choices_of(NAME, [Family(part, len(part)) for part in batches.values()], PARTS, "1")


def claim_lines(judged: Sequence[ClaimOutcome]) -> list[ClaimLine]:
    """The measured claims, to be drawn in their units."""
    lines = []
    for one in judged:
        if found := one.difference:
            low, high = 100 * one.claim.tested.low, 100 * one.claim.tested.high
            seeds, unit = [100 * value for value in one.by_seed], one.claim.unit
            ends = 100 * found.delta, 100 * found.low, 100 * found.high
            lines.append(ClaimLine(one.claim.name, str(one.outcome), *ends, seeds, (low, high), unit))
    return lines


def summary(table: Table) -> str:
    """The claims of their table in Markdown, a line each: the sentence, the outcomes, and the difference."""
    (block,) = table.blocks
    place = {column.key: index for index, column in enumerate(block.columns)}
    lines = ["| claim | outcome | composite rule | A above B |", "| :-- | :-- | :-- | --: |"]
    for row in block.rows:
        unit, outcome, composite = (row.cells[place[key]].text for key in ("unit", "claim", "composite"))
        delta, column = row.cells[place["delta"]], block.columns[place["delta"]]
        measured = f"{format_value(delta, column, 1)} {format_interval(delta, column, 1)} {unit}".strip()
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
    least = smallest_exchange_p(FEWEST_SEEDS, FEWEST_SEEDS), smallest_sign_flip_p(FEWEST_SEEDS)
    waiting = {one.claim.name: one.seeds_to_decide for one in judged if one.composite is None}
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
        "A claim is judged when all of its runs are measured. Registered: the commit since which it reads as it does.",
        *_shared(judged),
        *(" ".join(filter(None, [_text(claim), waiting.get(claim.name, "")])) for claim in claims.claims),
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


def _text(claim: Claim) -> str:
    refuted = f"Refuted by: {claim.refuted_by}."
    if not (claim.a and claim.b):
        return f"{claim.name}: {claim.sentence.rstrip('.')}. Needs {claim.needs}. {refuted}"
    return (
        f"{claim.name}: {claim.sentence.rstrip('.')}. A: {claim.a.label}; B: {claim.b.label}. Settings: {claim.rule}. "
        f"{_runs(claim)}; new test problems from seed {claim.problems}. "
        f"Region: {_region(claim)}. {refuted}"
    )


def _runs(claim: Claim) -> str:
    seeds = f"Seeds {', '.join(map(str, claim.seeds))}"
    return f"{seeds} from each of {len(claim.bases)} bases, for a new base" if claim.bases else seeds


def sentences(claims: Claims, judged: Sequence[ClaimOutcome]) -> list[str]:
    """A paragraph in Markdown for each claim: how it came out, by how much, from which runs, and what would refute it;
    undecided ones last."""
    decided = [one for one in judged if one.outcome in (Outcome.HOLDS, Outcome.REFUTED)]
    others = [one for one in judged if one not in decided]
    return [
        *map(_sentence, [*decided, *others]),
        *(
            f"**Not testable yet.** {claim.sentence.rstrip('.')}. It needs {claim.needs}."
            for claim in claims.claims
            if claim.needs
        ),
    ]


def _sentence(one: ClaimOutcome) -> str:
    claim, found, said = one.claim, one.difference, one.claim.sentence.rstrip(".")
    assert claim.a
    assert claim.b
    if found is None or one.composite is None:
        plan = f" {one.seeds_to_decide[0].upper()}{one.seeds_to_decide[1:]}." if one.seeds_to_decide else ""
        return f"**Not run yet.** {said}. {one.done} of {counted(len(one.units), 'run')} measured.{plan}"
    composite = outcome_words(one.composite)
    size = f"{100 * found.delta:+.1f} {claim.unit}".replace("-", "−")
    ends = f"{LEVEL:.0%} interval {100 * found.low:.1f} to {100 * found.high:.1f}".replace("-", "−")
    what = MEASURES[claim.measure][1]
    on = f", for a new base, from {len(claim.bases)}" if claim.bases else ""
    assert one.outcome
    rule = f"By the composite rule of {COMPOSITE_SINCE:%Y-%m-%d}" if one.decision else "By its region"
    text = (
        f"**{one.outcome.capitalize()}.** {said}. {claim.a.label} against {claim.b.label}: {size}{what} "
        f"({ends}{on}; {counted(len(one.units), 'run')}, seeds {claim.seeds[0]} to {claim.seeds[-1]}; registered "
        f"{one.since}, run {one.ran}). {rule}, {_region(claim)}: {composite}. Refuted by: {claim.refuted_by}."
    )
    return f"{text} {claim.means}" if claim.means and one.outcome is Outcome.HOLDS else text
