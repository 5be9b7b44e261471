"""The work of `tepo eval`: what to evaluate, with what, and the table at the end. Imported when the command runs.

torch and transformers are imported only when something is left to evaluate: finished results show in a moment.
"""

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table

from tepo.config.compose import compose
from tepo.errors import UserError
from tepo.evaluation.comparison import AVERAGE, MEAN, summarize
from tepo.evaluation.intervals import FEWEST
from tepo.evaluation.result import Result, load_result
from tepo.evaluation.rows import SAMPLES, read_table
from tepo.policy.fingerprint import base_fingerprint
from tepo.problems.benchmarks import Benchmark, load_benchmark
from tepo.problems.grader import Grader
from tepo.problems.prompt_format import encode_prompts, render_prompt
from tepo.sampling.open_sampler import SamplerOptions, open_sampler
from tepo.training.run_folder import RunFolder, base_folder_of, final_model
from tepo.words import counted
from tepo_cli.screen import bar, say, show, whole

PAPER = ("aime24", "aime25", "amc", "math500", "omni_math", "olympiadbench", "minerva")
_RUN_ID = re.compile(r"(base-)?[0-9a-f]{12}")


@dataclass(frozen=True)
class Target:
    """The weights to evaluate, and the settings that came with them.

    `all`: what the word `all` means for this model.
    """

    path: str
    identity: dict[str, Any]
    folder: Path
    all: tuple[str, ...]
    wrap: str = "auto"
    thinking: bool | None = None
    revision: str | None = None
    trust_remote_code: bool = False

    def expand(self, names: Sequence[str]) -> list[str]:
        """The benchmarks named, `all` replaced, each once."""
        return list(dict.fromkeys(part for name in names for part in (self.all if name == "all" else (name,))))


@dataclass(frozen=True)
class Request:
    """One call of `tepo eval`."""

    target: Target
    backend: SamplerOptions
    limit: int | None
    seed: int
    wrap: str
    thinking: bool | None
    out: Path

    def folder(self, name: str) -> Path:
        """Where an evaluation lies; a limited one, or one with another seed, beside the whole."""
        marks = ([f"first{self.limit}"] if self.limit else []) + ([f"seed{self.seed}"] if self.seed else [])
        return self.out / "eval" / "@".join([name, *marks])


def find_target(model: str, store: Path, revision: str | None) -> Target:
    """A run by folder or id, else a model. Raises UserError for a run without a complete checkpoint."""
    if not model:
        raise UserError(
            "the model has no name",
            where="--model",
            fix="a run (`tepo list`), a model folder, a hub id, or package:laptop",
        )
    for folder in (Path(model), store / model):
        if (folder / "checkpoints").is_dir() or (folder / "manifest.json").is_file():
            config = RunFolder(folder).config()["full"]
            weights = final_model(folder)
            own = config["model"]
            identity = {"weights": f"{folder.name}/{weights.name}"}
            return Target(
                str(weights),
                identity,
                folder,
                tuple(config["data"]["benchmarks"]),
                own["wrap"],
                own["thinking"],
                None,
                own["trust_remote_code"],
            )
    _check_no_run(model, store)
    identity = {"weights": base_fingerprint(model, revision)}
    base = model.removeprefix("package:")
    everything = tuple(compose([f"data={base}"]).data.benchmarks) if base != model else PAPER
    return Target(model, identity, base_folder_of(store, model, revision), everything, revision=revision)


def _check_no_run(model: str, store: Path) -> None:
    """Raises UserError for what can only be a run or a folder, and is not there: the network is not asked about it."""
    place = Path(model)
    if model.startswith("package:") or place.exists():
        return
    runs = sorted(
        entry.name
        for entry in (place.parent if "/" in model else store).glob("*/")
        if (entry / "config.json").is_file()
    )
    near = difflib.get_close_matches(place.name, runs, n=1, cutoff=0.5)
    inside = "/" in model and (place.parent == store or place.parent.is_dir())
    if inside or ("/" not in model and (near or _RUN_ID.fullmatch(model))):
        listed = "`tepo list` shows the runs; a shipped base is package:laptop"
        raise UserError(
            f"no model and no run {model!r}",
            where=f"--store {store}",
            fix=(f"did you mean {near[0]!r}? " if near else "") + listed,
        )


def _tokenizer(target: Target) -> Any:
    """The tokenizer of a target. Raises UserError, also for a word that is no run, no folder and no hub id."""
    from tepo.policy.load_policy import load_tokenizer

    try:
        return load_tokenizer(target.path, target.revision, target.trust_remote_code)
    except UserError as error:
        if "/" in target.path or target.path.startswith("package:") or Path(target.path).exists():
            raise
        what = f"{target.path!r} is no run and no folder, and as a hub id it cannot be loaded: {error.what}"
        raise UserError(
            what,
            where=f"--model {target.path}",
            fix="`tepo list` shows the runs; check the spelling, the network or HF_HOME",
        ) from None


def show_plan(names: Sequence[str], request: Request) -> None:
    """What would be evaluated, and the first prompt of each benchmark as the model sees it."""
    tokenizer = _tokenizer(request.target)
    for name in names:
        benchmark = load_benchmark(name)
        problems = benchmark.load_problems()[: request.limit]
        done = "done" if _finished(name, request) else "to do"
        print(
            f"{name}: {counted(len(problems), 'problem')} x {counted(benchmark.samples, 'sample')} "
            f"at temperature {benchmark.temperature:g}, at most {counted(benchmark.max_new_tokens, 'token')}; "
            f"backend {request.backend.resolved_kind()}; {done}; {request.folder(name)}"
        )
        shown = render_prompt(
            problems[0].prompt, tokenizer, prompt=benchmark.prompt, wrap=request.wrap, thinking=request.thinking
        )
        print(f"--- first prompt ({problems[0].id})\n{shown}\n---")


def run_evaluations(names: Sequence[str], request: Request, *, quiet: bool) -> None:
    """Evaluate what is not there yet, then print the scores."""
    planned = {name: load_benchmark(name) for name in names}
    results = {name: _finished(name, request) for name in names}
    missing = [name for name in names if results[name] is None]
    if missing:
        tokenizer = _tokenizer(request.target)
        backend = replace(request.backend, max_length=_longest([planned[name] for name in missing], tokenizer, request))
        with open_sampler(request.target.path, backend, request.out / "eval" / ".servers") as sampler:
            for name in missing:
                with bar(name, 1, quiet) as advance:
                    results[name] = _evaluate(
                        planned[name],
                        sampler,
                        tokenizer,
                        request,
                        lambda done, total, advance=advance: advance(done / total, f"{done}/{total} samples"),
                    )
    found = {name: result for name, result in results.items() if result}
    _print_scores(found, request)


def _finished(name: str, request: Request) -> Result | None:
    """The result that is there, if it is of these weights and settings (if not, `evaluate` says what differs)."""
    result, benchmark = load_result(request.folder(name)), load_benchmark(name)
    asked: dict[str, Any] = {
        "fingerprint": benchmark.fingerprint,
        "grading": benchmark.grading,
        "policy": request.target.identity,
    }
    asked |= {"wrap": request.wrap, "thinking": request.thinking}
    return result if result and all(result.task.get(key) == value for key, value in asked.items()) else None


def _evaluate(benchmark: Benchmark, sampler: Any, tokenizer: Any, request: Request, progress: Any) -> Result:
    from tepo.evaluation.evaluate import evaluate

    with Grader(benchmark.grader) as grader:
        if benchmark.dataset:
            problems = benchmark.load_problems()[: request.limit]
            unread = grader.check_golds([problem.answer for problem in problems])
            if unread:
                named = ", ".join(f"{problems[index].id} ({why})" for index, why in unread)
                say(f"golds that the grader cannot read, so that only the same text matches them: {named}")
        return evaluate(
            benchmark,
            sampler,
            tokenizer,
            grader,
            request.folder(benchmark.name),
            seed=request.seed,
            limit=request.limit,
            policy=request.target.identity,
            wrap=request.wrap,
            thinking=request.thinking,
            rows_per_part=request.backend.backend.part_rows,
            progress=progress,
        )


def _longest(benchmarks: Sequence[Benchmark], tokenizer: Any, request: Request) -> int:
    """Longest prompt plus response over some benchmarks, in tokens."""
    longest = 0
    for benchmark in benchmarks:
        statements = [problem.prompt for problem in benchmark.load_problems()[: request.limit]]
        prompts = encode_prompts(
            statements, tokenizer, prompt=benchmark.prompt, wrap=request.wrap, thinking=request.thinking
        )
        longest = max(longest, max(map(len, prompts)) + benchmark.max_new_tokens)
    return longest


def _print_scores(results: dict[str, Result], request: Request) -> None:
    """One line a benchmark, then the two averages."""
    table = Table(*map(whole, ("benchmark", "problems", "accuracy %", "pass@k", "maj@k", "cut off")))
    for name, result in results.items():
        k = result.samples
        passed, voted = (f"{100 * result.scores[f'{kind}@{k}']:.1f} @{k}" if k > 1 else "–" for kind in ("pass", "maj"))
        table.add_row(
            name,
            str(result.problems),
            _interval(result.accuracy, *(result.interval or (math.nan, math.nan))),
            passed,
            voted,
            f"{100 * result.scores['truncated']:.1f}%",
        )
        for subset, scores in result.subsets.items():
            table.add_row(
                f"{name}:{subset}", "", f"{100 * scores[f'avg@{k}']:.2f}", "", "", f"{100 * scores['truncated']:.1f}%"
            )
    if len(results) > 1:
        frames = [
            read_table(request.folder(name) / SAMPLES)
            .select(["problem", "sample", "correct"])
            .to_pandas()
            .assign(benchmark=name)
            for name in results
        ]
        scores = summarize(pd.concat(frames).assign(row="model", seed=request.seed)).set_index("benchmark")
        for key, label in ((AVERAGE, "all samples"), (MEAN, "mean of benchmarks")):
            line = scores.loc[key]
            table.add_row(label, "", _interval(line["mean"], line["low"], line["high"]), "", "", "")
    say(f"model: {request.target.path}")
    show(table)
    for name, result in results.items():
        if result.timeouts:
            total = result.problems * result.samples
            say(
                f"{name}: {result.timeouts} of {total} answers ran out of the grader's budget and count as wrong "
                "(docs/grader.md)"
            )
    if any(result.interval is None for result in results.values()):
        say(f"–: no interval from fewer than {FEWEST} problems")


def _interval(mean: float, low: float, high: float) -> str:
    return f"{100 * mean:.2f}" + (" ± –" if math.isnan(low) else f" ± {50 * (high - low):.2f}")
