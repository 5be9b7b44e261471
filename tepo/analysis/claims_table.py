"""Registered claims: their table, and their summary in Markdown."""

import math
from collections import Counter
from collections.abc import Sequence

from tepo.analysis.claim_outcomes import ClaimOutcome
from tepo.analysis.tables import record_notes
from tepo.common.grouping import grouped
from tepo.common.text import counted
from tepo.evaluation.statistics.answer import answers
from tepo.evaluation.statistics.over_environments import predicted
from tepo.evaluation.statistics.verdict import DeltaVerdict
from tepo.planning.laptop_cost import cpu_seconds
from tepo.reporting.headline import outcomes_text
from tepo.reporting.tables.cells import format_interval, format_value, number_text
from tepo.reporting.tables.provenance_note import mixed
from tepo.reporting.tables.table import (
    ENDED,
    MISSING,
    OUTCOME,
    Cell,
    Column,
    Kind,
    Table,
    TableBlock,
    TableRow,
    p_text,
    percent_cell,
)
from tepo.store.cost import Cost
from tepo.studies.claims import MEASURES, OWN, Claim

NAME = "registered"  # of the table
_COLUMNS = (
    Column("delta", "Δ", Kind.DELTA),
    Column("unit", "Unit", Kind.TEXT),
    Column("region", "It says", Kind.TEXT),
    Column(OUTCOME, "Verdict", Kind.TEXT),
    Column("p", "p", Kind.TEXT),
    Column("runs", "Runs", Kind.TEXT),
)
_PRICE = Column("price", "CPU hours to do", Kind.TEXT)


def claims_table(judged: Sequence[ClaimOutcome], known: Sequence[Cost]) -> Table:
    """Table of all claims, those of the user's own file in a block of their own.
    known: costs of earlier runs, for prices."""
    to_do = not all(outcome.measured for outcome in judged)
    columns = (*_COLUMNS, *([_PRICE] if known and to_do else []))
    blocks = []
    for from_user, title in ((False, "Claims"), (True, "Your own claims")):
        rows, details = list[TableRow](), list[str]()
        for outcome in judged:
            if outcome.claim.family.startswith(OWN) is from_user:
                claim, cells = outcome.claim, _cells(outcome, known)[: len(columns)]
                label = f"{claim.name} {ENDED}" if outcome.ended else claim.name
                rows.append(TableRow(claim.name, label, cells, sentence=claim.sentence, note=_note(outcome)))
                pair = " against ".join(side.label for side in (claim.a, claim.b) if side)
                details.append(
                    f"{claim.name}: {claim.sentence.rstrip('.')}. {pair}. {_details(outcome)}".replace(" . ", " ")
                )
        blocks += [TableBlock(title, columns, tuple(rows), notes=tuple(details))] if rows else []
    units = [unit for outcome in judged for unit in outcome.units]
    notes = (*_notes(judged), *(record_notes(units, judged[0].facts) if judged else ()))
    return Table(NAME, "Claims registered before their runs", tuple(blocks), notes)


def summary(table: Table) -> str:
    """The claims of their table in Markdown, a line each: sentence, region, verdict, p and difference. Below it the
    notes, each with the claims that it belongs to."""
    lines = ["| claim | region | verdict | p | A above B |", "| :-- | :-- | :-- | --: | --: |"]
    notes: dict[str, list[str]] = {}
    for block in table.blocks:
        for row in block.rows:
            if row.note:
                notes.setdefault(row.note, []).append(f"`{row.key}`")
            cells = {column.key: cell for column, cell in zip(block.columns, row.cells, strict=True)}
            delta, column = cells["delta"], block.columns[0]
            value = f"{format_value(delta, column, 1)} {format_interval(delta, column, 1)}"
            measured = delta.text or f"{value} {cells['unit'].text}".strip()
            verdict, region, p = cells[OUTCOME].text or "not run yet", cells["region"].text, cells["p"].text
            name = f"`{row.key}`{row.label.removeprefix(row.key)}"
            texts = f"{row.sentence} ({name})", region, verdict, p, measured
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in texts)} |")
    return "\n".join([*lines, "", *(f"- {', '.join(names)}: {note}" for note, names in notes.items())]).rstrip()


def _cells(outcome: ClaimOutcome, costs: Sequence[Cost]) -> tuple[Cell, ...]:
    """Cells of a claim in the order of the columns."""
    answer, runs = outcome.answer, f"{outcome.done} of {len(outcome.units)}"
    delta = percent_cell(answer.delta, *answer.interval) if answer else MISSING
    p = p_text(answer.p).removeprefix("p ").removeprefix("= ") if answer and answer.decides else ""
    priced = f"{cpu_seconds(outcome.units, costs) / 3600:.2f}" if costs and not outcome.measured else ""
    words = outcome.claim.unit, _region(outcome.claim), _verdict(outcome), p, runs, priced
    return (Cell(text="censored") if outcome.censored else delta, *(Cell(text=text) for text in words))


def _verdict(outcome: ClaimOutcome) -> str:
    """The outcome, and of what is refuted the effect in its direction that remains possible, where any does."""
    if outcome.answer is None:
        return ""
    region, (low, high) = outcome.claim.tested, outcome.answer.interval
    if outcome.verdict is DeltaVerdict.REFUTED and not outcome.censored and region.one_sided:
        if region.low > 0 and round(100 * high, 1) > 0:
            return f"{outcome.verdict}; up to {number_text(100 * high, 1, '+')} remains possible"
        if region.high < 0 and round(100 * low, 1) < 0:
            return f"{outcome.verdict}; down to {number_text(100 * low, 1)} remains possible"
    return str(outcome.verdict)


def _region(claim: Claim) -> str:
    """The region that is tested, in words, without its unit."""
    region = claim.tested
    low, high = (f"{100 * end:+g}".replace("-", "−") for end in (region.low, region.high))
    if region.outside:
        return f"below {low} or above {high}"
    if math.isinf(region.high):
        return f"at least {low}"
    return f"at most {high}" if math.isinf(region.low) else f"{low} to {high}"


def _notes(judged: Sequence[ClaimOutcome]) -> list[str]:
    claims = [outcome.claim for outcome in judged]
    used = dict.fromkeys(claim.measure for claim in claims)
    measures = ", ".join(
        "points of average accuracy" if measure == "accuracy" else "".join(MEASURES[measure]) for measure in used
    )
    sizes = Counter((claim.family, claim.in_order) for claim in claims)
    families = ", ".join(f"{name} of {size}{' in fixed order' * order}" for (name, order), size in sizes.items())
    two = ", ".join(claim.name for claim in claims if not claim.tested.one_sided)
    notes = [
        f"Δ is A minus B, in {measures}. Its interval is for this claim alone: 90%"
        + (f", and 95% if the region has two ends ({two})." if two else "."),
        "A claim holds if the data reject everything outside its region, and is refuted if they reject the region; p "
        "is that of what was rejected, or the smaller of the two. A claim is judged once all of its runs are measured, "
        f"at 5%, with Holm's procedure over the claims of its batch, measured or not: {families}.",
    ]
    if any(claim.in_order for claim in claims):
        notes.append(
            "Claims in fixed order are tested in the order of the file, each at 5%, up to the first that does not "
            "hold. Those after it are not tested."
        )
    by_holm = [outcome for outcome in judged if not outcome.claim.in_order]
    questions = [outcome.answer.question for outcome in by_holm if outcome.answer]
    if questions and len({outcome.claim.family for outcome in by_holm}) > 1:
        text = outcomes_text(Counter(str(answer.verdict) for answer in answers(questions)))
        which = f"all {len(questions)}" if len(by_holm) == len(judged) else f"the other {len(questions)}"
        which = which if len(questions) == len(by_holm) else f"the {len(questions)} that are measured,"
        notes.append(f"With Holm's procedure over {which} at once, {text}.")
    notes.append(
        "A refuted claim can still have the right sign: smaller effects remain possible, as far as the interval goes. "
        "`tepo table gains` has the gains that papers print."
    )
    if first := ", ".join(claim.name for claim in claims if claim.by_its_first_rule):
        notes.append(
            "Undecided under the rule they were registered with, which tested better, worse and equivalent one by one: "
            f"{first}."
        )
    by_runs = grouped(  # what one run of a B does, all claims that share it show
        (tuple(unit.id for unit in outcome.units if unit.row.label == outcome.units[0].row.label), outcome.claim.name)
        for outcome in judged
        if outcome.answer
    )
    if groups := "; ".join(", ".join(names) for names in by_runs.values() if len(names) > 1):
        notes.append(f"Compared with the same runs, so not independent findings: {groups}.")
    return notes


def _details(outcome: ClaimOutcome) -> str:
    """Region of a claim and what came of it, how and on which seeds it is tested, and what follows where it holds."""
    claim, runs = outcome.claim, counted(len(outcome.units), "run")
    outcome_text = f"Not run yet: {outcome.done} of {runs} measured. Refuted by: {claim.refuted_by}."
    if outcome.answer:
        p = f" ({p_text(outcome.answer.p)})" if outcome.answer.decides else ""
        outcome_text = _sentence(f"{_verdict(outcome)}{p}")
    one_more = ""
    if claim.bases and outcome.answer and outcome.answer.question.sample:
        low, high = (number_text(100 * end, 1) for end in predicted(outcome.answer.question.sample))
        one_more = (
            "On average over such bases; one more base, measured like these, lies in 95% of cases from "
            f"{low} to {high} {claim.unit}."
        )
    ended = "".join(f", {number} of {side} ended early" for side, number in sorted(outcome.ended.items()))
    bases = f" from each of {len(claim.bases)} bases" if claim.bases else ""
    parts = [
        f"Region: {_region(claim)} {claim.unit}.",
        outcome_text,
        _sentence(outcome.censored),
        one_more,
        f"Settings: {claim.rule}. {runs}{ended}. Seeds {', '.join(map(str, claim.seeds))}{bases}; new test problems "
        f"from seed {claim.problems}.",
        claim.means if outcome.verdict is DeltaVerdict.HOLDS else "",
        _note(outcome),
    ]
    return " ".join(filter(None, parts))


def _note(outcome: ClaimOutcome) -> str:
    """What a reader must know beside the claim, and how its machines or versions differ."""
    sessions = [session for unit in outcome.units for session in outcome.facts.of(unit.id).made]
    return " ".join(filter(None, (outcome.claim.note, mixed(sessions))))


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""
