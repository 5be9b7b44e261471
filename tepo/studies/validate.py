"""The validation of a finished run's last weights, by which settings are chosen: `validation.json` of its folder.

It is measured after training and not on its way, so that a run that ended early has one, and so has a run that another
study trained without validation.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

from tepo.config.compose import to_dict
from tepo.config.schema import RunConfig
from tepo.errors import UserError
from tepo.files import content_hash, parse_json, write_json
from tepo.problems.benchmarks import load_benchmark
from tepo.provenance import recorded
from tepo.training.run_folder import AGAIN, RunFolder
from tepo.training.validation_problems import AVERAGE

_PROBLEMS: dict[str, str] = {}


def validate_run(config: RunConfig) -> float:
    """The share of right responses to the validation problems of a configuration, with the final weights of its run
    and the sampler it trains with; stored, or measured now.

    Raises UserError where the data have no validation problems, with exit code BUSY when another process measures.
    """
    run = RunFolder.of(config)
    stored = final_validation(run, config)
    if stored is not None:
        return stored
    from tepo.training.checks import check_validation_problems

    check_validation_problems(config)
    with run.lock("measure"), recorded(run.path, "validate"):
        metrics = _measured(config, run)
        write_json(run.validation_file, {"problems": problems_hash(config), "metrics": metrics})
    return float(metrics[AVERAGE])


@dataclass(frozen=True)
class Validated:
    """share: of right responses. problems: hash of the validation problems, and of how they were asked."""

    problems: str
    share: float


def final_validation(run: RunFolder, config: RunConfig) -> float | None:
    """The stored share of a finished run. None where there is none, or where it is of other validation problems."""
    found = validated(run)
    return found.share if found and found.problems == problems_hash(config) else None


def validated(run: RunFolder) -> Validated | None:
    """What is stored of a finished run, whatever the problems. Raises UserError where it is damaged."""
    if not run.finished():
        return None
    try:
        record = parse_json(run.validation_file.read_bytes())
        return Validated(str(record["problems"]), float(record["metrics"][AVERAGE]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise UserError("the validation is damaged: copied half?", where=str(run.validation_file), fix=AGAIN) from None


def validation_share(config: RunConfig) -> float:
    """The responses of a validation, as a number of benchmarks; 1 for problems held out of a set."""
    if config.data.kind == "problems":
        return 1.0
    return _share(tuple(config.data.benchmarks), config.train.validation_problems)


@cache
def _share(names: tuple[str, ...], problems: int) -> float:
    generated = (benchmark for benchmark in map(load_benchmark, names) if benchmark.procedural)
    return sum(problems / benchmark.count for benchmark in generated)


def _measured(config: RunConfig, run: RunFolder) -> dict[str, Any]:
    from tepo.evaluation.responses import Tools
    from tepo.problems.grader import Grader, GraderOptions
    from tepo.studies.measure import trainers_sampler
    from tepo.studies.weights import Weights
    from tepo.training.validation import Validation

    weights = Weights.of_run(run, config.model.trust_remote_code)
    options = GraderOptions(timeout=config.grader.timeout, workers=config.grader.workers)
    with trainers_sampler(config, weights, run) as (sampler, tokenizer), Grader(options) as grader:
        return Validation(config, Tools(sampler, tokenizer, grader), None).measure()


def problems_hash(config: RunConfig) -> str:
    """Of the validation problems and how they are asked; the same for every run of a study, so computed once."""
    train = config.train
    asked = [to_dict(config)["data"], train.validation_problems, train.temperature, train.max_new_tokens]
    key = content_hash(asked)
    if key not in _PROBLEMS:
        from tepo.problems.hashes import rows_hash
        from tepo.training.validation_problems import validation_sets

        parts = [
            [one.name, one.samples, one.temperature, one.max_new_tokens, one.prompt, rows_hash(problems, ids=True)]
            for one, problems in validation_sets(config)
        ]
        _PROBLEMS[key] = content_hash(parts)
    return _PROBLEMS[key]
