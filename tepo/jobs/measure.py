"""Measuring a policy on benchmarks: a run, an untrained base, a model by path, or one in memory.

`measure` evaluates what a folder does not hold yet, with a sampler of its own or with a shared engine; `measure_run`
does it for a run as it was asked for, and records what that cost. Stored results come without torch.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tepo.common.errors import UserError
from tepo.config.run_config import RunConfig
from tepo.evaluation.results import read_result
from tepo.evaluation.settings import Report, Settings, silent
from tepo.jobs.open_sampler import model_sampler, trainers_sampler
from tepo.jobs.shared_engine import Generator, SharedEngine, check_alike
from tepo.jobs.validate import final_validation, validate_run, validation_share
from tepo.jobs.weights import Weights, tokenizer_of
from tepo.problems.benchmarks import Benchmark, load_benchmark
from tepo.problems.findings import SECONDS, find
from tepo.problems.grader import Grader
from tepo.problems.prompt_format import encode_prompts
from tepo.reporting.progress import benchmark_bar, say
from tepo.sampling.backends import SamplerOptions
from tepo.store.cost import Cost, work_of
from tepo.store.evaluation_result import Result, check_current, load_result, remove_parts
from tepo.store.run_folder import RunFolder

if TYPE_CHECKING:
    from tepo.jobs.child_process import CpuSeconds
    from tepo.policy.model.load_policy import Policy


@dataclass(frozen=True)
class Request:
    """A policy to measure, and the run or folder of its results. config: of a run or a base, which is measured with the
    sampler that the configuration trains with; without one `sampler` says how to generate."""

    weights: Weights
    sampler: SamplerOptions
    settings: Settings
    run: RunFolder
    config: RunConfig | None = None

    @classmethod
    def of(cls, config: RunConfig, *, trained: bool, limit: int | None = None) -> "Request":
        """The run of a configuration, or (`trained` false) its untrained base. limit: on so many problems of each
        benchmark. Raises UserError for a run without a complete checkpoint."""
        model = config.model
        if trained:
            run = RunFolder.of(config)
            weights = Weights.of_run(run, model.trust_remote_code)
        else:
            run = RunFolder.of_base(config)
            weights = Weights.of_base(model.path, model.revision, model.trust_remote_code)
        settings = Settings({"weights": weights.name}, limit=limit, wrap=model.wrap, thinking=model.thinking)
        return cls(weights, SamplerOptions(config.sampler.kind, model.dtype), settings, run, config)

    def folder(self, benchmark: str) -> Path:
        """The folder of an evaluation."""
        return self.run.evaluation(benchmark, self.settings.limit, self.settings.seed)

    def stored(self, benchmark: Benchmark) -> Result | None:
        """See `stored`."""
        return stored(self.run, benchmark, self.settings)

    def longest(self, benchmarks: Iterable[Benchmark]) -> int:
        """The longest prompt plus response, in tokens."""
        tokenizer, settings, longest = tokenizer_of(self.weights), self.settings, 0
        rows = self.weights.rows()
        for benchmark in benchmarks:
            problems = benchmark.load_problems()[: settings.limit]
            asked = encode_prompts(
                problems, tokenizer, prompt=benchmark.prompt, wrap=settings.wrap, thinking=settings.thinking
            )
            asked.check_rows(rows, self.weights.path)
            longest = max(longest, max(map(len, asked.tokens)) + benchmark.max_new_tokens)
        return longest

    def open(self, longest: int) -> Generator:
        """A sampler with room for `longest` tokens of prompt and response."""
        if self.config is None:
            return model_sampler(self.weights, replace(self.sampler, max_length=longest), self.run)
        train = self.config.train
        room = max(train.max_new_tokens, longest - train.max_prompt_tokens)
        return trainers_sampler(replace(self.config, train=replace(train, max_new_tokens=room)), self.weights, self.run)


def measure(
    request: Request, benchmarks: Sequence[str], report: Report = silent, engine: SharedEngine | None = None
) -> list[Result]:
    """A result for each benchmark: the stored one, or a new one in the request's folder.

    engine: an engine that other requests for models of the same architecture share; without one a sampler is opened for
    the benchmarks without a result, if there are any. Raises UserError where a stored result, or one that was begun, is
    of other weights, of another definition of the benchmark or of other settings, and with exit code BUSY when another
    process measures into the same folder.
    """
    if not request.run.path.exists():
        request.weights.check()  # a model that does not load gets no folder, which would stay empty
    loaded, settings = [load_benchmark(name) for name in benchmarks], request.settings
    finished = [benchmark for benchmark in loaded if request.stored(benchmark)]
    for benchmark in finished:
        remove_parts(request.folder(benchmark.name))
    there = len(finished) == len(loaded)
    if not there and request.config is None:  # torch says which backend it is
        settings = replace(settings, rows_per_part=request.sampler.backend.part_rows)

    def generator(missing: Sequence[Benchmark]) -> Generator:
        if engine is None:
            return request.open(request.longest(missing))
        return engine.holding(
            request.weights,
            request.sampler.resolved_dtype(),
            lambda: request.open(engine.longest() if engine.longest else request.longest(loaded)),
        )

    with nullcontext() if there else request.run.lock("measure"):
        return evaluate_missing(request.run, loaded, settings, generator, report)


def shared_engine(requests: Iterable[tuple[Request, Sequence[str]]]) -> SharedEngine:
    """An engine with room for all that these models lack on their benchmarks. Raises UserError for models of several
    architectures, before the first is measured."""
    missing = [
        (request, benchmark)
        for request, names in requests
        for benchmark in map(load_benchmark, names)
        if request.stored(benchmark) is None
    ]
    models = list(dict.fromkeys(request.weights for request, _ in missing))
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
    results = {benchmark.name: stored(run, benchmark, settings) for benchmark in benchmarks}
    missing = [one for one in {one.name: one for one in benchmarks}.values() if results[one.name] is None]
    if missing:
        from tepo.evaluation.evaluate import evaluate
        from tepo.evaluation.writer import Task

        with ExitStack() as stack:
            graders = {options: stack.enter_context(Grader(options)) for options in {one.grader for one in missing}}
            for one in missing:
                if one.dataset and (
                    found := str(find(one.load_problems()[: settings.limit], graders[one.grader], SECONDS))
                ):
                    say(f"{one.name}: {found} (`tepo data verify {one.name}`)")
            sampler, tokenizer = stack.enter_context(generator(missing))
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
    """The stored result, if there is one. Raises UserError when it is of other weights or settings, of another
    definition of the benchmark, or not what its samples give."""
    folder = run.evaluation(benchmark.name, settings.limit, settings.seed)
    result = load_result(folder)
    if result is None:
        return None
    check_current(folder, result, benchmark, settings.compared())
    return read_result(folder, benchmark)


def stored_base(config: RunConfig, benchmarks: Iterable[str]) -> dict[str, Result]:
    """Stored results of the untrained base of a configuration, as far as it would be measured alike today."""
    request, found = Request.of(config, trained=False), {}
    for name in benchmarks:
        with suppress(UserError):  # of another definition: as good as none
            if result := request.stored(load_benchmark(name)):
                found[name] = result
    return found


def measure_in_memory(
    policy: "Policy", benchmarks: Sequence[Benchmark], settings: Settings = Settings(), report: Report = silent
) -> list[Result]:
    """Measure a model that belongs to no run yet. Nothing is kept."""
    from tepo.sampling.embedded.torch_sampler import TorchSampler

    sampler = TorchSampler(policy.model, policy.tokenizer)
    with TemporaryDirectory() as folder:
        opened = nullcontext((sampler, policy.tokenizer))
        return evaluate_missing(RunFolder(Path(folder)), benchmarks, settings, lambda missing: opened, report)


def check_measurable(config: RunConfig) -> None:
    """Raise UserError for data that name no benchmarks: there would be nothing to measure, and no table."""
    if not config.data.benchmarks:
        how = "data.benchmarks=[NAME,…] (behind --set, for a study)"
        fix = f"{how}; docs/benchmarks.md says how to write one of your own"
        raise UserError(f"nothing to measure on: data={config.data.name} names no benchmarks", fix=fix)


@dataclass(frozen=True)
class Measured:
    """Results on benchmarks, and the share of right responses to validation problems where it was asked for."""

    results: Sequence[Result]
    validation: float | None


@dataclass(frozen=True)
class After:
    """Work on a trained run: measure it on the benchmarks of its data, and on validation problems.

    cpu_before: CPU seconds of this process that are not the run's. engine: an engine that measures it, and
    others before and after it."""

    evaluate: bool = False
    validate: bool = False
    cpu_before: float = 0.0
    engine: SharedEngine | None = None

    def check(self, config: RunConfig) -> None:
        """Raises UserError for what cannot be done: now, and not after an hour of training."""
        from tepo.training.preflight import check_benchmarks, check_validation_problems  # imports torch

        if self.evaluate:
            check_measurable(config)
            stored = RunFolder.of(config).measured()
            check_benchmarks([name for name in config.data.benchmarks if name not in stored])
        if self.validate:
            check_validation_problems(config)


def to_measure(config: RunConfig, after: After) -> bool:
    """Tell whether something is asked of a trained run that it does not have yet."""
    return any(_missing(RunFolder.of(config), config, after))


def _missing(run: RunFolder, config: RunConfig, after: After) -> tuple[bool, float]:
    """Tell whether benchmarks are missing, and the share of a benchmark that missing validations count as."""
    validations = validation_share(config) if after.validate and final_validation(run, config) is None else 0.0
    return after.evaluate and not set(config.data.benchmarks) <= set(run.measured()), validations


def measure_run(
    config: RunConfig,
    trained: Sequence[dict[str, Any]] | None,
    after: After,
    *,
    quiet: bool,
    fresh: "CpuSeconds | None" = None,
) -> Measured:
    """Measure a run (trained: the metrics of the steps this process added) or a base (None) as asked, add what the
    process cost to the run's record, and write the card of its model.

    fresh: nothing of the training is left in this process, nor of its launcher; what it had spent until then."""
    from tepo.jobs.child_process import CpuSeconds, in_own_process, measures_apart  # imports torch

    run = RunFolder.of_base(config) if trained is None else RunFolder.of(config)
    started, before, apart_s = fresh or CpuSeconds.now(), len(run.measured()), 0.0
    missing, validations = _missing(run, config, after)
    if (missing or validations) and not fresh and measures_apart(config, trained_here=bool(trained)):
        apart_s, quiet = in_own_process(_measure, config, trained is not None, after, quiet), True
    measured = _measure(config, trained is not None, after, quiet)
    if fresh:
        apart_s = CpuSeconds.now().children - started.children
    rows, new = trained or [], len(run.measured()) - before + validations
    if rows or new:
        cost = Cost(
            data=config.data.name,
            objective=str(config.objective["name"]) if trained is not None else "",
            steps=len(rows),
            benchmarks=new,
            cpu_s=time.process_time() - after.cpu_before + apart_s,
            training_s=sum(row["perf/cpu_s"] for row in rows),
            measuring_s=time.process_time() - started.own + apart_s,
            tokens=int(sum(row["perf/sampled_tokens"] for row in rows)),
            core_s=sum(row["perf/cpu_core_s"] for row in rows),
            work=work_of(config),
        )
        run.add_cost(cost)
    if trained is not None:
        from tepo.jobs.model_card import write_card  # needs torch

        write_card(run, tuple(config.objective.get("functions", {}).values()))
    return measured


def _measure(config: RunConfig, trained: bool, after: After, quiet: bool) -> Measured:
    """Measure as asked; stored results are read."""
    results: Sequence[Result] = []
    if after.evaluate:
        with benchmark_bar(len(config.data.benchmarks), quiet) as report:
            results = measure(Request.of(config, trained=trained), config.data.benchmarks, report, after.engine)
    return Measured(results, validate_run(config) if after.validate else None)
