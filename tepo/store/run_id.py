"""The identity of a run: an id made of everything that can change its result."""

from typing import Any

from tepo.common.files import content_hash
from tepo.config.compose import to_dict
from tepo.config.run_config import DataConfig, RunConfig
from tepo.formula.row import row_of
from tepo.policy.model.model_location import base_fingerprint
from tepo.problems.benchmarks import load_benchmark

RECIPE = 3  # raised when a change of the code changes what a configuration trains
_UNHASHED = {
    "seed": None,
    "store": None,
    "tracking": None,
    "data": "name base kind tasks problems fields exclude_contaminated held_out benchmarks "
    "max_prompt_tokens max_new_tokens",
    "model": "name path revision teacher gradient_checkpointing",
    # the objective holds the exact KL
    # the last is covered with what it chooses by
    "train": "checkpoint_every token_dump_every validate_every validation_problems exact_kl keep_best",
    "grader": "workers recycle",
    "sampler": "servers margin tensor_parallel memory_fraction max_rows",
    "engine": "micro_batch_tokens zero_stage",
}  # labels, paths, what `identity` covers by its content, and what changes no result but for rounding (the layout);
# None: the section


def identity(config: RunConfig) -> dict[str, Any]:
    """Everything but the seed that can change the result of a run: weights, problems and Python files of a user's own
    by their content, not by name or path. Raises UserError for a model folder or a file of problems that is missing or
    broken. Downloads nothing."""
    base, data = base_fingerprint(config.model.path, config.model.revision), config.data
    problems: Any = generated(data)
    if problems is None:
        from tepo.problems.training_sets import training_fingerprint

        assert data.problems
        problems = training_fingerprint(
            data.problems, exclude_contaminated=data.exclude_contaminated, fields=data.fields
        )
        problems = [problems, "without", data.held_out] if data.held_out else problems
    parts = settings(config)
    if teacher := config.model.teacher:
        parts["model"]["teacher"] = base_fingerprint(teacher, None)
    return {"recipe": RECIPE, "base": base, "problems": problems, "config": parts}


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
    if config.train.keep_best:
        parts["train"]["keep_best"] = [config.train.validate_every, validated(config)]
    parts["objective"] = row_of(parts["objective"]).formula.digest
    if rewards := parts["data"].get("reward"):  # by what is in the files; a name is a label, the order is that of a sum
        parts["data"]["reward"] = [
            [content_hash(one["text"]) if one["text"] else one["file"], one["function"], one["weight"]]
            for one in rewards.values()
        ]
    return parts


def validated(config: RunConfig) -> list[list[str]]:
    """The generated benchmarks that a run is validated on, by name and content. Problems held out of a set are told by
    `identity` as it is."""
    if config.data.kind == "problems":
        return []
    loaded = [one for one in map(load_benchmark, config.data.benchmarks) if one.procedural]
    return [[one.name, one.validation(config.train.validation_problems).fingerprint] for one in loaded]


def run_id(config: RunConfig, recipe: str | None = None) -> str:
    """Twelve hex digits; equal exactly when two configurations would train the same weights. `recipe`: the hash of its
    identity, where the caller has it for many seeds."""
    return content_hash([recipe or content_hash(identity(config)), config.seed])


def base_id(path: str, revision: str | None) -> str:
    """Under which a store keeps the measurements of an untrained policy. Hashed, because the fingerprint of a hub model
    holds its name, slash and all."""
    return f"base-{content_hash(base_fingerprint(path, revision))}"
