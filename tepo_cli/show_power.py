"""The power of studies on the screen. Imported when it is asked for: it needs pandas."""

from dataclasses import replace

from tepo.analysis.study_power import level, study_power
from tepo.common.text import counted
from tepo.evaluation.statistics.power import CAUTION, MOST_SEEDS, POWER, found_from, seeds_needed, smallest
from tepo.evaluation.statistics.verdict import FEWEST_SEEDS
from tepo.store.facts import Facts
from tepo.studies.plan_studies import Planned
from tepo_cli.screen import say_wrapped, show

WANTED = 2.0
_LISTED = 20  # comparisons: each takes two seconds, and nobody reads fifty
UNKNOWN = "power: unknown, no row and its baseline are measured under two seeds or more"


def power_line(planned: Planned, facts: Facts, wanted: float = WANTED) -> str:
    """Power of the planned seeds, and the seeds that `wanted` points need, in a sentence."""
    power = study_power(planned, facts)
    if power is None:
        return UNKNOWN
    spread, at = power.spread, level(power.family)
    seeds = seeds_needed(spread, wanted / 100, at)
    text = [
        f"power: fewer than {FEWEST_SEEDS} seeds give no verdict",
        f"{wanted:g} points need {counted(seeds, 'seed') if seeds else f'more than {MOST_SEEDS} seeds'}",
    ]
    if power.seeds >= FEWEST_SEEDS:
        difference = 100 * smallest(found_from(spread, power.seeds, at))
        points = (
            f"a difference of {difference:.1f} points" if difference <= 100 else "no difference of up to 100 points"
        )
        text[0] = f"power: {power.seeds} seeds find {points} with {POWER:.0%}"
    text.append(
        f"variances from {counted(len(power.measured), 'comparison')}, that between seeds at the upper end of its "
        f"{CAUTION:.0%} interval; corrected for {counted(power.family, 'comparison')}"
    )
    return "; ".join(text)


def show_power(planned: Planned, facts: Facts, wanted: float) -> None:
    """Each comparison that the facts say something about, unless they are many, then the line over all. Rows of a study
    without a baseline are compared with the first."""
    for place, (study, units) in enumerate(planned := list(planned)):
        trained = [row.label for row in study.rows if not row.base]
        if study.baseline is None and trained:
            say_wrapped(f"{study.name} names no baseline: its rows are compared with the first, {trained[0]}")
            planned[place] = replace(study, baseline=trained[0]), units
    power = study_power(planned, facts)
    if power is not None and len(power.measured) <= _LISTED:
        heads = ("row", "against", "seeds", "Δ", "SD of seeds", "SD of problems", "found with 80%", "seeds needed")
        rows = []
        for comparison in power.measured:
            spread = comparison.spread
            problem = float((spread.weights * spread.problem.clip(0)).sum()) ** 0.5
            difference = smallest(found_from(comparison.cautious, max(power.seeds, 2), level(comparison.family)))
            seeds = seeds_needed(comparison.cautious, wanted / 100, level(comparison.family))
            row = (
                comparison.label.partition("/")[2],
                comparison.baseline.partition("/")[2],
                str(comparison.seeds),
                f"{100 * comparison.delta:+.1f}",
                f"{100 * max(spread.seed, 0) ** 0.5:.1f}",
                f"{100 * problem:.1f}",
                (f"{100 * difference:.1f}" if difference <= 1 else "none") if power.seeds >= FEWEST_SEEDS else "–",
                str(seeds or f"> {MOST_SEEDS}"),
            )
            rows.append(row)
        show(heads, rows, f"in points; needed for {wanted:g}", wrapped=("row",))
    say_wrapped(power_line(planned, facts, wanted))
