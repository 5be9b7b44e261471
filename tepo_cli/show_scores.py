"""Work of `tepo eval`: models that its words name, and their scores. Imported when it runs."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tepo.common import trust
from tepo.common.errors import UserError, nearest
from tepo.common.text import counted
from tepo.config.compose import compose
from tepo.config.own_files import SERVED
from tepo.evaluation.responses import ask
from tepo.evaluation.settings import Settings
from tepo.evaluation.statistics.intervals import FEWEST
from tepo.evaluation.statistics.samples import AVERAGE, MEAN, summarize
from tepo.jobs.measure import Request, measure, shared_engine
from tepo.jobs.weights import Weights, tokenizer_of
from tepo.problems.benchmarks import PAPER, load_benchmark
from tepo.problems.prompts.control_tokens import marked
from tepo.reporting.progress import benchmark_bar, say
from tepo.sampling.backends import SamplerOptions
from tepo.sampling.served import ServedModel
from tepo.store.evaluation_result import Result, read_right_answers
from tepo.store.facts import scores_of
from tepo.store.find_run import find_run, runs
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import base_id
from tepo_cli.cli_options import How
from tepo_cli.screen import show

_RUN_ID = re.compile(r"((base|served)-)?[0-9a-f]{12}")
_BEGINNING = re.compile(r"[0-9a-f]{1,11}")


@dataclass(frozen=True)
class Target:
    """A model to evaluate, and what came with it."""

    weights: Weights | ServedModel
    run: RunFolder  # of the results
    all: tuple[str, ...]  # what the word `all` means for it
    wrap: str = "auto"
    thinking: bool | None = None
    system: str = ""


def evaluate_models(models: Sequence[str], benchmarks: Sequence[str], how: How, store: Path, *, quiet: bool) -> None:
    """Measure models with one loaded engine and show their scores; with how.dry_run, show what would be measured."""
    chosen, requests = SamplerOptions(how.backend, how.dtype, how.tensor_parallel, how.data_parallel), []
    check_options(models, how)
    for target in [find_target(model, store, how.revision, how.api_key_env) for model in models]:
        thinks = target.thinking if how.thinking is None else how.thinking
        policy: dict[str, Any] = {"weights": target.weights.name}
        if isinstance(target.weights, ServedModel):
            policy["verified"] = False
        wrap, system = how.wrap or target.wrap, target.system if how.system is None else how.system.strip()
        settings = Settings(policy, how.seed, how.limit, wrap, thinks, system)
        request = Request(target.weights, chosen, settings, RunFolder(how.out.resolve()) if how.out else target.run)
        benchmark_names = (part for name in benchmarks for part in (target.all if name == "all" else (name,)))
        requests.append((request, list(dict.fromkeys(benchmark_names))))
    if how.dry_run:
        for request, names in requests:
            show_evaluations(names, request)
        return
    with shared_engine(requests) as engine:
        for request, names in requests:
            before = request.run.measured()
            with benchmark_bar(len(names), quiet) as report:
                results = measure(request, names, report, engine)
            # a base and a model from elsewhere have no card to renew
            if request.run.measured() != before and request.run.config_file.is_file():
                from tepo.jobs.model_card import write_card  # needs torch

                write_card(request.run)
            show_scores(results, request)


_OF_WEIGHTS = ("--backend", "--tensor-parallel", "--data-parallel", "--dtype", "--revision")


def check_options(models: Sequence[str], how: How) -> None:
    """Raises UserError for options that say nothing about one of the models."""
    for model in models:
        idle = _OF_WEIGHTS if model.startswith(SERVED) else ("--api-key-env",)
        if pointless := [option for option in how.given if option in idle]:
            what = "its server decides that" if model.startswith(SERVED) else "no server is asked for that model"
            raise UserError(f"{' and '.join(pointless)}: {what}", where=f"--model {model}", fix="leave it out")


def find_target(model: str, store: Path, revision: str | None, key_variable: str | None = None) -> Target:
    """A run by folder or id, a model that others serve, else a model here. key_variable: the environment variable with
    the key of its server. Raises UserError for a run without a complete checkpoint."""
    if not model:
        fix = "a run (`tepo list`), a model folder, a hub id, or package:laptop"
        raise UserError("the model has no name", where="--model", fix=fix)
    if model.startswith(SERVED):
        served = ServedModel.of(model, key_variable)
        return Target(served, RunFolder.of_served(store, served.name), PAPER)
    begun = _BEGINNING.fullmatch(model) and not (Path(model).exists() or (store / model).exists())
    named = find_run(model, store) if begun else None
    for run in filter(None, (RunFolder(Path(model)), RunFolder(store / model), named)):
        if run.started():
            config = run.config()["full"]
            run.check_config()
            benchmarks, trained = tuple(config["data"]["benchmarks"]), config["model"]
            asked = trained["wrap"], trained["thinking"], run.system()
            return Target(Weights.of_stored(run), run, benchmarks, *asked)
    _check_no_run(model, store)
    weights, base = Weights.of_base(model, revision, trust.given()), model.removeprefix("package:")
    everything = tuple(compose([f"data={base}"]).data.benchmarks) if base != model else PAPER
    return Target(weights, RunFolder(store / base_id(model, revision)), everything)


def _check_no_run(model: str, store: Path) -> None:
    """Raises UserError for what can only be a run or a folder, and is not there: the network is not asked about it."""
    path = Path(model)
    if model.startswith("package:") or path.exists():
        return
    ids = [run.path.name for run in runs(path.parent if "/" in model else store) if run.config_file.is_file()]
    near = nearest(path.name, ids)
    inside = "/" in model and (path.parent == store or path.parent.is_dir())
    if inside or ("/" not in model and (near or _RUN_ID.fullmatch(model))):
        fix = f"did you mean {near[0]!r}? " if near else ""
        fix += "`tepo list` shows the runs; a shipped base is package:laptop"
        raise UserError(f"no model and no run {model!r}", where=f"--store {store}", fix=fix)


def show_evaluations(names: Sequence[str], request: Request) -> None:
    """Print what would be evaluated, and the first prompt of each benchmark as the model sees it, control tokens in
    « »."""
    settings, weights = request.settings, request.weights
    tokenizer = tokenizer_of(weights) if isinstance(weights, Weights) else None
    for name in names:
        benchmark = load_benchmark(name)
        problems = benchmark.load_problems()[: settings.limit]
        size = f"{counted(len(problems), 'problem')} x {counted(benchmark.samples, 'sample')}"
        state = "done" if request.stored(benchmark) else "to do"
        drawn = f"{size} at {benchmark.draws}"
        if isinstance(weights, ServedModel):
            prompt = ask(benchmark, problems, None, settings).prompts[0]
            by, shown = f"{weights.url}{prompt.path}", prompt.text
        else:
            prompts = settings.encode(benchmark, problems, tokenizer)
            by = f"backend {request.sampler.resolved_kind()}"
            shown = marked(prompts.tokens[0], tokenizer, prompts.controls)
        print(f"{name}: {drawn}; {by}; {state}; {request.folder(name)}")
        print(f"--- first prompt ({problems[0].id})\n{shown}\n---")


def show_scores(results: Sequence[Result], request: Request) -> None:
    """One line a benchmark, then the two averages."""
    rows = []
    for result in results:
        name, k = result.benchmark, result.samples
        passed, voted = (f"{100 * result.scores[f'{kind}@{k}']:.1f} @{k}" if k > 1 else "–" for kind in ("pass", "maj"))
        accuracy = _interval(result.accuracy, *(result.interval or (math.nan, math.nan)))
        cut = f"{100 * result.scores['truncated']:.1f}%"
        rows.append((name, str(result.problems), accuracy, passed, voted, cut))
        for subset, scores in result.subsets.items():
            cut = f"{100 * scores['truncated']:.1f}%"
            rows.append((f"{name}:{subset}", "", f"{100 * scores[f'avg@{k}']:.2f}", "", "", cut))
    if len(results) > 1:
        measured = {result.benchmark: read_right_answers(request.folder(result.benchmark)) for result in results}
        frames = [scores_of("", name, answers, "", "", 0) for name, answers in measured.items() if answers is not None]
        scores = summarize(pd.concat(frames).assign(row="model", seed=request.settings.seed)).set_index("benchmark")
        for key, label in ((AVERAGE, "all samples"), (MEAN, "mean of benchmarks")):
            line = scores.loc[key]
            rows.append((label, "", _interval(line["mean"], line["low"], line["high"]), "", "", ""))
    say(f"model: {request.weights.path}")
    if isinstance(request.weights, ServedModel):
        say("measured by its address and its name there; which weights are behind them was not verified")
    show(("benchmark", "problems", "accuracy %", "pass@k", "maj@k", "cut off"), rows)
    for note in filter(None, (load_benchmark(result.benchmark).protocol_note for result in results)):
        say(note)
    for result in results:
        if result.timeouts:
            answers = f"{result.timeouts} of {result.problems * result.samples} answers"
            say(f"{result.benchmark}: {answers} ran out of the grader's budget and count as wrong")
    if any(result.interval is None for result in results):
        say(f"–: no interval from fewer than {FEWEST} problems")


def _interval(mean: float, low: float, high: float) -> str:
    return f"{100 * mean:.2f}" + (" ± –" if math.isnan(low) else f" ± {50 * (high - low):.2f}")
