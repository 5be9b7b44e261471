"""What is checked before a run has a folder and its weights are loaded, which takes minutes for a large model:
a typo must not cost a run that fails after its start."""

from tepo.config.schema import RunConfig
from tepo.objectives import load_objective
from tepo.problems.grader import GraderOptions
from tepo.sampling.samplers import sampler_backend
from tepo.training import distributed
from tepo.training.engines import engine_backend


def check_settings(config: RunConfig) -> None:
    """Raises UserError for keys and values of the objective, the tasks or the grader that do not exist."""
    load_objective(config.objective)
    GraderOptions(timeout=config.grader.timeout, workers=config.grader.workers)
    if config.data.kind == "procedural":
        from tepo.problems.procedural import check_tasks

        check_tasks(config.data.tasks, "train")


def check_backends(config: RunConfig) -> None:
    """Raises UserError for ranks or settings that engine or sampler cannot work with, or where what they run on is
    missing."""
    for backend in (engine_backend(config.engine.kind), sampler_backend(config.sampler.kind)):
        backend.check_settings(config, distributed.world_size())
        backend.check_available(config)
