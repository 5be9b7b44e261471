"""What only the owners of a setting can check, before a run has a folder:
a typo must not cost a run that fails after its start."""

from tepo.config.schema import RunConfig
from tepo.objectives import load_objective
from tepo.problems.grader import GraderOptions


def check_settings(config: RunConfig) -> None:
    """Raises UserError for keys and values of the objective, the tasks or the grader that do not exist."""
    load_objective(config.objective)
    GraderOptions(timeout=config.grader.timeout, workers=config.grader.workers)
    if config.data.kind == "procedural":
        from tepo.problems.procedural import check_tasks

        check_tasks(config.data.tasks, "train")
