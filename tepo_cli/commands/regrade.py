"""`tepo regrade`: judge stored responses again."""

from pathlib import Path
from typing import Annotated

import typer

from tepo_cli.options import Store


def regrade(
    run: Annotated[str, typer.Argument(help="A run (folder or id), the folder of one evaluation, or a store.")],
    store: Store = Path("runs"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the flipped verdicts; change nothing.")] = False,
) -> None:
    """Grade stored responses with the grader of today, show every flipped verdict, and store verdicts and scores."""
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
