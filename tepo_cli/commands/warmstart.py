"""`tepo warmstart`: make a base model of the laptop scale again."""

from pathlib import Path
from typing import Annotated, Any

import typer

_SAMPLES = 8  # responses a problem, of which the record has avg@8 and pass@8


def warmstart(
    name: Annotated[
        str,
        typer.Argument(help="Which base: laptop, laptop_sparse, laptop_chains, or another size (laptop_50k …)."),
    ] = "laptop",
    out: Annotated[Path | None, typer.Option(help="Folder for the model (default: base-NAME).")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="About so many steps instead of the recipe's, for a try.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and problems.")] = 0,
    measure: Annotated[bool, typer.Option(help="Measure the base on the benchmarks of its data.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Warm-start a tiny policy on generated solutions; train from it with `model.path=FOLDER`."""
    from dataclasses import replace

    import torch

    from tepo.common.errors import unknown_name
    from tepo.common.files import write_json
    from tepo.jobs.measure import measure_in_memory
    from tepo.policy.model.load_policy import Policy
    from tepo.policy.toy.recipes import RECIPES, SIZES
    from tepo.policy.toy.warmstart import save_base, train
    from tepo.problems.benchmarks import load_benchmark
    from tepo.reporting.progress import bar, benchmark_bar, say
    from tepo_cli.screen import show

    known = RECIPES | SIZES
    if name not in known:
        raise unknown_name("base", name, known)
    torch.set_num_threads(1)  # faster than two on a busy machine, and the same numbers everywhere
    recipe = replace(known[name], seed=seed)
    if steps:
        recipe = recipe.shortened(steps)
    folder = out or Path(f"base-{name}")
    with bar(f"warm start {name}", recipe.steps, quiet) as advance:
        model, tokenizer, record = train(recipe, lambda step, loss: advance(step + 1, f"loss {loss:.3f}"))
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
