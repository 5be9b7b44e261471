"""The configuration of one run, and what it would do. Imports torch to check the objective, but nothing that trains."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tepo.common.text import counted
from tepo.config.compose import compose, to_dict
from tepo.config.run_config import RunConfig
from tepo.store.run_folder import RunFolder
from tepo.training.preflight import check_settings


def compose_run(overrides: Sequence[str], store: Path | None) -> RunConfig:
    """The configuration of `tepo train` and `tepo base`.

    The store does not go through Hydra, whose grammar has no ü, comma or bracket.
    """
    config = compose(overrides)
    return replace(config, store=str(store)) if store else config


def describe_run(config: RunConfig) -> None:
    """The resolved configuration and what a run would do."""
    import yaml

    check_settings(config)
    folder, train_config = RunFolder.of(config), config.train
    shown = to_dict(config)
    if "kinds" in shown["objective"]:
        shown["objective"]["kinds"] = list(shown["objective"]["kinds"])  # the files, not what is in them
    print(yaml.safe_dump(_plain(shown), sort_keys=False, allow_unicode=True, width=math.inf), end="")
    steps, updates = folder.checkpoints(), train_config.epochs * train_config.mini_batches
    done = f", {counted(steps[-1], 'step')} done" if steps else ""
    print(
        f"# plan: run {folder.path.name} in {folder.path}\n"
        f"# {counted(train_config.steps, 'step')} x {counted(train_config.prompts_per_step, 'prompt')} x "
        f"{counted(train_config.samples_per_prompt, 'sample')}, {counted(updates, 'update')} each; "
        f"{folder.outcome()}{done}"
    )
    if config.scale != "laptop":
        from tepo_cli.show_fit import show_fit

        show_fit(config)


def _plain(value: Any) -> Any:
    """Tuples as lists, for YAML."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
