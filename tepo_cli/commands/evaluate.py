"""`tepo eval` and `tepo responses`: models measured, and what they answered."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from tepo.common.errors import UserError, unknown_name
from tepo_cli.cli_options import How, Quiet, Store, Trust, unbundled

_BENCHMARKS = (
    "Benchmarks (`tepo list`), NAME:SUBSET for a part of one, NAME:PROTOCOL or NAME:top_p0.95:tokens4096 to sample it "
    "otherwise, or all; none for a configuration, whose data name them."
)
_MODEL = (
    "A run (folder or id), a model folder, a hub id, package:NAME, or openai:URL#NAME for a model behind an "
    "OpenAI-compatible address. Or a configuration in quotes: 'base OVERRIDES' "
    "for its untrained policy, 'train OVERRIDES' for its finished run, with the sampler that it trains with. Repeat -m "
    "to measure several with one loaded engine."
)


@unbundled
def evaluate(
    models: Annotated[list[str], typer.Option("--model", "-m", help=_MODEL)],
    how: How,
    benchmarks: Annotated[list[str] | None, typer.Argument(help=_BENCHMARKS, show_default=False)] = None,
    trust: Trust = False,
    store: Store = Path("runs"),
    quiet: Quiet = False,
) -> None:
    """Measure a model on benchmarks by the paper's protocol.

    One row a sample on disk, scores with intervals. Goes on where it was interrupted.

    \b
    tepo eval aime24 math500 --model Qwen/Qwen2.5-7B
    tepo eval aime24:qwen3_thinking --model Qwen/Qwen3-8B
    tepo eval all --model runs/RUN
    tepo eval math500 --model openai:http://localhost:8000/v1#NAME
    tepo eval -m 'base data=FILE model=FOLDER data.benchmarks=[NAME]'"""
    models = list(dict.fromkeys(models))
    kinds = (["base"], ["train"])
    if configured := [model for model in models if model.split(maxsplit=1)[:1] in kinds and not os.path.exists(model)]:
        others = ["another kind of model"] if configured != models else []
        if idle := [*(["a benchmark"] if benchmarks else []), *how.given, *others]:
            what = f"{' and '.join(idle)} with a configuration, which has settings of its own for that"
            raise UserError(what, where=f"-m {configured[0]!r}", fix="leave it out, or name the run by its id")
        from tepo.problems.benchmarks import check_measurable
        from tepo_cli.train_run import compose_one, run_base, show_measured

        in_store = None if store == Path("runs") else store
        run, trained = compose_one(configured[0], in_store)
        if trained or len(configured) > 1:
            show_measured(configured, in_store, quiet=quiet)
        else:  # a base alone can be measured by several ranks
            check_measurable(run.config.data)
            run_base(run, quiet=quiet)
        return
    if not benchmarks:
        raise UserError("no benchmark to evaluate on", where="tepo eval", fix="name some (`tepo list`), or `all`")
    if len(models) > 1 and (how.out or how.revision):
        where = "--out" if how.out else "--revision"
        raise UserError("one folder or commit for several models", where=where, fix="a command for each model")
    from tepo_cli.show_scores import evaluate_models

    evaluate_models(models, benchmarks, how, store, quiet=quiet)


_RUN = "A run: its folder, its id or the beginning of it (`tepo list`), or base-… for an untrained policy."
_SHOW = "Problems to show; right and wrong: where the run has such a response."


def responses(
    run: Annotated[str, typer.Argument(help=_RUN)],
    benchmark: Annotated[str, typer.Argument(help="The benchmark, as its folder in eval/ is called.")],
    vs: Annotated[str | None, typer.Option(help="Another run, shown below it.", show_default=False)] = None,
    show: Annotated[Literal["all", "right", "wrong", "disagree"], typer.Option(help=_SHOW)] = "all",
    store: Store = Path("runs"),
) -> None:
    """Print stored responses with their verdicts.

    Shows all of what the page shows a part of.

    `--show disagree` with `--vs`: problems of which one run answers at least half right, and the other does not.

    \b
    tepo responses RUN add3
    tepo responses RUN add3 --vs OTHER --show disagree"""
    from tepo.store.samples_file import answered, disagree

    if show == "disagree" and vs is None:
        raise UserError("with what?", where="--show disagree", fix="--vs RUN")
    read = {
        name: {problem.id: problem for problem in answered(_evaluation(name, benchmark, store))}
        for name in (run, vs)
        if name is not None
    }
    for name, problem in read[run].items():
        sides = {who: problems[name] for who, problems in read.items() if name in problems}
        chosen = {
            "all": True,
            "disagree": len(sides) == 2 and disagree(*sides.values()),
            "right": any(answer.right for answer in problem.answers),
            "wrong": not all(answer.right for answer in problem.answers),
        }
        if chosen[show]:
            print(f"{name}  {problem.prompt.strip()}  gold answer {problem.gold}")
            for who, side in sides.items():
                print(f"  {who}: {side.right} of {side.samples} right")
                for answer, count in side.different:
                    verdict = ("right" if answer.right else "wrong") + (f" x {count}" if count > 1 else "")
                    cut = "" if answer.finished else ", cut off at the length limit"
                    text = answer.text.strip().replace("\n", "\n        ")
                    print(f"    {verdict} ({answer.reason}, {answer.tokens} tokens{cut}):\n        {text}")


def _evaluation(name: str, benchmark: str, store: Path) -> Path:
    """The folder of a finished evaluation."""
    from tepo.store.find_run import find_run, no_run
    from tepo.store.run_folder import RunFolder

    folder = store / name
    run = RunFolder(folder) if (folder / "eval").is_dir() else find_run(name, store)
    if run is None:
        raise no_run(name, store)
    if run.manifest():
        run.check_whole()
    if benchmark not in run.measured():
        raise unknown_name("evaluation", benchmark, run.measured(), where=str(run.path))
    run.right_answers(benchmark)
    return run.evaluation(benchmark)
