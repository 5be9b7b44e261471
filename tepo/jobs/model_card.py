"""The model card of a trained run: `README.md` beside its last weights, as the hub shows it."""

import json
from collections.abc import Collection, Iterator
from dataclasses import fields, replace
from pathlib import Path
from shlex import quote
from typing import Any

import yaml

from tepo.common import provenance
from tepo.common.errors import UserError
from tepo.common.files import write_atomic
from tepo.common.plugin_files import foreign_files
from tepo.common.schema import Location, read
from tepo.common.text import counted
from tepo.config.compose import compose, options, to_dict
from tepo.config.differences import typed
from tepo.config.own_reward import VERDICT, rewarded
from tepo.config.run_config import GRADER, RunConfig
from tepo.evaluation.results import read_result
from tepo.formula.row import present_row, row_of
from tepo.policy.model.model_location import is_gone, on_hub, resolve
from tepo.problems.data_reader import SYSTEM
from tepo.problems.training_sets import hub_sets
from tepo.store.checkpoint_files import ADAPTER
from tepo.store.evaluation_result import Result
from tepo.store.run_folder import RunFolder, final_model

CARD = "README.md"
_PAPERS = {  # the objectives that these two papers define, by how their names begin
    "tepo": ("TEPO", "https://arxiv.org/abs/2604.12736"),
    "gtpo": ("GTPO / GRPO-S", "https://arxiv.org/abs/2508.04349"),
    "grpo_s": ("GTPO / GRPO-S", "https://arxiv.org/abs/2508.04349"),
}


def write_card(run: RunFolder, own: Collection[str] = ()) -> Path:
    """Write the card of a run beside its last weights, from what its folder holds now. No file that a checkpoint lists
    is touched. own: texts of Python files that may be executed beside those of TEPO_PATH. Raises UserError for a run
    without a complete checkpoint."""
    card = final_model(run.path) / CARD
    write_atomic(card, card_of(run, own))
    return card


def config_of(run: RunFolder) -> RunConfig:
    """The configuration that a run keeps. Raises UserError for one that is none."""
    full = run.config()["full"]
    sections = {part.name: full.get(part.name, {}) for part in fields(RunConfig)}
    return read(RunConfig, sections, Location(lambda _: str(run.config_file)))


def card_of(run: RunFolder, own: Collection[str] = ()) -> str:
    """The card as text."""
    from huggingface_hub import EvalResult, ModelCardData

    config = config_of(run)
    results: list[Result] = []
    unchecked: list[str] = []
    for name in run.measured():
        try:
            results += filter(None, [read_result(run.evaluations / name)])
        except UserError:
            unchecked.append(name)
    lines = ["| benchmark | problems | samples | accuracy % | 95% interval |", "|---|---|---|---|---|"]
    for result in results:
        ends = "–" if result.interval is None else " – ".join(f"{100 * end:.1f}" for end in result.interval)
        lines.append(
            f"| {result.benchmark} | {result.problems} | {result.samples} | {100 * result.accuracy:.1f} | {ends} |"
        )
    lines += [f"| {name} | – | – | – | – |" for name in unchecked]
    for result in results:
        if draws := result.task.get("draws"):
            settings = ", ".join(f"{key} {value:g}" for key, value in draws.items())
            lines += ["", f"Responses to `{result.benchmark}` were drawn with {settings}."]
    lines += ["", "A dash: its samples are gone, or give other numbers."] if unchecked else []
    lines += ["", "Intervals are over problems; another training seed is not in them."]
    keys = ("tepo", "commit", "python", *provenance.PACKAGES, "cpu")
    session_lines = [
        ", ".join(f"{key} {session[key]}" for key in keys if session.get(key))
        for session in provenance.sessions(run.path)
    ]
    versions = "\n".join(f"- {line}" for line in dict.fromkeys(session_lines)) or "Not on record."
    model, train, base = config.model, config.train, config.model.path
    licence, ending, best = base_licence(base), run.ending(), run.best()
    title = f"{config.objective['name']} on {model.name}, seed {config.seed}"
    measured = [
        EvalResult(
            task_type="text-generation",
            dataset_type=result.benchmark,
            dataset_name=result.benchmark,
            metric_type="accuracy",
            metric_name=f"accuracy %, mean of {counted(result.samples, 'sample')}",
            metric_value=round(100 * result.accuracy, 1),
        )
        for result in results
    ]
    front = ModelCardData(
        library_name="transformers",
        tags=["reinforcement-learning", "tepo"],
        license=licence or None,
        base_model=base if on_hub(base) else None,
        datasets=hub_sets(config.data) or None,
        model_name=title if measured else None,
        eval_results=measured or None,
    )
    adapters = (
        f" Trained were LoRA's adapters of rank {model.lora_rank} and alpha {model.lora_alpha:g} on all linear layers "
        f"but the output matrix. These weights have them merged; `{ADAPTER}/` holds them apart, in peft's format."
    )
    parts = [
        f"---\n{front.to_yaml()}\n---",
        f"# {title}",
        f"Trained by reinforcement learning with verifiable rewards with tepo, as run `{run.path.name}`: "
        f"{counted(len(run.metrics()), 'step')}"
        + (f"; training ended early with {ending}" if ending else "")
        + "."
        + (f" These weights are those after {best}." if best else "")
        + (adapters if model.lora_rank else ""),
        _objective(run, config, own),
        f"## Data\n\n`{config.data.name}` ({config.data.kind}), {train.prompts_per_step} prompts x "
        f"{train.samples_per_prompt} samples a step, at most {counted(train.max_new_tokens, 'token')} a response. "
        f"Rewarded: {rewarded(config.data) or VERDICT}.{_system(run)}",
        "## Benchmarks\n\n" + ("\n".join(lines) if results or unchecked else "Not measured."),
        f"## Command\n\n```\n{command_of(config, run)}\n```",
        f"## Versions\n\n{versions}",
        f"## Licence\n\nThe weights come from `{base}`, whose licence is "
        + (f"{licence}." if licence else "not stated where it was loaded from: see its own card."),
    ]
    return "\n\n".join(parts) + "\n"


def _system(run: RunFolder) -> str:
    """The system prompt that the model expects."""
    if SYSTEM not in config_of(run).data.fields:
        return ""
    quoted = "\n".join(f"> {line}" for line in run.system().split("\n"))
    return f" All with this system prompt:\n\n{quoted}" if run.system() else " Each with the system prompt of its row."


def base_licence(path: str) -> str:
    """Licence that the card of a base names; empty where no card is on this machine, or it names none."""
    from huggingface_hub import metadata_load, try_to_load_from_cache

    if path.startswith("package:"):
        return "apache-2.0"  # ours
    if is_gone(path):
        return ""
    cached = try_to_load_from_cache(path, CARD) if on_hub(path) else str(Path(resolve(path)) / CARD)
    try:
        stated = metadata_load(cached) if isinstance(cached, str) and Path(cached).is_file() else None
    except (ValueError, yaml.YAMLError):  # no UTF-8, no mapping, no YAML
        return ""
    return str((stated or {}).get("license") or "")


def _objective(run: RunFolder, config: RunConfig, own_texts: Collection[str]) -> str:
    """Formula and constants; of an objective whose Python is not the reader's own, and so is not executed,
    what the present card says."""
    name = str(config.objective["name"])
    if foreign_files(config.objective, own_texts):
        card = final_model(run.path) / CARD
        text = card.read_text(encoding="utf-8") if card.is_file() else ""
        _, heading, rest = text.partition("## Objective\n")
        section = heading + rest.partition("\n\n## ")[0]
        return section or f"## Objective\n\n`{name}`: its Python is in the run's `{run.config_file.name}`."
    trained, present = row_of(config.objective), present_row(name)
    about = present.about if present else ""
    lines = "\n".join(f"{line}: {text}" for line, text in trained.lines.items())
    constants = ", ".join(f"`{key}` = {constant.value:g}" for key, constant in trained.constants.items())
    parts = [
        f"## Objective\n\n`{name}`" + (f": {about}" if about else ""),
        *(f"Paper: [{paper}]({address})." for start, (paper, address) in _PAPERS.items() if name.startswith(start)),
        f"```yaml\n{lines}\naverage: {trained.average}\n```",
        f"Constants: {constants}. `tepo explain {name}` says what each name is and where a value comes from.",
    ]
    return "\n\n".join(parts)


def command_of(config: RunConfig, run: RunFolder) -> str:
    """Command that trains this run, checked by composing it; where there is none, the file of its configuration."""
    model = config.model.name if config.model.name in options("model") else config.model.path
    data = config.data.name if config.data.name in options("data") else config.data.problems
    words = [f"objective={config.objective['name']}", f"scale={config.scale}", f"model={model}", f"data={data}"]
    try:
        words.append(f"seed={config.seed}")
        plain, run_leaves = (dict(_leaves(to_dict(configuration))) for configuration in (compose(words), config))
        words += [f"{typed(key)}={value}" for key, value in run_leaves.items() if plain.get(key) != value]
        trained = RunFolder.of(replace(compose(words), store=config.store))
    except UserError:  # such as: its file of problems has been moved
        trained = None
    if trained is None or trained.path.name != run.path.name:
        return f"# its configuration is in {run.config_file.name}"
    return " ".join(["tepo train", *map(quote, words)])


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys of the configuration, with their values as Hydra reads them, but for those that do not change
    training."""
    apart = {"store", "tracking", "scale", "objective.name", "model.name", "data.name", "data.problems"}
    apart.add("sampler.servers")
    if key == "data.reward.":
        rewards = {name: _reward(settings) for name, settings in value.items()}
        yield key[:-1], "{" + ", ".join(f"{name}: {text}" for name, text in rewards.items()) + "}"
    elif isinstance(value, dict):
        for name, inner in value.items():
            if f"{key}{name}" not in apart:
                yield from _leaves(inner, f"{key}{name}.")
    else:
        yield key[:-1], _word(value)


def _reward(settings: dict[str, Any]) -> str:
    """A reward as its file; its text is read from there again."""
    if settings["file"] == GRADER:
        return f"{{file: {GRADER}, weight: {settings['weight']}}}"
    return f"{{file: {json.dumps(settings['file'])}, function: {settings['function']}, weight: {settings['weight']}}}"


def _word(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_word, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
