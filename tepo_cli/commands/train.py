"""`tepo train` and `tepo warmstart`: one run, and a base model to train from."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tepo.common.errors import UserError
from tepo_cli.cli_options import Lines, compose_run, formula_words

if TYPE_CHECKING:
    from tepo.config.run_config import RunConfig

Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Hydra overrides, e.g. objective=gspo seed=3 train.steps=40", show_default=False),
]


def train(
    context: typer.Context,
    overrides: Overrides = None,
    store: Annotated[Path | None, typer.Option(help="Folder of runs (default: runs/).")] = None,
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Measure the finished run on the benchmarks of its data.")
    ] = False,
    validate: Annotated[
        bool, typer.Option("--validate", help="Measure the finished run on validation problems.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved configuration and the plan; train nothing.")
    ] = False,
    show_tokens: Annotated[
        bool, typer.Option("--show-tokens", help="With --dry-run: check all prompts, and list the tokens of the first.")
    ] = False,
    formula: Lines = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Train one policy. Groups: objective= model= scale= data= sampler= engine=. A finished run is never trained
    twice."""
    config = compose_run([*(overrides or ()), *formula_words(formula)], store)
    if dry_run:
        describe_run(config, tokens=show_tokens)
        return
    if show_tokens:
        raise UserError("tokens are shown of a run that is not trained", where="--show-tokens", fix="add --dry-run")
    from tepo.reporting.progress import waiting

    with waiting(f"loading torch for {config.model.name}", quiet):
        from tepo.jobs.measure import After
        from tepo_cli.train_run import run_training

    run_training(config, After(evaluate, validate), quiet=quiet, hand_over=context.obj)


_SAMPLES = 8  # responses a problem, of which the record has avg@8 and pass@8


def describe_run(config: "RunConfig", *, tokens: bool = False) -> None:
    """Print the resolved configuration and the plan of a run; tokens: its first prompt, too. Imports torch to check the
    objective, but nothing that trains."""
    import yaml

    from tepo.common.text import counted
    from tepo.config.compose import to_dict
    from tepo.reporting.progress import say
    from tepo.store.run_folder import RunFolder
    from tepo.training.preflight import check_golds, check_settings

    check_settings(config)
    if unread := check_golds(config):
        say(unread)
    folder, train_config = RunFolder.of(config), config.train
    if folder.manifest():
        folder.check_config()
    shown = to_dict(config)
    if "functions" in shown["objective"]:
        shown["objective"]["functions"] = list(shown["objective"]["functions"])  # the files, not what is in them
    for reward in shown["data"]["reward"].values():
        del reward["text"]
    print(yaml.safe_dump(_plain(shown), sort_keys=False, allow_unicode=True, width=math.inf), end="")
    steps, updates = folder.checkpoints(), train_config.epochs * train_config.mini_batches
    done = f", {counted(steps[-1], 'step')} done" if steps else ""
    print(
        f"# plan: run {folder.path.name} in {folder.path}\n"
        f"# {counted(train_config.steps, 'step')} x {counted(train_config.prompts_per_step, 'prompt')} x "
        f"{counted(train_config.samples_per_prompt, 'sample')}, {counted(updates, 'update')} each; "
        f"{folder.outcome()}{done}"
    )
    if config.scale != "laptop":
        from tepo_cli.show_fit import show_fit

        show_fit(config)
    if tokens:
        _show_prompt(config)


def _show_prompt(config: "RunConfig") -> None:
    """Check all prompts and print the first with its tokens. Nothing is downloaded for it."""
    from tepo.policy.model.load_policy import load_tokenizer
    from tepo.policy.model.model_location import offline, resolve
    from tepo.problems.training_sets import is_file
    from tepo.training.rollout.first_prompt import show_first_prompt
    from tepo.training.rollout.prompt_stream import PromptStream, training_problems

    model, data = config.model, config.data
    here = Path(resolve(model.path)).is_dir() and (data.kind == "procedural" or is_file(data.problems or ""))
    try:
        with offline():
            tokenizer = load_tokenizer(model.path, model.revision, model.trust_remote_code)
            problems = training_problems(config)
    except UserError as error:
        if here:
            raise
        print(f"# first prompt: not shown, as nothing is downloaded for it ({error.what})")
        return
    shown = show_first_prompt(PromptStream(config, tokenizer, problems), tokens=True)
    print("".join(f"# {line}\n" for line in shown.split("\n")), end="")


def _plain(value: Any) -> Any:
    """Tuples as lists, for YAML."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def warmstart(
    name: Annotated[
        str, typer.Argument(help="Which base: laptop, laptop_sparse, laptop_chains, or another size (laptop_50k …).")
    ] = "laptop",
    out: Annotated[Path | None, typer.Option(help="Folder for the model (default: base-NAME).")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="About so many steps instead of the recipe's, for a try.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and problems.")] = 0,
    noise: Annotated[
        float, typer.Option(min=0, help="Times the recipe's bare answers, wrong results and left-out steps.")
    ] = 1.0,
    measure: Annotated[bool, typer.Option(help="Measure the base on the benchmarks of its data.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Warm-start a tiny policy on generated solutions.

    Train from it with `model.path=FOLDER`."""
    from dataclasses import replace

    import torch

    from tepo.common.errors import unknown_name
    from tepo.common.files import write_json
    from tepo.common.provenance import facts
    from tepo.jobs.measure import measure_in_memory
    from tepo.policy.model.load_policy import Policy
    from tepo.policy.toy.warmstart import RECIPES, SIZES, save_base, train
    from tepo.problems.benchmarks import load_benchmark
    from tepo.reporting.progress import bar, benchmark_bar, say
    from tepo_cli.screen import show

    known = RECIPES | SIZES
    if name not in known:
        raise unknown_name("base", name, known)
    torch.set_num_threads(1)  # faster than two on a busy machine, and the same numbers everywhere
    recipe = replace(known[name], seed=seed).with_noise(noise)
    if steps:
        recipe = recipe.shortened(steps)
    folder = out or Path(f"base-{name}")
    with bar(f"warm start {name}", recipe.steps, quiet) as advance:
        model, tokenizer, record = train(recipe, lambda step, loss: advance(step + 1, f"loss {loss:.3f}"))
    command = " ".join([f"tepo warmstart {name}", *([f"--steps {steps}"] if steps else []), f"--seed {seed}"])
    record |= {"made": {"name": name, "command": command, **facts()}}
    save_base(folder, model, tokenizer, record)
    say(
        f"{folder}: {record['tokens']:,} tokens, {record['cpu_seconds']:.0f} CPU-seconds, "
        f"last loss {record['losses'][-1]:.3f}"
    )
    if measure:
        benchmarks = [replace(load_benchmark(benchmark), samples=_SAMPLES) for benchmark in _measured_on(name)]
        with benchmark_bar(len(benchmarks), quiet) as report:
            results = measure_in_memory(Policy(model, tokenizer), benchmarks, report=report)
        scores = {result.benchmark: result.scores for result in results}
        write_json(folder / "recipe.json", record | {"scores": scores})
        show(_table(scores), stderr=True)


def _measured_on(name: str) -> list[str]:
    """The benchmarks of all data that start from a base; those of data=laptop for its other sizes."""
    from tepo.config.compose import compose, options

    data = [compose([f"data={option}"]).data for option in options("data")]
    return [benchmark for one in data if one.base == f"package:{name}" for benchmark in one.benchmarks] or (
        compose(["data=laptop"]).data.benchmarks
    )


def _table(scores: dict[str, dict[str, float]]) -> Any:
    """Accuracy and pass@8 by benchmark, with their plain means."""
    from rich.table import Table

    from tepo_cli.screen import fixed

    table = Table(*map(fixed, ("benchmark", "avg@8 %", "pass@8 %", "tokens")))
    for name, row in scores.items():
        table.add_row(name, f"{100 * row['avg@8']:.1f}", f"{100 * row['pass@8']:.1f}", f"{row['mean_tokens']:.0f}")
    means = [sum(row[key] for row in scores.values()) / len(scores) for key in ("avg@8", "pass@8", "mean_tokens")]
    table.add_row("mean", f"{100 * means[0]:.1f}", f"{100 * means[1]:.1f}", f"{means[2]:.0f}", style="bold")
    return table
