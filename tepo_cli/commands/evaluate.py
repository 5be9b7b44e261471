"""`tepo eval` and its aliases `tepo base` and `tepo measure`; `tepo regrade` and `tepo responses` of what is stored."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tepo.common.errors import UserError
from tepo_cli.cli_options import Store, Trust, compose_run
from tepo_cli.commands.train import Overrides

if TYPE_CHECKING:
    from tepo.store.stored_responses import Answer


_BENCHMARKS = (
    "Benchmarks (`tepo list`), NAME:SUBSET for a part of one, or all; none for a configuration, whose data name them."
)
_MODEL = (
    "A run (folder or id), a model folder, a hub id, or package:NAME. Or a configuration in quotes: 'base OVERRIDES' "
    "for its untrained policy, 'train OVERRIDES' for its finished run, with the sampler that it trains with. Several, "
    "each behind its own -m, share one loaded engine."
)


def evaluate(
    models: Annotated[list[str], typer.Option("--model", "-m", help=_MODEL)],
    benchmarks: Annotated[list[str] | None, typer.Argument(help=_BENCHMARKS, show_default=False)] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N problems of each.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be evaluated and the first prompt as the model sees it.")
    ] = False,
    backend: Annotated[str, typer.Option(help="auto, torch, vllm or vllm_server.")] = "auto",
    tensor_parallel: Annotated[int, typer.Option(min=1, help="GPUs one copy of the model is cut over (vllm).")] = 1,
    data_parallel: Annotated[int, typer.Option(min=1, help="Copies of the model side by side (vllm).")] = 1,
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    revision: Annotated[str | None, typer.Option(help="Commit of a hub model.")] = None,
    wrap: Annotated[
        str | None,
        typer.Option(
            help="Around a request: auto (chat template if there is one), base or raw. Default: the run's, else auto."
        ),
    ] = None,
    thinking: Annotated[
        bool | None,
        typer.Option("--thinking/--no-thinking", help="Reasoning mode of models that have one.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results (default: eval/ of the run, or of base-… in the store).")
    ] = None,
    trust: Trust = False,
    store: Store = Path("runs"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Measure a model on benchmarks by the paper's protocol.

    One row a sample on disk, scores with intervals. Goes on where it was interrupted."""
    models = list(dict.fromkeys(models))
    kinds = (["base"], ["train"])
    if configured := [one for one in models if one.split(maxsplit=1)[:1] in kinds and not Path(one).exists()]:
        given: dict[str, object] = {"a benchmark": benchmarks, "--limit": limit, "--dry-run": dry_run}
        given |= {"--revision": revision, "--backend": backend != "auto", "--dtype": dtype != "auto"}
        given |= {"--wrap": wrap, "--out": out}
        given |= {"--tensor-parallel": tensor_parallel > 1, "--data-parallel": data_parallel > 1, "--seed": seed}
        given |= {"--thinking": thinking is not None, "another kind of model": configured != models}
        if idle := [name for name, value in given.items() if value]:
            what = f"{' and '.join(idle)} with a configuration, which is measured as it says itself"
            raise UserError(what, where=f"-m {configured[0]!r}", fix="leave it out, or name the run by its id")
        from tepo.jobs.measure import check_measurable
        from tepo_cli.train_run import compose_one, run_base, show_measured

        in_store = None if store == Path("runs") else store
        config, trained = compose_one(configured[0], in_store)
        if trained or len(configured) > 1:
            show_measured(configured, in_store, quiet=quiet)
        else:  # a base alone can be measured by several ranks
            check_measurable(config)
            run_base(config, quiet=quiet)
        return
    if not benchmarks:
        raise UserError("no benchmark to evaluate on", where="tepo eval", fix="name some (`tepo list`), or `all`")
    from tepo.evaluation.settings import Settings
    from tepo.jobs.measure import Request, measure, shared_engine
    from tepo.reporting.progress import benchmark_bar
    from tepo.sampling.backends import SamplerOptions
    from tepo.store.run_folder import RunFolder
    from tepo_cli.show_scores import find_target, show_evaluations, show_scores

    if len(models) > 1 and (out or revision):
        where = "--out" if out else "--revision"
        raise UserError("one folder or commit for several models", where=where, fix="a command for each model")
    chosen, requests = SamplerOptions(backend, dtype, tensor_parallel, data_parallel), []
    for target in [find_target(model, store, revision) for model in models]:
        thinks = target.thinking if thinking is None else thinking
        settings = Settings({"weights": target.weights.name}, seed, limit, wrap or target.wrap, thinks)
        request = Request(target.weights, chosen, settings, RunFolder(out.resolve()) if out else target.run)
        requests.append((request, target.expand(benchmarks)))
    if dry_run:
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


def base(
    overrides: Overrides = None,
    store: Annotated[Path | None, typer.Option(help="Folder of runs (default: runs/).")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Measure the starting policy on the benchmarks of its data (the first row of the paper's tables)."""
    from tepo.jobs.measure import check_measurable
    from tepo_cli.train_run import run_base

    config = compose_run(overrides or [], store)
    check_measurable(config)
    run_base(config, quiet=quiet)


def measure(
    runs: Annotated[list[str], typer.Argument(help="Each in quotes: 'train OVERRIDES' or 'base OVERRIDES'.")],
    store: Annotated[Path | None, typer.Option(help="Folder of runs (default: runs/).")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Measure trained runs and bases of one model on the benchmarks of their data, as a study does it: with the sampler
    that they train with, loaded once."""
    from tepo_cli.train_run import show_measured

    show_measured(runs, store, quiet=quiet)


def regrade(
    run: Annotated[str, typer.Argument(help="A run (folder or id), the folder of one evaluation, or a store.")],
    store: Store = Path("runs"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the flipped verdicts; change nothing.")] = False,
) -> None:
    """Grade stored responses with the grader of today.

    Shows every flipped verdict, and stores verdicts and scores."""
    from contextlib import nullcontext

    from tepo.evaluation.regrade import evaluations
    from tepo.evaluation.regrade import regrade as regrade_one
    from tepo.problems.benchmarks import load_benchmark
    from tepo.problems.grader import Grader
    from tepo.reporting.progress import Screen
    from tepo.store.evaluation_result import load_result
    from tepo.store.run_folder import RunFolder

    console = Screen(highlight=False, soft_wrap=True)
    folder = Path(run) if Path(run).is_dir() else store / run
    for evaluation in evaluations(folder):
        with nullcontext() if dry_run else RunFolder.of_evaluation(evaluation).lock("measure"):
            result = load_result(evaluation)
            assert result  # `evaluations` lists finished ones
            with Grader(load_benchmark(result.benchmark).grader) as grader:
                change = regrade_one(evaluation, grader, write=not dry_run)
        for flip in change.flips:
            now, was = ("right", "wrong") if flip.correct else ("wrong", "right")
            console.print(
                f"  {flip.problem} sample {flip.sample}: {was} ({flip.reason_before}) -> {now} ({flip.reason}); "
                f"gold {flip.gold!r}, answer {flip.extracted!r}"
            )
        accuracy = (
            f"{100 * change.before:.2f} -> {100 * change.after:.2f}"
            if change.flips
            else f"{100 * change.after:.2f}, as before"
        )
        spent = f"; {change.timeouts} ran out of the grader's budget and count as wrong" if change.timeouts else ""
        kept = " (nothing written)" if dry_run else ""
        console.print(
            f"{evaluation}: {len(change.flips)} of {change.samples} verdicts flipped; accuracy {accuracy}{spent}{kept}"
        )


_RUN = "A run: its folder, its id or the beginning of it (`tepo list`), or base-… for an untrained policy."
_SHOW = "Problems to show; right and wrong: where the run has such a response."


def responses(
    run: Annotated[str, typer.Argument(help=_RUN)],
    benchmark: Annotated[str, typer.Argument(help="The benchmark, as its folder in eval/ is called.")],
    vs: Annotated[str | None, typer.Option(help="Another run, shown below it.", show_default=False)] = None,
    show: Annotated[Literal["all", "right", "wrong", "disagree"], typer.Option(help=_SHOW)] = "all",
    problem: Annotated[str | None, typer.Option(help="This problem alone.", show_default=False)] = None,
    search: Annotated[
        str | None, typer.Option(help="Only problems with this text in the prompt or a response.", show_default=False)
    ] = None,
    store: Store = Path("runs"),
) -> None:
    """Print stored responses with their verdicts.

    Shows all of what the page shows a part of.

    `--show disagree` with `--vs`: problems of which one run answers at least half right, and the other does not."""
    from tepo.common.errors import UserError
    from tepo.store.stored_responses import answered, disagree

    if show == "disagree" and vs is None:
        raise UserError("with what?", where="--show disagree", fix="--vs RUN")
    read = {name: answered(_evaluation(name, benchmark, store)) for name in filter(None, (run, vs))}
    first = read[run]
    if problem is not None and problem not in {one.id for one in first}:
        raise UserError(f"no problem {problem!r}", where=f"{run}, {benchmark}", fix=f"for example {first[0].id}")
    others = [{one.id: one for one in own} for own in read.values()]
    for one in first:
        sides = [own[one.id] for own in others if one.id in own]
        texts = [one.prompt, *(answer.text for side in sides for answer in side.answers)]
        if (
            (problem is None or one.id == problem)
            and (search is None or any(search.lower() in text.lower() for text in texts))
            and (show not in ("right", "wrong") or any(answer.right is (show == "right") for answer in one.answers))
            and (show != "disagree" or (len(sides) == 2 and disagree(*sides)))
        ):
            print(f"{one.id}  {one.prompt.strip()}  gold answer {one.gold}")
            for name, side in zip(read, sides, strict=False):
                print("\n".join([f"  {name}: {side.right} of {side.samples} right", *map(_line, side.different)]))


def _line(entry: "tuple[Answer, int]") -> str:
    answer, count = entry
    times = f" x {count}" if count > 1 else ""
    cut = "" if answer.finished else ", cut off at the length limit"
    verdict = "right" if answer.right else "wrong"
    text = answer.text.strip().replace("\n", "\n        ")
    return f"    {verdict}{times} ({answer.reason}, {answer.tokens} tokens{cut}):\n        {text}"


def _evaluation(name: str, benchmark: str, store: Path) -> Path:
    """The folder of a finished evaluation."""
    from tepo.common.errors import UserError, unknown_name
    from tepo.reporting.progress import say
    from tepo.store.find_run import find_run, nearest_run
    from tepo.store.run_folder import RunFolder

    folder = store / name
    found = RunFolder(folder) if (folder / "eval").is_dir() else find_run(name, store)
    if found is None:
        nearest = nearest_run(name, store)
        fix = f"{nearest} is the nearest" if nearest else "`tepo list` shows the runs"
        raise UserError(f"no run {name!r}", where=f"--store {store}", fix=fix)
    if found.manifest() and (unknown := found.check_whole()):
        say(f"run {found.path.name}: {unknown}")
    if benchmark not in found.measured():
        raise unknown_name("evaluation", benchmark, found.measured(), where=str(found.path))
    found.right_answers(benchmark)
    return found.evaluation(benchmark)
