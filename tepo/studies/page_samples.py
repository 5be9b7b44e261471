"""The stored samples of runs for the page."""

from collections.abc import Sequence

from tepo.evaluation.answered import answered
from tepo.reporting.page.sample_data import RunSamples
from tepo.studies.plan import Unit

_READ = 80_000_000  # characters at most, a response counted with 200 more: else it takes longer than all of the page


def page_samples(units: Sequence[Unit]) -> list[RunSamples]:
    """Of the units that were measured here (a record holds no responses); those after the first `_READ` characters
    without their answers."""
    samples, read = [], 0
    for unit in units:
        if unit.record or not (measured := [name for name in unit.benchmarks if unit.source.measured(name)]):
            continue
        problems = {name: answered(unit.run.evaluation(name)) for name in measured} if read < _READ else {}
        read += sum(200 + len(one.text) for own in problems.values() for problem in own for one in problem.answers)
        label = unit.label if unit.row.objective is None else f"{unit.label}, seed {unit.seed}"
        samples.append(RunSamples(unit.id, label, problems))
    return samples
