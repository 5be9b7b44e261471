"""`tepo eval`: benchmarks for a model, a run or a hub id."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tepo.common.errors import UserError
from tepo_cli.options import Store, Trust

if TYPE_CHECKING:
    from tepo.store.run_folder import RunFolder


def evaluate(
    benchmarks: Annotated[
        list[str], typer.Argument(help="Benchmarks (`tepo list`), NAME:SUBSET for a part of one, or all.")
    ],
    models: Annotated[
        list[str],
        typer.Option(
            "--model",
            "-m",
            help="A run (folder or id), a model folder, a hub id, or package:NAME. Several, each behind its own -m, "
            "share one loaded engine.",
        ),
    ],
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
    """Evaluate by the paper's protocol: one row a sample on disk, scores with intervals. Goes on where it was
    interrupted."""
    from tepo.evaluation.settings import Settings
    from tepo.jobs.measure import Request, measure, shared_engine
    from tepo.reporting.progress import benchmark_bar
    from tepo.sampling.backends import SamplerOptions
    from tepo.store.run_folder import RunFolder
    from tepo_cli.find_model import find_target
    from tepo_cli.show_scores import show_evaluations, show_scores, show_unreadable

    models = list(dict.fromkeys(models))
    if len(models) > 1 and (out or revision):
        where = "--out" if out else "--revision"
        raise UserError("one folder or commit for several models", where=where, fix="a command for each model")
    chosen, requests = SamplerOptions(backend, dtype, tensor_parallel, data_parallel), []
    for target in [find_target(model, store, revision) for model in models]:
        thinks = target.thinking if thinking is None else thinking
        settings = Settings({"weights": target.weights.name}, seed, limit, wrap or target.wrap, thinks)
        request = Request(target.weights, chosen, settings, RunFolder(out) if out else target.run)
        requests.append((request, target.expand(benchmarks)))
    show = show_evaluations if dry_run else show_unreadable
    for request, names in requests:
        show(names, request)
    if dry_run:
        return
    with shared_engine(requests) as engine:
        for request, names in requests:
            before = request.run.measured()
            with benchmark_bar(len(names), quiet) as report:
                results = measure(request, names, report, engine)
            if request.run.measured() != before:
                _renew_card(request.run)
            show_scores(results, request)


def _renew_card(run: "RunFolder") -> None:
    """The card of a trained run with what is measured now; a base and a model from elsewhere have none."""
    if run.config_file.is_file():
        from tepo.jobs.model_card import write_card  # needs torch

        write_card(run)
