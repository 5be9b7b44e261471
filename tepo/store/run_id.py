"""The identity of a run: an id made of everything that can change its result. And is the run in a folder the one that
the folder is called after? One answer for everybody who reads a run.

`config.json` has what the run was made of, of which the name is the hash, and the manifest has a digest of that file.
Who edits the file and puts its new digest there is not found out.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tepo import __version__
from tepo.common.errors import UserError
from tepo.common.files import content_hash, file_digest, parse_json
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
    "data": "name base kind tasks problems fields columns exclude_contaminated held_out benchmarks "
    "max_prompt_tokens max_new_tokens",
    "model": "name path revision teacher gradient_checkpointing",
    # the objective holds the exact KL
    # the last is covered with what it chooses by
    "train": "checkpoint_every token_dump_every validate_every validation_problems exact_kl keep_best",
    "grader": "workers recycle",
    "sampler": "servers margin tensor_parallel memory_fraction max_rows",
    "engine": "micro_batch_tokens zero_stage kernels",
}  # labels, paths, what `identity` covers by its content, and what changes no result but for rounding (the layout);
# None: the section


def identity(config: RunConfig, on_record: bool = False) -> dict[str, Any]:
    """Everything but the seed that can change the result of a run: weights, problems and Python files of a user's own
    by their content, not by name or path. on_record: of models on record those that records name, whatever is here.
    Raises UserError for a model folder or a file of problems that is missing or broken. Downloads nothing."""
    base, data = base_fingerprint(config.model.path, config.model.revision, on_record), config.data
    problems: Any = generated(data)
    if problems is None:
        from tepo.problems.training_sets import training_fingerprint

        assert data.problems
        problems = training_fingerprint(
            data.problems, exclude_contaminated=data.exclude_contaminated, fields=data.fields, columns=data.columns
        )
        problems = [problems, "without", data.held_out] if data.held_out else problems
    parts = settings(config)
    if teacher := config.model.teacher:
        parts["model"]["teacher"] = base_fingerprint(teacher, None, on_record)
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
    parts["engine"]["offload"] = False  # the layout too; it was not always, and ids stay
    if config.train.keep_best:
        parts["train"]["keep_best"] = [config.train.validate_every, validated(config)]
    parts["objective"] = row_of(parts["objective"]).formula.digest
    if rewards := parts["data"].get("reward"):  # by what is in the files; a name is a label, the order is that of a sum
        parts["data"]["reward"] = [
            [content_hash(reward["text"]) if reward["text"] else reward["file"], reward["function"], reward["weight"]]
            for reward in rewards.values()
        ]
    return parts


def validated(config: RunConfig) -> list[list[str]]:
    """The generated benchmarks that a run is validated on, by name and content. Problems held out of a set are told by
    `identity` as it is."""
    if config.data.kind == "problems":
        return []
    loaded = [benchmark for benchmark in map(load_benchmark, config.data.benchmarks) if benchmark.procedural]
    return [
        [benchmark.name, benchmark.validation(config.train.validation_problems).fingerprint] for benchmark in loaded
    ]


def run_id(config: RunConfig, recipe: str | None = None) -> str:
    """Twelve hex digits; equal exactly when two configurations would train the same weights. `recipe`: the hash of its
    identity, where the caller has it for many seeds."""
    return content_hash([recipe or content_hash(identity(config)), config.seed])


def base_id(path: str, revision: str | None, on_record: bool = False) -> str:
    """Under which a store keeps the measurements of an untrained policy. Hashed, because the fingerprint of a hub model
    holds its name, slash and all. on_record: as for `base_fingerprint`."""
    return f"base-{content_hash(base_fingerprint(path, revision, on_record))}"


DIGEST = "config_sha256"  # in a manifest: of `config.json` as it then was, with the labels and paths that no id covers
_OTHER = "the stored configuration does not fit the name of the folder"
AGAIN = "copy the run again, or move the folder away and let it be trained anew"  # what to do about half a run


def read_config(path: Path) -> dict[str, Any]:
    """Content of a `config.json`. Raises UserError unless it is complete and as this version writes it."""
    try:
        config = parse_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError("the run has no configuration: half copied?", where=str(path), fix=AGAIN) from None
    except ValueError:
        what = "the run's configuration is not JSON: half copied?"
        raise UserError(what, where=str(path), fix=AGAIN) from None
    if not isinstance(config, dict) or config.get("recipe") != RECIPE or not is_configuration(config.get("full")):
        document = config if isinstance(config, dict) else {}
        version, recipe = document.get("tepo", "unknown"), document.get("recipe")
        what = f"the run was written by another version of tepo ({version})"
        if version == __version__:
            what = f"the run was trained by recipe {recipe}, and tepo {version} here has recipe {RECIPE}"
        if (version, recipe) == (__version__, RECIPE):
            what = "the run's configuration is damaged: parts are missing"
            raise UserError(what, where=str(path), fix=AGAIN)
        raise UserError(what, where=str(path), fix="use the commit that wrote it, or another --store")
    return config


def is_configuration(full: Any) -> bool:
    """Tell whether a stored configuration has the parts that commands show, in their types."""
    if not isinstance(full, dict) or type(full.get("seed")) is not int:
        return False
    required_keys = (("objective", "name", str), ("model", "name", str), ("data", "name", str), ("train", "steps", int))
    return all(
        isinstance(full.get(group), dict) and isinstance(full[group].get(key), kind)
        for group, key, kind in required_keys
    )


def check_identity(file: Path, stored: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
    """Raise UserError where the folder of a `config.json` holds a run by another recipe, a run of another name, or one
    whose configuration was changed. Model and problems count as recorded. stored, manifest: content of both files."""
    name, folder = file.parent.name, str(file.parent)
    if manifest and (recipe := manifest.get("recipe")) != RECIPE:
        what = f"the run was made by recipe {recipe}, and this is recipe {RECIPE}"
        raise UserError(what, where=folder, fix="use the commit that made it, or another --store")
    for recorded_name in (manifest.get("id"), stored.get("id")):
        if recorded_name is not None and recorded_name != name:
            what = f"{_OTHER}: it is that of run {recorded_name}, copied under another name?"
            raise UserError(what, where=str(file), fix=f"call the folder {recorded_name}, or move it out of the store")
    recorded = {key: stored.get(key) for key in ("recipe", "base", "problems", "config")}
    name_matches = content_hash([content_hash(recorded), stored.get("seed")]) == name
    if not name_matches or manifest.get(DIGEST) not in (None, file_digest(file)):
        raise UserError(f"{_OTHER}: edited, or damaged?", where=str(file), fix=AGAIN)
