"""Measuring trained runs and untrained bases one after another in this process, with one loaded engine."""

import time
from collections.abc import Iterator, Sequence

from tepo.common.errors import UserError
from tepo.config.run_config import RunConfig
from tepo.jobs.measure_run import After, Measured, measure_and_record
from tepo.jobs.shared_engine import OneEngine
from tepo.store.run_folder import RunFolder


def measure_runs(
    runs: Sequence[tuple[RunConfig, bool]], *, quiet: bool
) -> Iterator[tuple[RunFolder, Measured | UserError]]:
    """Measure each run (or, where the second is false, its base) on the benchmarks of its data, add the cost to its
    record and write its card; the runs have the same model, sampler, lengths and benchmarks. Yields what came out.

    One that cannot be measured, or that another process has, leaves the others. Raises UserError where the engine does
    not open.
    """
    with OneEngine() as engine:
        before = 0.0  # the first one pays for the start of the process
        for config, trained in runs:
            run = RunFolder.of(config) if trained else RunFolder.of_base(config)
            after = After(evaluate=True, cpu_before=before, engine=engine)
            try:
                _check(run, config, trained, after)
                yield run, measure_and_record(config, [] if trained else None, after, quiet=quiet)
            except UserError as error:
                if engine.failed:
                    raise
                yield run, error
            before = time.process_time()


def _check(run: RunFolder, config: RunConfig, trained: bool, after: After) -> None:
    if trained and not run.finished():
        fix = "`tepo train --evaluate` trains it and measures it then"
        raise UserError("the run is not trained to its end", where=str(run.path), fix=fix)
    after.check(config)
