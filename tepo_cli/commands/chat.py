"""`tepo chat`: a conversation with a trained model."""

from pathlib import Path
from typing import Annotated

import typer

from tepo_cli.cli_options import Store, Trust

_MODEL = "A run (folder or id), a model folder, a hub id, or package:NAME."
_RAW = "Ask the text as it is typed, without the prompt and the template that the model was trained with."
_BACKEND = "torch, which shows each token as it comes, vllm or auto."


def chat(
    model: Annotated[str, typer.Argument(help=_MODEL)],
    raw: Annotated[bool, typer.Option("--raw", help=_RAW)] = False,
    temperature: Annotated[float | None, typer.Option(min=0, help="0: greedy (default: the run's, else 1).")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Limit of a response (default: the run's, else 1024).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    backend: Annotated[str, typer.Option(help=_BACKEND)] = "torch",
    revision: Annotated[str | None, typer.Option(help="Commit of a hub model.")] = None,
    trust: Trust = False,
    store: Store = Path("runs"),
) -> None:
    """Talk with a model, asked as it was in training.

    Ctrl-C stops a response, and where none is written the command, as Ctrl-D does. In a pipe each line is a question of
    its own; responses go to standard output, everything else to standard error.

    \b
    tepo chat package:laptop
    tepo chat runs/RUN"""
    from tepo.sampling.backends import SamplerOptions
    from tepo_cli.show_scores import find_target

    target = find_target(model, store, revision)  # before transformers is loaded
    SamplerOptions(backend).resolved_kind()
    from tepo_cli.conversation import Manner, converse

    converse(target, model, Manner(raw, temperature, max_new_tokens, seed), backend)
