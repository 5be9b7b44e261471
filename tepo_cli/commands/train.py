"""`tepo train`: one run."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tepo.common.errors import UserError
from tepo_cli.cli_options import Lines, Quiet, StoreOfRun, compose_run, formula_words

if TYPE_CHECKING:
    from tepo.config.run_config import RunConfig

Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Hydra overrides, e.g. objective=gspo seed=3 train.steps=40", show_default=False),
]

_EVALUATE = "Measure the finished run on the benchmarks of its data."
_DRY_RUN = "Print the resolved configuration and the plan; train nothing."
_SHOW_TOKENS = "With --dry-run: check all prompts, and list the tokens of the first."


def train(
    overrides: Overrides = None,
    store: StoreOfRun = None,
    evaluate: Annotated[bool, typer.Option("--evaluate", help=_EVALUATE)] = False,
    validate: Annotated[bool, typer.Option("--validate", help="Measure it on validation problems.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=_DRY_RUN)] = False,
    show_tokens: Annotated[bool, typer.Option("--show-tokens", help=_SHOW_TOKENS)] = False,
    formula: Lines = None,
    quiet: Quiet = False,
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
        from tepo.jobs.job import RunJob
        from tepo_cli.train_run import run_training

    run_training(RunJob(config, evaluate=evaluate, validate=validate, quiet=quiet))


def describe_run(config: "RunConfig", *, tokens: bool = False) -> None:
    """Print the resolved configuration and the plan of a run; tokens: its first prompt, too. Imports torch to check the
    objective, but nothing that trains."""
    import yaml

    from tepo.common.text import counted
    from tepo.config.compose import to_dict
    from tepo.reporting.progress import say
    from tepo.store.run_folder import RunFolder
    from tepo.studies.study import scale_studies
    from tepo.training.preflight import check_golds, check_settings

    check_settings(config)
    if unread := check_golds(config):
        say(unread)
    folder = RunFolder.of(config)
    if folder.manifest():
        folder.check_config()
    shown = to_dict(config)
    if "functions" in shown["objective"]:
        shown["objective"]["functions"] = list(shown["objective"]["functions"])  # the files, not what is in them
    for reward in shown["data"]["reward"].values():
        del reward["text"]
    shown = json.loads(json.dumps(shown))  # tuples become lists, for YAML
    print(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=math.inf), end="")
    steps, train = folder.checkpoints(), config.train
    size = f"{counted(train.steps, 'step')} x {counted(train.prompts_per_step, 'prompt')}"
    size += f" x {counted(train.samples_per_prompt, 'sample')}"
    state = folder.outcome() + (f", {counted(steps[-1], 'step')} done" if steps else "")
    print(f"# plan: run {folder.path.name} in {folder.path}")
    print(f"# {size}, {counted(train.epochs * train.mini_batches, 'update')} each; {state}")
    if not scale_studies(config.scale).one_core:
        from tepo_cli.show_fit import show_fit

        show_fit(config)
    if tokens:
        _show_prompt(config)


def _show_prompt(config: "RunConfig") -> None:
    """Check all prompts and print the first with its tokens. Nothing is downloaded for it."""
    from tepo.config.own_files import is_own
    from tepo.policy.model.load_policy import load_tokenizer
    from tepo.policy.model.model_location import offline, resolve
    from tepo.training.rollout.first_prompt import show_first_prompt
    from tepo.training.rollout.prompt_stream import PromptStream, training_problems

    model, data = config.model, config.data
    here = Path(resolve(model.path)).is_dir() and (data.kind == "procedural" or is_own("data", data.problems or ""))
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
