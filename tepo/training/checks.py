"""What is checked before a run has a folder and its weights are loaded, which takes minutes for a large model:
a typo must not cost a run that fails after its start."""

from tepo.config.schema import ModelConfig, RunConfig
from tepo.errors import UserError
from tepo.objectives import load_objective
from tepo.objectives.checks import check_runs
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.grader import GraderOptions
from tepo.sampling.samplers import sampler_backend
from tepo.training import distributed
from tepo.training.engines import engine_backend


def check_settings(config: RunConfig) -> None:
    """Raises UserError for keys and values of the objective, the adapters, the tasks or the grader that do not
    exist or cannot be."""
    check_runs(load_objective(config.objective))
    check_lora(config)
    GraderOptions(timeout=config.grader.timeout, workers=config.grader.workers)
    if config.data.kind == "procedural":
        from tepo.problems.procedural import check_tasks

        check_tasks(config.data.tasks, "train")
    check_validation(config)


def check_lora(config: RunConfig) -> None:
    """Raises UserError for a scale of adapters where there are none."""
    model = config.model
    if not model.lora_rank and model.lora_alpha != ModelConfig.lora_alpha:
        fix = "set model.lora_rank, or leave model.lora_alpha out"
        raise UserError("no adapters to scale", where=f"model.lora_alpha={model.lora_alpha:g}", fix=fix)


def check_validation(config: RunConfig) -> None:
    """Raises UserError where `train.validate_every` has nothing to measure on, or problems are held out for nothing."""
    if config.data.kind == "procedural" and config.data.held_out:
        fix = "leave it out: generated problems have a validation split"
        where = f"data.held_out={config.data.held_out}"
        raise UserError("nothing to hold out of generated problems", where=where, fix=fix)
    if config.train.validate_every:
        check_validation_problems(config)


def check_validation_problems(config: RunConfig) -> None:
    """Raises UserError where there are none."""
    data = config.data
    if data.kind == "procedural":
        if not any(load_benchmark(name).procedural for name in data.benchmarks):
            fix = "name generated benchmarks in data.benchmarks"
            raise UserError("no benchmark has validation problems", where=f"data={data.name}", fix=fix)
    elif not data.held_out:
        fix = "data.held_out=256 keeps so many problems from training"
        raise UserError("no problems to validate on", where=f"data={data.name}", fix=fix)


def check_backends(config: RunConfig) -> None:
    """Raises UserError for ranks or settings that engine or sampler cannot work with, or where what they run on is
    missing."""
    for backend in (engine_backend(config.engine.kind), sampler_backend(config.sampler.kind)):
        backend.check_settings(config, distributed.world_size())
        backend.check_available(config)
