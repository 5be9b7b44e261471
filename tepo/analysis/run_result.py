"""A run as Python sees it, read from its folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tepo.common.errors import UserError
from tepo.evaluation.results import read_result
from tepo.store.early_stop import Ending
from tepo.store.run_folder import RunFolder, final_model


@dataclass(frozen=True)
class RunResult:
    """The run in a folder of a store."""

    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def ending(self) -> Ending | None:
        """Step at which training ended early, and why; None where it did not."""
        return self._run.ending()

    @property
    def weights(self) -> Path:
        """The folder that `from_pretrained` loads. Raises UserError where no checkpoint is complete."""
        return final_model(self.folder)

    @property
    def _run(self) -> RunFolder:
        """Raises UserError where it is not what it says."""
        run = RunFolder(self.folder)
        run.check_whole()
        return run

    def metrics(self) -> pd.DataFrame:
        """A line a step, verl's names."""
        rows = self._run.metrics()
        return pd.DataFrame(rows).set_index("training/global_step") if rows else pd.DataFrame()

    def chart(self) -> Any:
        """The training curves, as a chart of Altair's. Raises UserError for a run without metrics."""
        from tepo.reporting.charts.curves import run_curves
        from tepo.reporting.charts.style import styled

        run, config = self._run, self._run.config()["full"]
        if not (rows := run.metrics()):
            raise UserError("the run has no metrics yet", where=str(self.folder))
        name, ended = str(config["objective"]["name"]), run.ending() is not None
        return styled(run_curves(rows, name, config["seed"], self.id, ended=ended))

    def scores(self) -> pd.DataFrame:
        """A line a benchmark that was measured: accuracy, low and high (95%), in percent, problems and samples."""
        results = [read_result(self._run.evaluations / name) for name in self._run.measured()]
        lines = [
            {
                "benchmark": result.benchmark,
                "accuracy": 100 * result.accuracy,
                "low": 100 * result.interval[0] if result.interval else None,
                "high": 100 * result.interval[1] if result.interval else None,
                "problems": result.problems,
                "samples": result.samples,
            }
            for result in results
            if result is not None
        ]
        columns = ["benchmark", "accuracy", "low", "high", "problems", "samples"]
        return pd.DataFrame(lines, columns=columns).set_index("benchmark")
