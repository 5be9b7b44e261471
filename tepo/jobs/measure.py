"""The one way to measure a policy on benchmarks: a run, an untrained base, a model by path, or one in memory.

`measure` evaluates what a folder does not hold yet; how responses are made is for its callers below to say. Stored
results come without torch.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tepo.common.errors import UserError
from tepo.config.run_config import RunConfig, chosen
from tepo.evaluation.settings import Report, Settings, silent
from tepo.jobs.shared_engine import Generator, OneEngine, check_alike
from tepo.jobs.weights import Weights, tokenizer_of
from tepo.problems.benchmarks import Benchmark, load_benchmark
from tepo.problems.grader import Grader
from tepo.problems.prompt_format import encode_prompts
from tepo.sampling.backends import SamplerOptions, longest_sequence, sampler_backend
from tepo.store.benchmark_match import check_current
from tepo.store.evaluation_result import Result, load_result
from tepo.store.run_folder import RunFolder

if TYPE_CHECKING:
    from tepo.policy.model.load_policy import Policy
    from tepo.sampling.sampler import Sampler


def measure(
    run: RunFolder,
    benchmarks: Sequence[Benchmark],
    settings: Settings,
    generator: Callable[[Sequence[Benchmark]], Generator],
    report: Report = silent,
) -> list[Result]:
    """A result for each benchmark: the stored one, or a new one in `run.evaluation(name)`.

    `generator` is opened once, for the benchmarks without a result, if there are any. Raises UserError where a stored
    result, or one that was begun, is of other weights, of another definition of the benchmark or of other settings.
    """
    results = {benchmark.name: stored(run, benchmark, settings) for benchmark in benchmarks}
    missing = [one for one in {one.name: one for one in benchmarks}.values() if results[one.name] is None]
    if missing:
        from tepo.evaluation.evaluate import evaluate
        from tepo.evaluation.writer import Task

        with generator(missing) as (sampler, tokenizer), ExitStack() as stack:
            graders = {options: stack.enter_context(Grader(options)) for options in {one.grader for one in missing}}
            tasks = [
                Task(one, graders[one.grader], run.evaluation(one.name, settings.limit, settings.seed))
                for one in missing
            ]
            # One after another where none could fill another's gaps: a kill leaves the first ones finished.
            queues = [[task] for task in tasks] if sampler.side_by_side is None else [tasks]
            for queue in queues:
                for result in evaluate(queue, sampler, tokenizer, settings, report):
                    results[result.benchmark] = result
    return [result for result in results.values() if result is not None]


def stored(run: RunFolder, benchmark: Benchmark, settings: Settings) -> Result | None:
    """The stored result, if there is one. Raises UserError when it is of other weights or settings, or of another
    definition of the benchmark."""
    folder = run.evaluation(benchmark.name, settings.limit, settings.seed)
    result = load_result(folder)
    if result is not None:
        check_current(folder, result, benchmark, settings.compared())
    return result


def measure_run(
    config: RunConfig, benchmarks: Sequence[str], *, trained: bool, report: Report = silent, limit: int | None = None
) -> list[Result]:
    """Measure the run of a configuration, or (`trained` false) its untrained base, with the sampler it trains with.
    limit: on so many problems of each benchmark.

    Raises UserError with exit code BUSY when another process measures it.
    """
    run, settings, weights = _of_config(config, trained, limit)
    _check_loads(weights, run)
    opened = partial(_runs_sampler, config, weights, run, settings)
    return _measure_locked(run, [load_benchmark(name) for name in benchmarks], settings, opened, report)


def stored_base(config: RunConfig, benchmarks: Iterable[str]) -> dict[str, Result]:
    """What the store has measured of the untrained base of a configuration, as it would be measured today."""
    run, settings, _ = _of_config(config, trained=False)
    found = {}
    for name in benchmarks:
        with suppress(UserError):  # of another definition: as good as none
            if result := stored(run, load_benchmark(name), settings):
                found[name] = result
    return found


def measure_run_with(
    engine: OneEngine, config: RunConfig, benchmarks: Sequence[str], *, trained: bool, report: Report = silent
) -> list[Result]:
    """The same with an engine that other runs of the same model, sampler, lengths and benchmarks share."""
    run, settings, weights = _of_config(config, trained)
    chosen = [load_benchmark(name) for name in benchmarks]
    opened = partial(_runs_sampler, config, weights, run, settings, chosen)
    return _measure_locked(
        run, chosen, settings, lambda missing: engine.holding(weights, config.model.dtype, opened), report
    )


def _of_config(config: RunConfig, trained: bool, limit: int | None = None) -> tuple[RunFolder, Settings, Weights]:
    run, model = RunFolder.of(config) if trained else RunFolder.of_base(config), config.model
    weights = (
        Weights.of_run(run, model.trust_remote_code)
        if trained
        else Weights.of_base(model.path, model.revision, model.trust_remote_code)
    )
    return run, Settings({"weights": weights.name}, limit=limit, wrap=model.wrap, thinking=model.thinking), weights


def _check_loads(weights: Weights, run: RunFolder) -> None:
    """Raises UserError for a model without a tokenizer before it has a folder, which would stay empty."""
    if not run.path.exists():
        tokenizer_of(weights)


def _measure_locked(
    run: RunFolder,
    benchmarks: Sequence[Benchmark],
    settings: Settings,
    generator: Callable[[Sequence[Benchmark]], Generator],
    report: Report,
) -> list[Result]:
    """`measure`, under the run's lock where something is missing."""
    there = all(stored(run, benchmark, settings) for benchmark in benchmarks)
    with nullcontext() if there else run.lock("measure"):
        return measure(run, benchmarks, settings, generator, report)


def _runs_sampler(
    config: RunConfig, weights: Weights, run: RunFolder, settings: Settings, benchmarks: Sequence[Benchmark]
) -> Generator:
    """The sampler that a configuration trains with, with room for these benchmarks too."""
    train, tokenizer = config.train, tokenizer_of(weights)
    longest = max(_longest(benchmark, tokenizer, settings) for benchmark in benchmarks)
    room = max(train.max_new_tokens, longest - train.max_prompt_tokens)
    return trainers_sampler(replace(config, train=replace(train, max_new_tokens=room)), weights, run)


def trainers_sampler(config: RunConfig, weights: Weights, run: RunFolder) -> Generator:
    """The sampler that a configuration trains with, of the given weights, with the GPU for itself. Where ranks train
    with engines of their own, there are as many on the GPUs of this machine that the ranks had."""
    from tepo.training.distributed.process_group import local_world_size

    sampler, gpus = config.sampler, local_world_size()
    backend, length = sampler_backend(sampler.kind), longest_sequence(config)
    if gpus > 1 and not (backend.shares_weights or backend.remote):
        size = sampler.tensor_parallel
        options = SamplerOptions(sampler.kind, config.model.dtype, size, gpus // size, max_length=length)
        return _opened(weights, options, run)
    config = _alone(config, weights)
    if backend.shares_weights or backend.remote:
        return _of_policy(config, weights, run.exchange)
    options = SamplerOptions(
        sampler.kind, config.model.dtype, max_length=length, max_rows=chosen(config.sampler.max_rows)
    )
    if config.sampler.memory_fraction is not None:  # on a CPU it has a size of its own
        options = replace(options, memory=config.sampler.memory_fraction)
    return _opened(weights, options, run)


def _alone(config: RunConfig, weights: Weights) -> RunConfig:
    """The configuration of one sampler that has this GPU for itself, with its share and its rows chosen where they are
    open."""
    from tepo.training.resources.memory import with_all
    from tepo.training.setup import gpus_here, pick_device, shape_at

    config = replace(config, sampler=replace(config.sampler, tensor_parallel=1))  # this process is alone
    gpus = gpus_here(pick_device(config.engine.device))
    if gpus.bytes or config.sampler.max_rows is None:
        config = with_all(config, shape_at(config, weights.path), gpus)
    return config


@contextmanager
def _of_policy(config: RunConfig, weights: Weights, exchange: Path) -> Iterator[tuple["Sampler", Any]]:
    """One that is given a policy: in this process, or what servers there are. For these the policy stays on the CPU."""
    from tepo.policy.model.load_policy import load_policy
    from tepo.policy.model.lora import full_state
    from tepo.policy.model.model_location import resolve
    from tepo.training.setup import make_sampler, pick_device

    device, remote = pick_device(config.engine.device), sampler_backend(config.sampler.kind).remote
    policy = load_policy(
        weights.path,
        dtype=config.model.dtype,
        device="cpu" if remote else str(device),
        revision=weights.revision,
        trust_remote_code=weights.trust_remote_code,
    )
    with closing(make_sampler(config, policy, resolve(weights.path), exchange)) as sampler:
        if remote:
            sampler.sync(full_state(policy.model))
        yield sampler, policy.tokenizer


@dataclass(frozen=True)
class Request:
    """A model to measure by its path, on what, and the folder for the results."""

    weights: Weights
    sampler: SamplerOptions
    settings: Settings
    run: RunFolder

    def folder(self, benchmark: str) -> Path:
        """Where the evaluation lies."""
        return self.run.evaluation(benchmark, self.settings.limit, self.settings.seed)


def measure_model(request: Request, benchmarks: Sequence[str], report: Report = silent) -> list[Result]:
    """Measure a model by its path with a sampler of its own. Raises UserError with exit code BUSY when another process
    measures into the same folder."""
    with models_measured([(request, benchmarks)]) as measure_one:
        return measure_one(request, benchmarks, report)


@contextmanager
def models_measured(
    requests: Sequence[tuple[Request, Sequence[str]]],
) -> Iterator[Callable[[Request, Sequence[str], Report], list[Result]]]:
    """Yields what measures one of these models on its benchmarks; they share a sampler that is loaded once.

    Raises UserError for models of several architectures, before the first is measured.
    """
    missing = [
        (request, benchmark)
        for request, names in requests
        for benchmark in map(load_benchmark, names)
        if stored(request.run, benchmark, request.settings) is None
    ]
    models = list(dict.fromkeys(request.weights for request, _ in missing))
    if len(models) > 1:
        check_alike(models)
    with OneEngine() as engine:
        yield partial(_measure_model, engine, missing)


Missing = Sequence[tuple[Request, Benchmark]]


def _measure_model(
    engine: OneEngine, missing: Missing, request: Request, benchmarks: Sequence[str], report: Report
) -> list[Result]:
    settings = request.settings
    _check_loads(request.weights, request.run)
    if any(one == request for one, _ in missing):  # torch says which backend it is
        settings = replace(settings, rows_per_part=request.sampler.backend.part_rows)

    def generator(own: Sequence[Benchmark]) -> Generator:
        dtype = request.sampler.resolved_dtype()
        return engine.holding(request.weights, dtype, partial(_models_sampler, request, missing))

    return _measure_locked(request.run, [load_benchmark(name) for name in benchmarks], settings, generator, report)


def _models_sampler(request: Request, missing: Missing) -> Generator:
    """A sampler of the model with room for the longest prompt and response of all that is missing."""
    longest = max(_longest(benchmark, tokenizer_of(one.weights), one.settings) for one, benchmark in missing)
    return _opened(request.weights, replace(request.sampler, max_length=longest), request.run)


@contextmanager
def _opened(weights: Weights, options: SamplerOptions, run: RunFolder) -> Iterator[tuple["Sampler", Any]]:
    """A sampler that loads the weights itself, on as many GPUs as the options say."""
    options = replace(options, revision=weights.revision, trust_remote_code=weights.trust_remote_code)
    with options.backend.open_model(weights.path, options, run.server_logs) as sampler:
        yield sampler, tokenizer_of(weights)


def _longest(benchmark: Benchmark, tokenizer: Any, settings: Settings) -> int:
    """Longest prompt plus response, in tokens."""
    statements = [problem.prompt for problem in benchmark.load_problems()[: settings.limit]]
    prompts = encode_prompts(
        statements, tokenizer, prompt=benchmark.prompt, wrap=settings.wrap, thinking=settings.thinking
    )
    return max(map(len, prompts)) + benchmark.max_new_tokens


def measure_in_memory(
    policy: "Policy", benchmarks: Sequence[Benchmark], settings: Settings = Settings(), report: Report = silent
) -> list[Result]:
    """Measure a model that belongs to no run yet. Nothing is kept."""
    from tepo.sampling.embedded.torch_sampler import TorchSampler

    sampler = TorchSampler(policy.model, policy.tokenizer)
    with TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        return measure(run, benchmarks, settings, lambda missing: nullcontext((sampler, policy.tokenizer)), report)


def unreadable_golds(benchmark: Benchmark, limit: int | None) -> list[str]:
    """The problems of a published benchmark whose golds the grader cannot read, each with the reason: only the same
    text matches them."""
    if not benchmark.dataset:
        return []
    problems = benchmark.load_problems()[:limit]
    with Grader(benchmark.grader) as grader:
        unread = grader.check_golds([problem.answer for problem in problems])
    return [f"{problems[index].id} ({why})" for index, why in unread]
