"""Our benchmarks and our grader in lm-evaluation-harness.

`python -m tepo.integrations.lm_eval FOLDER` writes task files,
one a benchmark, that `lm_eval --include_path FOLDER` reads. docs/coming-from.md shows the commands.

The harness asks, samples and averages; what is asked, how it is sampled and every verdict are as in `tepo eval`.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tepo.common import interpreter
from tepo.common.errors import UserError
from tepo.common.files import write_atomic
from tepo.common.text import spelt
from tepo.evaluation.responses import grade_responses
from tepo.evaluation.scores import majority
from tepo.policy.model.load_policy import load_tokenizer
from tepo.policy.model.model_location import resolve
from tepo.policy.model.weight_check import check_weights
from tepo.problems.benchmarks import PAPER, Benchmark, load_benchmark
from tepo.problems.grader import Grader
from tepo.problems.prompt_format import encode_prompts, render_prompt

_FUNCTIONS = "tepo_tasks"
_HEADER = "# Written by `python -m tepo.integrations.lm_eval`; the harness resolves !function beside this file.\n"


def problems(benchmark: str, model: str, wrap: str, **others: Any) -> dict[str, Any]:
    """The checked problems of a benchmark as the harness's `custom_dataset`. model, wrap: whom they are asked of, and
    what is put around them: the prompts are checked too, and weights that are here. others: metadata that is not for
    us."""
    import datasets

    definition = load_benchmark(benchmark)
    loaded_problems = definition.load_problems()
    if Path(resolve(model)).is_dir():  # the harness would load a part of a model; of a hub's it may ask a server
        check_weights(model)
    encode_prompts(loaded_problems, load_tokenizer(model), prompt=definition.prompt, wrap=wrap)
    shared = {"benchmark": benchmark, "wrap": "base" if wrap == "base" else "raw"}
    rows = [
        shared | {"id": problem.id, "problem": problem.prompt, "answer": problem.answer} for problem in loaded_problems
    ]
    return {"test": datasets.Dataset.from_list(rows)}


def request(doc: dict[str, Any]) -> str:
    """Text of the question; the harness puts the chat template around it (`--apply_chat_template`), where there is
    one."""
    return render_prompt(doc["problem"], None, prompt=load_benchmark(doc["benchmark"]).prompt, wrap=doc["wrap"])


def graded(doc: dict[str, Any], results: Sequence[Sequence[str]]) -> dict[str, float]:
    """Scores of one problem from its responses: accuracy (avg@k), with several also pass@k and maj@k."""
    benchmark, grader = _grader(doc["benchmark"])
    (responses,) = results
    pairs = [(doc["answer"], text) for text in responses]
    verdicts = grade_responses(benchmark, grader, [doc["id"]] * len(pairs), pairs)
    right = [verdict.correct for verdict in verdicts]
    scores = {"accuracy": sum(right) / len(right)}
    if benchmark.samples > 1:
        scores["pass"] = float(any(right))
        scores["majority"] = majority([verdict.extracted for verdict in verdicts], right)
    return scores


@cache
def _grader(name: str) -> tuple[Benchmark, Grader]:
    benchmark = load_benchmark(name)
    return benchmark, Grader(benchmark.grader)


def task(name: str, model: str) -> str:
    """The task file of a benchmark for a model: a response ends by what ends the turns of its template."""
    benchmark, tokenizer = load_benchmark(name), load_tokenizer(model)
    wrap = "auto" if tokenizer.chat_template else "base"
    encoding = encode_prompts([], tokenizer, prompt=benchmark.prompt, wrap=wrap)
    if encoding.parts:
        what = "the chat template takes messages in parts, and the harness gives it text"
        raise UserError(what, where=model, fix="lm_eval's own tasks, or a model without such a template")
    if benchmark.thinking is not None:
        what = "the harness takes the reasoning mode from --model_args enable_thinking=…, and no task can say it"
        raise UserError(what, where=name, fix="`tepo eval`, or the settings without the mode: NAME:top_p0.95")
    ends = [encoding.controls[index] for index in encoding.stop]
    sampled = benchmark.temperature > 0
    generation: dict[str, Any] = {"until": ends, "do_sample": sampled, "max_gen_toks": benchmark.max_new_tokens}
    if sampled:  # whatever the model's generation_config.json says
        every_token = {"top_p": 1.0, "top_k": 0}
        generation |= {"temperature": benchmark.temperature, **every_token, **benchmark.filters}
    every = {"function": "take_first_k", "k": benchmark.samples}
    plain = {
        "task": f"tepo_{name.replace(':', '_')}",
        "metadata": {"benchmark": name, "version": benchmark.fingerprint, "model": model, "wrap": wrap},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_target": "{{answer}}",
        "num_fewshot": 0,
        "repeats": benchmark.samples,
        "generation_kwargs": generation,
        "filter_list": [{"name": "all", "filter": [every]}],
        "metric_list": [
            {"metric": metric, "aggregation": "mean", "higher_is_better": True}
            for metric in ("accuracy", *(("pass", "majority") if benchmark.samples > 1 else ()))
        ],
    }
    functions = {"custom_dataset": "problems", "doc_to_text": "request", "process_results": "graded"}
    lines = "".join(f"{key}: !function {_FUNCTIONS}.{function}\n" for key, function in functions.items())
    return _HEADER + lines + yaml.safe_dump(plain, sort_keys=False)


def write_tasks(folder: Path, model: str, names: Iterable[str] = PAPER) -> list[str]:
    """Write the task files of benchmarks and the module that they name, see `task`. Returns the names of the tasks."""
    # a name that is wrong stops it before a file is written
    texts = {f"tepo_{name.replace(':', '_')}": task(name, model) for name in names}
    folder.mkdir(parents=True, exist_ok=True)
    functions = "from tepo.integrations.lm_eval import graded, problems, request  # noqa: F401\n"
    write_atomic(folder / f"{_FUNCTIONS}.py", functions, "FOLDER")
    for name, text in texts.items():
        write_atomic(folder / f"{name}.yaml", text, "FOLDER")
    return list(texts)


def main(words: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tepo.integrations.lm_eval", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the task files go")
    parser.add_argument("benchmarks", nargs="*", default=PAPER, help="default: the seven of the papers")
    what = "a folder or hub id: for this model, with or without a chat template"
    parser.add_argument("--model", required=True, help=what)
    arguments = parser.parse_args(words)
    interpreter.quiet_others()
    try:
        tasks = write_tasks(arguments.folder, arguments.model, arguments.benchmarks)
        template = " --apply_chat_template" if load_tokenizer(arguments.model).chat_template else ""
    except UserError as error:
        sys.stderr.write(spelt(f"error: {error}\n"))
        raise SystemExit(error.exit_code) from None
    sys.stdout.write(f"--include_path {arguments.folder} --tasks {','.join(tasks)}{template}\n")


if __name__ == "__main__":
    main()
