"""The stored samples of runs for the page."""

from collections.abc import Sequence

from tepo.reporting.page.sample_data import RunSamples
from tepo.store.stored_responses import answered
from tepo.studies.plan import Unit

_READ = 80_000_000  # characters at most, a response counted with 200 more: else it takes longer than all of the page


def page_samples(units: Sequence[Unit]) -> list[RunSamples]:
    """Of the units that were measured here (a record holds no responses), in their order.

    When `_READ` characters are read the others come without their answers; the first seeds of all rows are read
    first."""
    measured = {
        index: [name for name in unit.benchmarks if unit.run.has(name)]
        for index, unit in enumerate(units)
        if unit.record is None
    }
    samples, read = {}, 0
    for index in sorted((index for index, names in measured.items() if names), key=lambda index: units[index].seed):
        unit = units[index]
        names = measured[index] if read < _READ else []
        problems = {name: answered(unit.run.evaluation(name)) for name in names}
        read += sum(200 + len(one.text) for own in problems.values() for problem in own for one in problem.answers)
        label = unit.label if unit.row.objective is None else f"{unit.label}, seed {unit.seed}"
        samples[index] = RunSamples(unit.id, label, problems)
    return [samples[index] for index in sorted(samples)]
