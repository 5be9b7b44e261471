"""What the runs of some units have cost, by what the time went into."""

from collections.abc import Iterable

from tepo.common.text import counted
from tepo.studies.plan import Unit, unique


def spent(units: Iterable[Unit]) -> str:
    """One sentence: CPU seconds in all, and the shares of sampling, log-probs and updates, of the benchmarks, and of
    everything else (start-up, grading, checkpoints, token dumps). Empty when nothing was recorded."""
    distinct = unique(units)
    costs = [cost for unit in distinct for cost in unit.run.costs()]
    total = sum(cost.cpu_s for cost in costs)
    if not total:
        return ""
    core, benchmarks = sum(cost.core_s for cost in costs), sum(cost.measuring_s for cost in costs)
    return (
        f"{total:,.0f} CPU seconds in {counted(len(distinct), 'run')}: "
        f"{core / total:.1%} sampling, log-probs and updates, "
        f"{benchmarks / total:.1%} benchmarks (sampling and grading), "
        f"{1 - (core + benchmarks) / total:.1%} everything else"
    )
