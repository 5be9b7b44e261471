"""`tepo push`: a finished run on the Hugging Face hub."""

from pathlib import Path
from typing import Annotated

import typer

from tepo_cli.cli_options import StoreOfRun

_HEAD = 24  # lines of the card that a preview shows


def push(
    run: Annotated[str, typer.Argument(help="Folder, id, or the beginning of an id.", show_default=False)],
    repository: Annotated[str, typer.Argument(metavar="ORG/NAME", help="Repository of the hub.", show_default=False)],
    private: Annotated[
        bool, typer.Option("--private", help="Make the repository private, or go on only if it is.")
    ] = False,
    revision: Annotated[str, typer.Option(metavar="BRANCH", help="Branch; it is made where it is missing.")] = "main",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the files and the card's head; send nothing.")
    ] = False,
    store: StoreOfRun = None,
) -> None:
    """Publish a finished run on the Hugging Face hub.

    Sends the last weights with tokenizer and adapters, the model card, the configuration, the formula and the scores,
    in one commit. Optimiser state, samples and names of this machine's folders are not sent.

    \b
    tepo push RUN NAME/MODEL --dry-run"""
    from tepo.jobs.publish import CARD, check_repository, check_token, files_of, size_of
    from tepo.jobs.publish import push as send
    from tepo.reporting.progress import say, waiting
    from tepo.store.find_run import find_run, no_run

    check_repository(repository)
    place = store or Path("runs")
    run_folder = find_run(run, place)
    if run_folder is None:
        raise no_run(run, place)
    if not dry_run:
        check_token(repository)
    with waiting(f"run {run_folder.path.name}: every file is read"):
        files = files_of(run_folder)
    if dry_run:
        for name, content in files.items():
            print(f"{size_of(content):>15,}  {name}")
        print(f"{sum(map(size_of, files.values())):>15,}  bytes in one commit to {repository}, branch {revision}")
        card = files[CARD]
        assert isinstance(card, bytes)
        print("", *card.decode().splitlines()[:_HEAD], "…", sep="\n")
        return
    say(send(files, repository, f"Run {run_folder.path.name} of tepo", private=private, revision=revision))
