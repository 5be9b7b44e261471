"""Measuring a trained run, or an untrained base, on the benchmarks of its data."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tepo.config.schema import RunConfig
from tepo.evaluation.current import check_current
from tepo.evaluation.evaluate import evaluate
from tepo.evaluation.result import Result, load_result
from tepo.policy.fingerprint import base_fingerprint
from tepo.policy.load_policy import load_policy
from tepo.policy.location import resolve
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.grader import Grader
from tepo.sampling.samplers import sampler_backend
from tepo.training.parts import make_sampler, pick_device
from tepo.training.run_folder import RunFolder, final_model
from tepo.training.torch_engine import full_state

EVALUATION_SEED = 0  # one seed for every row and run, so that rows are compared on the same draws
Report = Callable[[str, int, int], None]


def measure(
    folder: Path,
    config: RunConfig,
    benchmarks: Sequence[str],
    *,
    trained: bool,
    report: Report = lambda name, done, total: None,
) -> list[Result]:
    """Evaluate into `folder/eval/<benchmark>/` what is not there yet.

    `report(benchmark, rows done, rows in all)` as they come.
    """
    if trained:
        path, policy_name = str(final_model(folder)), f"{folder.name}/{final_model(folder).name}"
    else:
        path, policy_name = config.model.path, base_fingerprint(config.model.path, config.model.revision)
    ready = {name: _ready(folder, name, config) for name in benchmarks}
    if all(ready.values()):
        return [result for result in ready.values() if result is not None]
    with RunFolder(folder).lock("measure"):
        return _measure(folder, config, benchmarks, path, policy_name, trained, report)


def _ready(folder: Path, name: str, config: RunConfig) -> Result | None:
    """The stored result, if there is one. Raises UserError when it is of another definition of the benchmark."""
    place = folder / "eval" / name
    result = load_result(place)
    if result is not None:
        check_current(
            place, result, load_benchmark(name), {"wrap": config.model.wrap, "thinking": config.model.thinking}
        )
    return result


def _measure(
    folder: Path,
    config: RunConfig,
    benchmarks: Sequence[str],
    path: str,
    policy_name: str,
    trained: bool,
    report: Report,
) -> list[Result]:
    """Evaluate what is missing, under the lock."""
    ready = {name: _ready(folder, name, config) for name in benchmarks}
    missing = [name for name in benchmarks if ready[name] is None]
    if missing:
        policy = load_policy(
            path,
            dtype=config.model.dtype,
            device=str(pick_device(config.engine.device)),
            revision=None if trained else config.model.revision,
            trust_remote_code=config.model.trust_remote_code,
        )
        sampler = make_sampler(config, policy, resolve(path), folder / "exchange")
        if sampler_backend(config.sampler.kind).remote:
            sampler.sync(full_state(policy.model))
        try:
            for name in missing:
                benchmark = load_benchmark(name)
                with Grader(benchmark.grader) as grader:
                    ready[name] = evaluate(
                        benchmark,
                        sampler,
                        policy.tokenizer,
                        grader,
                        folder / "eval" / name,
                        seed=EVALUATION_SEED,
                        policy={"weights": policy_name},
                        wrap=config.model.wrap,
                        thinking=config.model.thinking,
                        progress=lambda done, total, name=name: report(name, done, total),  # type: ignore[misc]
                    )
        finally:
            sampler.close()
    return [result for result in ready.values() if result is not None]
