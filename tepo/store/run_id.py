"""The identity of a run: an id made of everything that can change its result."""

from typing import Any

from tepo.common.files import content_hash
from tepo.config.compose import to_dict
from tepo.config.run_config import DataConfig, RunConfig
from tepo.policy.model.model_location import base_fingerprint

RECIPE = 3  # raised when a change of the code changes what a configuration trains
_UNHASHED = {
    "seed": None,
    "store": None,
    "wandb": None,
    "data": "name base kind tasks problems exclude_contaminated held_out benchmarks max_prompt_tokens max_new_tokens",
    "model": "name path revision",
    # the objective holds the estimator
    "train": "checkpoint_every token_dump_every validate_every validation_problems kl_estimator",
    "grader": "workers recycle",
    "sampler": "servers margin tensor_parallel",
}  # labels, paths, what `identity` covers by its content, and what changes no result; None: the section
# Keys that came after RECIPE 3 and change nothing at the value here: left out at it, so that older ids keep.
_NEUTRAL: dict[str, dict[str, Any]] = {
    "model": {"lora_rank": 0, "lora_alpha": 32.0},
    "train": {"adam_beta2": 0.999, "collapse_window": 0},
    "engine": {"optimizer": "adamw"},
    "data": {"reward": {}, "flip_rewards": 0.0},
    "grader": {
        "memory_mb": 1024,
        "max_chars": 2000,
        "max_depth": 40,
        "fallbacks": [],
        "relative_tolerance": 0.0,
        "absolute_tolerance": 0.0,
    },
}


def identity(config: RunConfig) -> dict[str, Any]:
    """Everything but the seed that can change the result of a run: weights, problems and Python files of a user's own
    by their content, not by name or path. Raises UserError for a model folder or a file of problems that is missing or
    broken. Downloads nothing."""
    base, data = base_fingerprint(config.model.path, config.model.revision), config.data
    problems: Any = generated(data)
    if problems is None:
        from tepo.problems.training_sets import training_fingerprint

        assert data.problems
        problems = training_fingerprint(data.problems, exclude_contaminated=data.exclude_contaminated)
        problems = [problems, "without", data.held_out] if data.held_out else problems
    return {"recipe": RECIPE, "base": base, "problems": problems, "config": settings(config)}


def generated(data: DataConfig) -> list[list[Any]] | None:
    """The tasks of generated problems with their weights; None for problems of a set or a file."""
    if data.kind != "procedural":
        return None
    return [[task, weight] for task, weight in data.tasks.items() if weight > 0]


def settings(config: RunConfig) -> dict[str, Any]:
    """The part of the `identity` that comes from the configuration itself."""
    parts = to_dict(config)
    for section, leaves in _UNHASHED.items():
        if leaves is None:
            del parts[section]
        else:
            for leaf in leaves.split():
                del parts[section][leaf]
    for section, values in _NEUTRAL.items():
        for leaf, neutral in values.items():
            if parts[section][leaf] == neutral:
                del parts[section][leaf]
    if parts["sampler"]["memory_fraction"] is None:  # the plan's, which changes no result; it once was 0.4 by default
        parts["sampler"]["memory_fraction"] = 0.4
    if parts["model"]["wrap"] == "auto" and parts["data"]["prompt"] != "raw":
        parts["model"]["wrap"] = "auto, a turn ends a response"  # which it once did not
    if "kinds" in parts["objective"]:  # Python files of a user's own
        parts["objective"]["kinds"] = sorted(map(content_hash, parts["objective"]["kinds"].values()))
    if rewards := parts["data"].get("reward"):  # by what is in the files; a name is a label, the order is that of a sum
        parts["data"]["reward"] = [
            [content_hash(one["text"]) if one["text"] else one["file"], one["function"], one["weight"]]
            for one in rewards.values()
        ]
    return parts


def run_id(config: RunConfig, recipe: str | None = None) -> str:
    """Twelve hex digits; equal exactly when two configurations would train the same weights. `recipe`: the hash of its
    identity, where the caller has it for many seeds."""
    return content_hash([recipe or content_hash(identity(config)), config.seed])


def base_id(path: str, revision: str | None) -> str:
    """Under which a store keeps the measurements of an untrained policy. Hashed, because the fingerprint of a hub model
    holds its name, slash and all."""
    return f"base-{content_hash(base_fingerprint(path, revision))}"
