"""Measuring a policy on benchmarks: a run, an untrained base, a model by path, or one in memory.

`measure` evaluates what a folder does not hold yet, with a sampler of its own or with a shared engine. Stored results
come without torch.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tepo.common.errors import UserError
from tepo.evaluation.responses import ask
from tepo.evaluation.results import read_result
from tepo.evaluation.settings import Report, Settings, asked_by, silent
from tepo.jobs.open_sampler import Generator, SharedEngine, check_alike, model_sampler, served_sampler, trainers_sampler
from tepo.jobs.weights import Weights, tokenizer_of
from tepo.problems.benchmarks import Benchmark, load_benchmark
from tepo.problems.findings import SECONDS, find
from tepo.problems.grader import Grader
from tepo.reporting.progress import say
from tepo.sampling.backends import SamplerOptions
from tepo.sampling.served import ServedModel, ServedSampler
from tepo.store.evaluation_result import Result, check_current, load_result, remove_parts
from tepo.store.run_folder import RunFolder
from tepo.training.run import Run

if TYPE_CHECKING:
    from tepo.policy.model.load_policy import Policy


@dataclass(frozen=True)
class Request:
    """A policy to measure, and the run or folder of its results. trainer: the run, or one of the base, whose sampler
    measures it; without one `sampler` says how to generate."""

    weights: Weights | ServedModel
    sampler: SamplerOptions
    settings: Settings
    run: RunFolder
    trainer: Run | None = None

    @classmethod
    def of(cls, run: Run, *, trained: bool, limit: int | None = None) -> "Request":
        """A run, or (`trained` false) its untrained base. limit: on so many problems of each
        benchmark. Raises UserError for a run without a complete checkpoint."""
        model = run.config.model
        if trained:
            folder = run.folder
            weights = Weights.of_run(folder, model.trust_remote_code)
        else:
            folder = RunFolder.of_base(run.config)
            weights = Weights.of_base(model.path, model.revision, model.trust_remote_code)
        settings = Settings({"weights": weights.name}, limit=limit, **asked_by(run.config))
        return cls(weights, SamplerOptions(run.config.sampler.kind, model.dtype), settings, folder, run)

    def folder(self, benchmark: str) -> Path:
        """The folder of an evaluation."""
        return self.run.evaluation(benchmark, self.settings.limit, self.settings.seed)

    def stored(self, benchmark: Benchmark) -> Result | None:
        return stored(self.run, benchmark, self.settings)

    def check(self, benchmarks: Iterable[Benchmark]) -> None:
        """Raise UserError for a model that does not load, or whose server does not take the prompts of these benchmarks
        and the way in which responses are drawn. Nothing is written for it: a folder would stay empty."""
        if isinstance(self.weights, ServedModel):
            with closing(ServedSampler(self.weights)) as sampler:
                for benchmark in benchmarks:
                    asked = ask(benchmark, benchmark.load_problems()[:1], None, self.settings)
                    sampler.check(asked.prompts[0], asked.params)
        elif not self.run.path.exists():
            self.weights.check()

    def longest(self, benchmarks: Iterable[Benchmark]) -> int:
        """The longest prompt plus response, in tokens; 0 where a server counts them."""
        if isinstance(self.weights, ServedModel):
            return 0
        tokenizer, settings, longest = tokenizer_of(self.weights), self.settings, 0
        rows = self.weights.rows()
        for benchmark in benchmarks:
            problems = benchmark.load_problems()[: settings.limit]
            prompts = settings.encode(benchmark, problems, tokenizer)
            prompts.check_rows(rows, self.weights.path)
            longest = max(longest, max(map(len, prompts.tokens)) + benchmark.max_new_tokens)
        return longest

    def open(self, longest: int) -> Generator:
        """A sampler with room for `longest` tokens of prompt and response."""
        if isinstance(self.weights, ServedModel):
            return served_sampler(self.weights)
        if self.trainer is None:
            return model_sampler(self.weights, replace(self.sampler, max_length=longest), self.run)
        config, train = self.trainer.config, self.trainer.config.train
        room = max(train.max_new_tokens, longest - train.max_prompt_tokens)
        longer = Run(replace(config, train=replace(train, max_new_tokens=room)), self.trainer)
        return trainers_sampler(longer, self.weights, self.run)


def measure(
    request: Request, benchmarks: Sequence[str], report: Report = silent, engine: SharedEngine | None = None
) -> list[Result]:
    """A result for each benchmark: the stored one, or a new one in the request's folder.

    engine: an engine that other requests for models of the same architecture share; without one a sampler is opened for
    the benchmarks without a result, if there are any. Raises UserError where a stored result, or one that was begun, is
    of other weights, of another definition of the benchmark or of other settings, and with exit code BUSY when another
    process measures into the same folder.
    """
    loaded, settings, weights = [load_benchmark(name) for name in benchmarks], request.settings, request.weights
    finished = [benchmark for benchmark in loaded if request.stored(benchmark)]
    for benchmark in finished:
        remove_parts(request.folder(benchmark.name))
    if lacking := [benchmark for benchmark in loaded if benchmark not in finished]:
        request.check(lacking)
        if isinstance(weights, Weights) and request.trainer is None:  # torch says which backend it is
            settings = replace(settings, rows_per_part=request.sampler.backend.part_rows)

    def generator(missing: Sequence[Benchmark]) -> Generator:
        if engine is None or isinstance(weights, ServedModel):
            return request.open(request.longest(missing))
        return engine.holding(
            weights,
            request.sampler.resolved_dtype(),
            lambda: request.open(engine.longest() if engine.longest else request.longest(loaded)),
        )

    with request.run.lock("measure") if lacking else nullcontext():
        return evaluate_missing(request.run, loaded, settings, generator, report)


def shared_engine(requests: Iterable[tuple[Request, Sequence[str]]]) -> SharedEngine:
    """An engine with room for all that these models lack on their benchmarks, apart from those that others serve.
    Raises UserError for models of several architectures, before the first is measured."""
    missing = [
        (request, benchmark)
        for request, names in requests
        for benchmark in map(load_benchmark, names)
        if request.stored(benchmark) is None
    ]
    models = [weights for request, _ in missing if isinstance(weights := request.weights, Weights)]
    models = list(dict.fromkeys(models))
    if len(models) > 1:
        check_alike(models)
    return SharedEngine(lambda: max(request.longest([benchmark]) for request, benchmark in missing))


def evaluate_missing(
    run: RunFolder,
    benchmarks: Sequence[Benchmark],
    settings: Settings,
    generator: Callable[[Sequence[Benchmark]], Generator],
    report: Report = silent,
) -> list[Result]:
    """A result for each benchmark: the stored one, or a new one in `run.evaluation(name)`. `generator` is opened once,
    for the benchmarks without a result, if there are any. Raises UserError where a stored result, or one that was
    begun, is of other weights, of another definition of the benchmark or of other settings."""
    named = {benchmark.name: benchmark for benchmark in benchmarks}
    results = {name: stored(run, benchmark, settings) for name, benchmark in named.items()}
    missing = [named[name] for name, result in results.items() if result is None]
    if missing:
        from tepo.evaluation.evaluate import evaluate
        from tepo.evaluation.writer import EvaluationTask

        with ExitStack() as stack:
            graders = {
                options: stack.enter_context(Grader(options)) for options in {benchmark.grader for benchmark in missing}
            }
            for benchmark in (benchmark for benchmark in missing if benchmark.dataset):
                problems = benchmark.load_problems()[: settings.limit]
                if findings := str(find(problems, graders[benchmark.grader], SECONDS)):
                    say(f"{benchmark.name}: {findings} (`tepo data verify {benchmark.name}`)")
            sampler, tokenizer = stack.enter_context(generator(missing))
            tasks = [
                EvaluationTask(
                    benchmark, graders[benchmark.grader], run.evaluation(benchmark.name, settings.limit, settings.seed)
                )
                for benchmark in missing
            ]
            # One after another where none could fill another's gaps: a kill leaves the first ones finished.
            queues = [[task] for task in tasks] if sampler.side_by_side is None else [tasks]
            for queue in queues:
                for result in evaluate(queue, sampler, tokenizer, settings, report):
                    results[result.benchmark] = result
    return [result for result in results.values() if result is not None]


def stored(run: RunFolder, benchmark: Benchmark, settings: Settings) -> Result | None:
    """The stored result, if there is one. Raises UserError when it is of other weights or settings, of another
    definition of the benchmark, or not what its samples give."""
    folder = run.evaluation(benchmark.name, settings.limit, settings.seed)
    result = load_result(folder)
    if result is None:
        return None
    check_current(folder, result, benchmark, settings.compared())
    return read_result(folder, benchmark)


def stored_base(run: Run, benchmarks: Iterable[str]) -> dict[str, Result]:
    """Stored results of the untrained base of a run, as far as it would be measured alike today."""
    request, base_results = Request.of(run, trained=False), {}
    for name in benchmarks:
        with suppress(UserError):  # of another definition: as good as none
            if result := request.stored(load_benchmark(name)):
                base_results[name] = result
    return base_results


def measure_in_memory(
    policy: "Policy", benchmarks: Sequence[Benchmark], settings: Settings = Settings(), report: Report = silent
) -> list[Result]:
    """Measure a model that belongs to no run yet. Nothing is kept."""
    from tepo.sampling.embedded.torch_sampler import TorchSampler

    sampler = TorchSampler(policy.model, policy.tokenizer)
    with TemporaryDirectory() as folder:
        opened = nullcontext((sampler, policy.tokenizer))
        return evaluate_missing(RunFolder(Path(folder)), benchmarks, settings, lambda missing: opened, report)
