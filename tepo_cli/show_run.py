"""The answer of `tepo train --dry-run`: what would be trained, for how long, where, and on what prompt."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap

import yaml

from tepo.common.errors import UserError
from tepo.common.text import counted
from tepo.config.compose import to_dict
from tepo.config.own_files import is_own
from tepo.config.run_config import RunConfig
from tepo.planning.laptop_cost import closed_form_seconds, core_memory, seconds_of
from tepo.problems.benchmarks import check_measurable
from tepo.reporting.progress import say
from tepo.store.find_run import costs
from tepo.studies.study import scale_studies
from tepo.training.preflight import check_golds, check_settings
from tepo.training.resources.gpu_cards import GIB
from tepo.training.run import Run
from tepo_cli.screen import screen_width
from tepo_cli.show_plan import time_text

_LABEL = 11  # columns of the names of the lines
_PROMPT = 6, 300  # lines and characters that are shown of a prompt
_TASKS = 4


def describe_run(
    run: Run, *, evaluate: bool = False, validate: bool = False, tokens: bool = False, full: bool = False
) -> None:
    """Print what a run would be, one line a question; the whole first prompt with its tokens; with `full` the resolved
    configuration as YAML in place of the answers, and for GPUs all that is planned. Nothing is trained or downloaded,
    but torch is imported to check the objective."""
    config = run.config
    check_settings(run)
    if evaluate:
        check_measurable(config.data)
    if unread := check_golds(config):
        say(unread)
    folder = run.folder
    if folder.manifest():
        folder.check_config()
    prompt = [] if full and not tokens else _first_prompt(config, tokens=tokens)
    if full:
        print(_configuration(config), end="")
        if not scale_studies(config.scale).one_core:
            from tepo_cli.show_fit import show_fit

            show_fit(run)
        print("".join(f"# {line}\n" for line in prompt), end="")
        return
    for label, text in _answers(run, evaluate=evaluate, validate=validate):
        lines = wrap(text, screen_width() - _LABEL, break_long_words=False, break_on_hyphens=False)
        lines = [text] if label == "run" else lines  # a path is copied as one
        print(label.ljust(_LABEL) + f"\n{' ' * _LABEL}".join(lines))
    print("\n".join(prompt))


def _answers(run: Run, *, evaluate: bool, validate: bool) -> Iterator[tuple[str, str]]:
    config, folder = run.config, run.folder
    train, data, steps_done = config.train, config.data, len(folder.metrics())
    yield "trains", f"{config.objective['name']}, seed {config.seed}, scale {config.scale}"
    model = (
        config.model.name if config.model.name == config.model.path else f"{config.model.name} ({config.model.path})"
    )
    yield "model", model + (f", LoRA of rank {config.model.lora_rank}" if config.model.lora_rank else "")
    tasks = [name for name, weight in data.tasks.items() if weight] if data.kind == "procedural" else []
    more = f" and {len(tasks) - _TASKS} more" if len(tasks) > _TASKS else ""
    source = f"tasks {', '.join(tasks[:_TASKS])}{more}" if tasks else str(data.problems)
    yield "data", data.name if source == data.name else f"{data.name}: {source}"
    size = f"{counted(train.prompts_per_step, 'prompt')} x {counted(train.samples_per_prompt, 'sample')}"
    updates = counted(train.epochs * train.mini_batches, "update")
    yield "steps", f"{train.steps}, each {size} of at most {counted(train.max_new_tokens, 'token')}, then {updates}"
    finished = folder.finished()
    measured = [name for name in data.benchmarks if name not in folder.measured()] if evaluate else []
    yield from _price(run, 0 if finished else train.steps - steps_done, measured)
    if finished:
        ended = f", ended by itself: {ending}" if (ending := folder.ending()) else ""
        state = f"finished already ({counted(steps_done, 'step')}{ended}), it is not trained again"
    elif folder.busy():
        state = f"another process has it: step {steps_done} of {train.steps}"
    else:
        state = f"goes on after step {folder.checkpoints()[-1]}" if folder.checkpoints() else "new"
    yield "run", f"{folder.path}: {state}"
    after = [f"the benchmarks {', '.join(data.benchmarks)}"] if evaluate else []
    after += ["validation problems"] if validate else []
    yield "afterwards", f"measured on {' and '.join(after)}" if after else "nothing is measured; --evaluate measures it"


def _price(run: Run, steps: int, benchmarks: list[str]) -> Iterator[tuple[str, str]]:
    """Time and memory of what is left to do. A model whose shape is not known has no plan."""
    config = run.config
    try:
        if not scale_studies(config.scale).one_core:
            from tepo_cli.show_fit import best_machine

            yield from best_machine(run, steps, measured=bool(benchmarks))
            return
        run_costs = [cost for cost in costs(Path(config.store)) if cost.steps and cost.prices(config)]
        if run_costs:
            seconds = seconds_of(config, str(config.objective["name"]), steps, len(benchmarks), run_costs)
            basis = f"by {counted(len(run_costs), 'run')} like it in {config.store}"
        else:
            seconds = closed_form_seconds(run, steps, measured=bool(benchmarks))
            basis = "by a closed form, to a factor of four: no run like it in the store"
        yield "time", f"about {time_text(seconds, 'CPU ')}, {basis}" if steps or benchmarks else "none: nothing to do"
        yield "memory", f"about {core_memory(run) / GIB:.1f} GiB, by a closed form"
    except UserError as error:
        yield "time", f"not known: {error.what}"


def _configuration(config: RunConfig) -> str:
    """The resolved configuration as YAML: of functions and rewards the files, not what is in them."""
    settings = to_dict(config)
    if "functions" in settings["objective"]:
        settings["objective"]["functions"] = list(settings["objective"]["functions"])
    for reward in settings["data"]["reward"].values():
        del reward["text"]
    settings = json.loads(json.dumps(settings))  # tuples become lists, for YAML
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=math.inf)


def _first_prompt(config: RunConfig, *, tokens: bool) -> list[str]:
    """Check all prompts; lines of the first one, whole with its tokens or shortened. Nothing is downloaded for it."""
    from tepo.policy.model.load_policy import load_tokenizer
    from tepo.policy.model.model_location import offline, resolve
    from tepo.training.rollout.prompt_stream import PromptStream, show_first_prompt, training_problems

    model, data, here = config.model, config.data, False
    try:
        with offline():
            here = Path(resolve(model.path)).is_dir()
            here = here and (data.kind == "procedural" or is_own("data", data.problems or ""))
            tokenizer = load_tokenizer(model.path, model.revision, model.trust_remote_code)
            problems = training_problems(config)
    except UserError as error:
        if here:
            raise
        fix = f"; {error.fix}" if error.fix and error.fix.startswith("tepo ") else ""
        why = error.what.partition(":")[0]  # what follows is of a network that was not asked
        return [f"first prompt: not shown, as nothing is downloaded for it ({why}{fix})"]
    lines = show_first_prompt(PromptStream(config, tokenizer, problems), tokens=tokens).split("\n")
    if tokens:
        return lines
    most, characters = _PROMPT
    text = "\n".join(lines[1:])
    short = "\n".join(text[:characters].split("\n")[:most])
    return [lines[0], *short.split("\n")[:-1], short.split("\n")[-1] + ("" if short == text else " …")]
