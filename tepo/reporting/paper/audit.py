"""Audit of the paper: whether its averages, differences and ranks follow from its own columns.

Recomputed here from the printed tables alone. The "Avg." is the mean over all generated validation samples, not over
the seven columns: AIME and AMC count 32 samples a problem, the others one. Only the size of OMNI-MATH is not known; it
is fitted. Codes such as A16 are those of docs/paper.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from tepo.reporting.paper.audit_claims import GAINS, RANKS, SHORT, STATEMENTS, Finding, GainClaim, RankClaim
from tepo.reporting.paper.reference import PAPER_BENCHMARKS, PaperRow, RowKey, all_rows, load_table, reference_row

WEIGHTS = {
    "aime24": 30 * 32,
    "aime25": 30 * 32,
    "amc": 83 * 32,
    "math500": 500,
    "omni_math": 2785,
    "olympiadbench": 675,
    "minerva": 272,
}
"""Samples behind each column: problems x samples a problem.

OMNI-MATH: middle of the sizes that fit most averages (`SIZES` of `audit_claims`).
"""

TOLERANCE = 0.03
"""Points. Seven cells cut to two decimals and a fitted size move an average by less than this."""

_ORDINAL = ("first", "second", "third", *(f"{rank}th" for rank in range(4, 20)))
_ROUNDING = 0.011  # the largest difference of two cells printed with two decimals, one of them cut instead of rounded


@dataclass(frozen=True)
class AverageCheck:
    """A printed row and the average that its columns give."""

    row: PaperRow
    recomputed: float

    @property
    def difference(self) -> float:
        return self.recomputed - self.row.average

    @property
    def follows(self) -> bool:
        return abs(self.difference) <= TOLERANCE


@dataclass(frozen=True)
class Audit:
    """averages: every distinct complete row. findings: what does not follow. checked: how many differences and ranks
    were checked."""

    averages: tuple[AverageCheck, ...]
    findings: tuple[Finding, ...]
    checked: int

    @property
    def following(self) -> int:
        return sum(check.follows for check in self.averages)


def average(scores: Mapping[str, float | None], weights: Mapping[str, float] = WEIGHTS) -> float:
    """The micro-average of a row in percent; a dash counts as 0, which is what the Mistral averages imply."""
    return sum(weight * (scores[key] or 0.0) for key, weight in weights.items()) / sum(weights.values())


@cache
def distinct_rows() -> tuple[PaperRow, ...]:
    """Complete measured rows, each once however many tables print it; the collapsed run, all zeros, fits any weights
    and is left out."""
    seen: dict[tuple, PaperRow] = {}
    for row in all_rows():
        if row.complete and any(row.scores.values()):
            seen.setdefault((row.model, row.average, *row.scores.values()), row)
    return tuple(seen.values())


def audit() -> Audit:
    """Everything checked, in the order: averages, printed differences, gains in the text, ranks in the text, other
    statements."""
    averages = tuple(AverageCheck(row, average(row.scores)) for row in distinct_rows())
    models = [
        (table, model)
        for table in ("table1", "table2", "table3")
        for model in dict.fromkeys(row.model for row in load_table(table))
    ]
    parts = [
        _delta_rows(),
        _seed_means(),
        *map(_gain, GAINS),
        *(_best_average(*pair) for pair in models),
        *map(_rank, RANKS),
        (list(STATEMENTS), len(STATEMENTS)),
    ]
    return Audit(
        averages, tuple(finding for findings, _ in parts for finding in findings), sum(count for _, count in parts)
    )


def _delta_rows() -> tuple[list[Finding], int]:
    """The two "Δ vs GRPO/DAPO" rows of Table 1 against the difference of the rows above them."""
    findings, count = [], 0
    for printed in all_rows("delta_vs_grpo_dapo"):
        methods = ("base", "grpo_dapo", "tepo")
        rows = [reference_row(RowKey("table1", model=printed.model, method=method)) for method in methods]
        for key, value in printed.scores.items():
            base, grpo, tepo = (row.scores[key] or 0.0 for row in rows)
            delta = tepo - grpo
            count += 1
            if value is not None and abs(delta - value) > _ROUNDING:
                to_base = abs(tepo - base - value) <= _ROUNDING
                text = f"{delta:+.2f}" + (f" ({value:+.2f} is the gain over the untrained model)" if to_base else "")
                findings.append(
                    Finding("A15", f"Table 1 {printed.model}, Δ {PAPER_BENCHMARKS[key]}", f"{value:+.2f}", text)
                )
    return findings, count


def _seed_means() -> tuple[list[Finding], int]:
    """The means of Table 4 against its two seeds."""
    findings, count = [], 0
    for printed in all_rows("mean"):
        seeds = [
            row
            for row in load_table("table4")
            if row.kind == "row" and (row.method, row.steps) == (printed.method, printed.steps)
        ]
        columns = {
            title: (printed.scores[key], [row.scores[key] or 0.0 for row in seeds])
            for key, title in PAPER_BENCHMARKS.items()
        }
        columns["Avg."] = printed.average, [row.average for row in seeds]
        for name, (value, parts) in columns.items():
            mean = sum(parts) / len(parts)
            count += 1
            if value is not None and abs(mean - value) > _ROUNDING:
                findings.append(Finding("A18", f"Table 4 {printed.label}, {name}", f"{value:.2f}", f"{mean:.2f}"))
    return findings, count


def _gain(claim: GainClaim) -> tuple[list[Finding], int]:
    """A difference of averages given in the text: first against the printed averages, then against those the columns
    give."""
    first, second = (
        reference_row(RowKey(claim.table, model=claim.model, method=method)) for method in (claim.method, claim.against)
    )
    printed, recomputed = first.average - second.average, average(first.scores) - average(second.scores)
    agrees = abs(printed - claim.points) <= _ROUNDING
    if agrees and abs(recomputed - claim.points) <= 2 * TOLERANCE:
        return [], 1
    text = f"{recomputed:+.2f} by the columns" + ("" if agrees else f", {printed:+.2f} by the printed averages")
    to_grpo = (
        first.average - reference_row(RowKey("table1", model=claim.model, method="grpo_dapo")).average
        if claim.table == "table3"
        else None
    )
    if not agrees and to_grpo is not None and abs(to_grpo - claim.points) <= _ROUNDING:
        text += f"; {claim.points:+.2f} is against GRPO/DAPO"
    return [Finding(claim.code, f"{claim.where} {claim.says}", f"{claim.points:+.2f}", text)], 1


def _rank(claim: RankClaim) -> tuple[list[Finding], int]:
    """A rank among the rows of one model in one table; a tie for the first rank is not the first rank alone."""
    rows = [row for row in load_table(claim.table) if row.kind == "row" and row.model == claim.model]
    mine = next(row for row in rows if row.method == claim.method)
    findings = []
    for key in claim.benchmarks:
        score = mine.scores[key] or 0.0
        rank = 1 + sum((row.scores[key] or 0.0) > score for row in rows)
        tied = [row.label.removeprefix("w. ") for row in rows if row.scores[key] == score and row is not mine]
        if rank > claim.rank or (claim.rank == 1 and tied):
            text = f"{_ORDINAL[rank - 1]}" + (f", tied with {', '.join(tied)}" if tied else "")
            findings.append(
                Finding(
                    "A17",
                    f"{claim.where} {SHORT.get(claim.model, claim.model)}, {PAPER_BENCHMARKS[key]} {score:.2f}",
                    "first" if claim.rank == 1 else f"top {claim.rank}",
                    text,
                )
            )
    return findings, len(claim.benchmarks)


def _best_average(table: str, model: str) -> tuple[list[Finding], int]:
    """ "TEPO achieves the highest average accuracy" (section 4.2), with the averages that the columns give."""
    rows = [row for row in load_table(table) if row.kind == "row" and row.model == model]
    mine = next(row for row in rows if row.method == "tepo")
    best = max(rows, key=lambda row: average(row.scores))
    if best is mine:
        return [], 1
    text = f"{average(mine.scores):.2f}, {best.label.removeprefix('w. ')} {average(best.scores):.2f}: the order flips"
    return [Finding("A16", f"§4.2 {SHORT.get(model, model)}, TEPO's Avg.", "the highest", text)], 1
