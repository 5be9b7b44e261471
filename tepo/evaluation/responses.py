"""Responses to the problems of a benchmark, each with its verdict.

No library of tables is imported here: a training run validates by it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tepo.common.randomness import derive
from tepo.evaluation.settings import Settings
from tepo.problems.benchmarks import Benchmark
from tepo.problems.grader import Grader, Verdict
from tepo.problems.problem import Problem
from tepo.problems.prompt_format import text_prompts
from tepo.sampling.sampler import Sampler, SamplingParams, response_texts
from tepo.sampling.served import TextPrompt


@dataclass(frozen=True)
class Tools:
    """Tools of an evaluation: the policy's sampler and tokenizer, and a grader."""

    sampler: Sampler
    tokenizer: Any
    grader: Grader


def grade_responses(
    benchmark: Benchmark, grader: Grader, problems: Sequence[str], pairs: Sequence[tuple[str, str]]
) -> list[Verdict]:
    """A verdict for each (gold, response), with the tolerance of its problem where the benchmark gives it one."""
    verdicts = grader.grade(pairs)
    for problem, slack in benchmark.tolerances.items():
        indices = [index for index, owner in enumerate(problems) if owner == problem]
        if indices:
            with Grader(replace(grader.options, absolute_tolerance=slack)) as lenient:
                for index, verdict in zip(indices, lenient.grade([pairs[index] for index in indices]), strict=True):
                    verdicts[index] = verdict
    return verdicts


def grade_again(benchmark: Benchmark, grader: Grader, rows: Sequence[dict[str, Any]]) -> None:
    """Replace the verdicts of stored rows by those of this grader."""
    pairs = [(row["gold"], row["response"]) for row in rows]
    verdicts = grade_responses(benchmark, grader, [row["problem"] for row in rows], pairs)
    for row, verdict in zip(rows, verdicts, strict=True):
        row |= {"extracted": verdict.extracted, "correct": verdict.correct, "reason": verdict.reason}
        row["grader"] = grader.fingerprint


@dataclass(frozen=True)
class Prompts:
    """Problems of a benchmark as a policy is asked them: tokens (a served one: text) and key of each, and how responses
    are drawn."""

    benchmark: Benchmark
    problems: Sequence[Problem]
    prompts: Sequence[Any]
    keys: Sequence[int]
    params: SamplingParams


def ask(benchmark: Benchmark, problems: Sequence[Problem], tokenizer: Any, settings: Settings) -> Prompts:
    """Problems of a benchmark, `benchmark.samples` responses to each. tokenizer: None for a served policy."""
    prompts: Sequence[Any]
    stop: tuple[int, ...] = ()
    if tokenizer is None:
        form, told = settings.form(benchmark), settings.with_system(benchmark, problems)
        texts, turns = text_prompts(told, **form)
        prompts = [
            TextPrompt(text, turns, form["thinking"], problem.system) for text, problem in zip(texts, told, strict=True)
        ]
    else:
        encoded = settings.encode(benchmark, problems, tokenizer)
        prompts, stop = encoded.tokens, encoded.stop
    stem = benchmark.name.partition(":")[0]
    keys = [derive(settings.seed, "evaluation", stem, problem.id) for problem in problems]
    params = SamplingParams(
        n=benchmark.samples,
        temperature=benchmark.temperature,
        max_new_tokens=benchmark.max_new_tokens,
        stop=stop,
        min_p=benchmark.min_p,
        top_k=benchmark.top_k,
        top_p=benchmark.top_p,
    )
    return Prompts(benchmark, problems, prompts, keys, params)


def sample_rows(
    benchmark: Benchmark, problems: Sequence[Problem], tools: Tools, settings: Settings
) -> list[dict[str, Any]]:
    """Rows of a few problems, `benchmark.samples` for each, in their order: sampled, decoded, graded."""
    prompts = ask(benchmark, problems, tools.tokenizer, settings)
    groups = tools.sampler.sample(prompts.prompts, prompts.keys, prompts.params)
    return graded_rows(prompts, dict(enumerate(groups)), tools.tokenizer, tools.grader)


def graded_rows(
    asked: Prompts, groups: Mapping[int, Sequence[Any]], tokenizer: Any, grader: Grader
) -> list[dict[str, Any]]:
    """A row for each response, decoded and graded. groups: the responses of problems, by their indices; of a served
    policy, for which there is no tokenizer, as `TextResponse`."""
    benchmark, responses = asked.benchmark, [response for group in groups.values() for response in group]
    prompts = [asked.prompts[index] for index in groups]
    if tokenizer is None:
        texts, prompt_texts = [response.text for response in responses], [prompt.text for prompt in prompts]
    else:
        texts, prompt_texts = response_texts(responses, tokenizer), tokenizer.batch_decode(prompts)
    owners = [index for index, group in groups.items() for _ in group]
    verdicts = grade_responses(
        benchmark,
        grader,
        [asked.problems[owner].id for owner in owners],
        [(asked.problems[owner].answer, text) for owner, text in zip(owners, texts, strict=True)],
    )
    prompt_of, rows = dict(zip(groups, prompt_texts, strict=True)), []
    for index, (owner, response, text, verdict) in enumerate(zip(owners, responses, texts, verdicts, strict=True)):
        problem = asked.problems[owner]
        row = {
            "problem": problem.id,
            "sample": index % benchmark.samples,
            "family": problem.family,
            "prompt": prompt_of[owner],
            "gold": problem.answer,
            "response": text,
            "extracted": verdict.extracted,
            "correct": verdict.correct,
            "reason": verdict.reason,
            "grader": grader.fingerprint,
            "tokens": response.length,
            "finish": "stop" if response.finished else "length",
            "logprob": response.logprob,
        }
        rows.append(row)
    return rows
