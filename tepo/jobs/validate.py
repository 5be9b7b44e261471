"""The validation of a finished run's last weights, by which settings are chosen: `validation.json` of its folder.

It is measured after training and not on its way, so that a run that ended early has one, and so has a run that another
study trained without validation.
"""

from functools import cache

from tepo.common.files import content_hash, write_json
from tepo.common.provenance import add_sampler, recorded
from tepo.config.compose import to_dict
from tepo.config.run_config import RunConfig
from tepo.problems.benchmarks import load_benchmark
from tepo.store.evaluation_result import AVERAGE
from tepo.store.run_folder import RunFolder
from tepo.training.run import Run

_PROBLEMS: dict[str, str] = {}


def validate_run(run: Run) -> float:
    """The share of right responses to the validation problems of a run, with its final weights and the sampler that it
    trains with; stored, or measured now. Raises UserError where the data have no validation problems,
    with exit code BUSY when another process measures."""
    config, folder = run.config, run.folder
    stored = final_validation(folder, config)
    if stored is not None:
        return stored
    from tepo.evaluation.responses import Tools
    from tepo.jobs.open_sampler import trainers_sampler
    from tepo.jobs.weights import Weights
    from tepo.problems.grader import Grader, GraderOptions
    from tepo.training.preflight import check_validation_problems
    from tepo.training.validation import Validation

    check_validation_problems(config)
    with folder.lock("measure"), recorded(folder.path, "validate"):
        weights = Weights.of_run(folder, config.model.trust_remote_code)
        options = GraderOptions.of_training(config.grader)
        with trainers_sampler(run, weights, folder) as (sampler, tokenizer), Grader(options) as grader:
            add_sampler(folder.path, sampler.parts)
            metrics = Validation(config, Tools(sampler, tokenizer, grader), None).measure()
        write_json(
            folder.validation_file, {"problems": problems_hash(config), "weights": weights.name, "metrics": metrics}
        )
    return float(metrics[AVERAGE])


def final_validation(run: RunFolder, config: RunConfig) -> float | None:
    """The stored share of a finished run. None where there is none, or where it is of other validation problems."""
    validation = run.validated()
    return validation.share if validation and validation.problems == problems_hash(config) else None


def validation_share(config: RunConfig) -> float:
    """The responses of a validation, as a number of benchmarks; 1 for problems held out of a set."""
    if config.data.kind == "problems":
        return 1.0
    return _share(tuple(config.data.benchmarks), config.train.validation_problems)


@cache
def _share(names: tuple[str, ...], problems: int) -> float:
    generated = (benchmark for benchmark in map(load_benchmark, names) if benchmark.procedural)
    return sum(problems / benchmark.count for benchmark in generated)


def problems_hash(config: RunConfig) -> str:
    """Hash of the validation problems and of how they are asked; computed once, as a study's runs share it."""
    train = config.train
    settings = [to_dict(config)["data"], train.validation_problems, train.temperature, train.max_new_tokens]
    key = content_hash(settings)
    if key not in _PROBLEMS:
        from tepo.problems.hashes import rows_hash
        from tepo.training.validation import validation_sets

        parts = [
            [
                benchmark.name,
                benchmark.samples,
                benchmark.temperature,
                benchmark.max_new_tokens,
                benchmark.prompt,
                rows_hash(problems, ids=True),
                *benchmark.draws_apart,
            ]
            for benchmark, problems in validation_sets(config)
        ]
        _PROBLEMS[key] = content_hash(parts)
    return _PROBLEMS[key]
