"""Registered claims as a table, and as the sentences that open the page."""

from collections.abc import Sequence

from tepo.common.text import counted
from tepo.evaluation.statistics.intervals import LEVEL
from tepo.planning.laptop_cost import price
from tepo.reporting.tables.table import MISSING, Block, Cell, Column, Kind, Table, TableRow, percent_cell
from tepo.results.claim_outcomes import ClaimOutcome
from tepo.results.tables import record_notes
from tepo.store.cost import Cost
from tepo.studies.claims import Claim, Claims

_COLUMNS = (
    Column("delta", "Δ", Kind.DELTA),
    Column("verdict", "A against B", Kind.TEXT),
    Column("claim", "The claim", Kind.TEXT),
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
            cells = (MISSING, Cell(), Cell(text="not testable yet"), *[Cell()] * 6)
        else:
            cells = _cells(by_name[claim.name], known)
        rows.append(TableRow(claim.name, claim.name, cells, sentence=claim.sentence))
    notes = (*_notes(claims), *record_notes([unit for one in judged for unit in one.units]))
    return Table("registered", "Claims registered before their runs", (Block("Claims", _COLUMNS, tuple(rows)),), notes)


def _cells(one: ClaimOutcome, known: Sequence[Cost]) -> tuple[Cell, ...]:
    total = len(one.units)
    priced = f"{price(one.units, known, '').cpu_s / 3600:.2f}" if known or one.done == total else ""
    margin, found = f"{one.claim.margin:g} {one.claim.unit}", one.difference
    words = (
        *(one.verdict, one.outcome, " or ".join(one.claim.expect), margin),
        *(f"{one.done} of {total}", priced, one.since, one.ran),
    )
    delta = percent_cell(found.delta, found.low, found.high) if found else MISSING
    return (delta, *(Cell(text=text) for text in words))


def _notes(claims: Claims) -> tuple[str, ...]:
    family = len(claims.testable)
    return (
        "Δ = A above B with its 95% interval: points of average accuracy, or, where the margin is in nats, entropy at "
        f"equal reward in training (docs/evaluation.md); verdicts at 5%, corrected over the family of {family} "
        "registered claims, measured or not: better or worse where the difference is not 0, equivalent where it is "
        "within the margin, both by Holm's procedure (docs/evaluation.md).",
        "A claim is judged when all of its runs are measured. Registered: the commit since which it reads as it does.",
        *(_text(claim) for claim in claims.claims),
    )


def _text(claim: Claim) -> str:
    refuted = f"Refuted by: {claim.refuted_by}."
    if not (claim.a and claim.b):
        return f"{claim.name}: {claim.sentence}. Needs {claim.needs}. {refuted}"
    return (
        f"{claim.name}: {claim.sentence}. A: {claim.a.label}; B: {claim.b.label}. Settings: {claim.rule}. "
        f"Seeds {', '.join(map(str, claim.seeds))}; new test problems from seed {claim.problems}. {refuted}"
    )


def sentences(claims: Claims, judged: Sequence[ClaimOutcome]) -> list[str]:
    """A paragraph in Markdown for each claim: how it came out, by how much, from which runs, and what would refute it;
    undecided ones last."""
    decided = [one for one in judged if one.outcome in ("holds", "refuted")]
    others = [one for one in judged if one not in decided]
    return [
        *map(_sentence, [*decided, *others]),
        *(f"**Not testable yet.** {claim.sentence}. It needs {claim.needs}." for claim in claims.claims if claim.needs),
    ]


def _sentence(one: ClaimOutcome) -> str:
    claim, found = one.claim, one.difference
    assert claim.a
    assert claim.b
    if found is None:
        return f"**Not run yet.** {claim.sentence}. {one.done} of {counted(len(one.units), 'run')} measured."
    size = f"{100 * found.delta:+.1f} {claim.unit}".replace("-", "−")
    ends = f"{LEVEL:.0%} interval {100 * found.low:.1f} to {100 * found.high:.1f}".replace("-", "−")
    what = "" if claim.measure == "accuracy" else " of entropy at equal reward"
    word = {"holds": "Holds", "refuted": "Refuted"}.get(one.outcome, one.outcome.capitalize())
    open_ = f" {one.more_seeds[0].upper()}{one.more_seeds[1:]}." if one.outcome == "undecided" else ""
    text = (
        f"**{word}.** {claim.sentence}. {claim.a.label} against {claim.b.label}: {size}{what} ({ends}; "
        f"{counted(len(one.units), 'run')}, seeds {claim.seeds[0]} to {claim.seeds[-1]}; registered {one.since}, "
        f"run {one.ran}).{open_} Refuted by: {claim.refuted_by}."
    )
    return f"{text} {claim.means}" if claim.means and one.outcome == "holds" else text
