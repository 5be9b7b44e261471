import dataclasses
import re
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer.main
import yaml

from tepo.config import compose
from tepo.config.run_config import RunConfig
from tepo.problems.benchmarks import Benchmark
from tepo_cli.main import app

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"
CODE = re.compile(r"`([^`]+)`")
GROUPS = {field.name for field in dataclasses.fields(RunConfig)}


@cache
def rows(title: str) -> list[list[str]]:
    """Cells of the lines of a section's table, without its head."""
    section = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    (text,) = [part for part in section if part.startswith(title)]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def names(cell: str) -> list[str]:
    """What is code in a cell, without a value."""
    return [code.partition("=")[0] for code in CODE.findall(cell)]


@pytest.mark.parametrize("title", ["TRL", "verl", "lighteval", "Hydra"])
def test_every_setting_of_ours_exists(title: str) -> None:
    known = {
        option for command in typer.main.get_command(app).commands.values()
        for part in command.params for option in part.opts
    }  # fmt: skip
    found = 0
    for row in rows(title):
        ours = CODE.findall(row[-1])
        given = [code for code in ours if "=" in code and re.split(r"[.=]", code)[0] in GROUPS and "FILE" not in code]
        chosen = [code for code in given if code.startswith("objective=")] or ["objective=grpo_dapo"]
        for objective in chosen:
            compose.compose([objective])
        for setting in [code for code in given if not code.startswith("objective=")]:
            last = chosen[0] if "=grpo" in chosen[0] else "objective=grpo_dapo"  # which the setting changes
            compose.compose([last, setting.replace("'", "")])
        for code in ours:
            if code.startswith("--"):
                assert code.split()[0] in known, code
            elif re.fullmatch(r"(?:\w+\.)+\w+", code) and not code.startswith("evals"):
                assert exists(code), code
            elif code.endswith(":") and title == "lighteval":
                assert code[:-1] in {field.name for field in dataclasses.fields(Benchmark)}, code
            else:
                continue
            found += 1
        found += len(given)
    assert found >= {"TRL": 35, "verl": 35, "lighteval": 6, "Hydra": 4}[title]


def exists(key: str) -> bool:
    if key.startswith("objective."):
        row = compose.compose(["objective=grpo_dapo"]).objective
        return key.removeprefix("objective.") in {"average", "keep", *row["constants"], *row["formula"]}
    kind: Any = RunConfig
    for name in key.split("."):
        hints = get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}
        if name not in hints:
            return key in ("data.fields.problem",)
        kind = hints[name]
    return True


@pytest.mark.slow
def test_every_field_of_trl_exists() -> None:
    """And has the default that the page says."""
    config = pytest.importorskip("trl").GRPOConfig
    default = {field.name: field.default for field in dataclasses.fields(config)}
    named = {name for row in rows("TRL") for name in names(row[0]) if not name.startswith('"')}
    assert len(named) > 35
    assert named - set(default) == {"reward_funcs"}  # an argument of the trainer, as the page says
    said = {"loss_type": "dapo", "beta": 0, "epsilon": 0.2, "epsilon_high": None, "num_iterations": 1}
    said |= {"learning_rate": 1e-6, "lr_scheduler_type": "linear", "vllm_importance_sampling_clip_max": 3}
    assert {name: default[name] for name in said} == said


def of(config: Any, key: str) -> Any:
    parts = key.split(".")
    for part in ["actor_rollout_ref", *parts] if parts[0] in ("actor", "rollout") else parts:
        config = config[part]  # an unknown key is a KeyError with its name
    return config


@pytest.mark.verl
@pytest.mark.slow
def test_every_key_of_verl_exists() -> None:
    """And has the default that the page says."""
    folder = Path(pytest.importorskip("verl").__file__).parent / "trainer" / "config"
    config = yaml.safe_load((folder / "_generated_ppo_trainer.yaml").read_text())
    named = {name for row in rows("verl") for name in names(row[0])}
    assert len(named) > 35
    for name in named:
        of(config, name)
    said = {"actor.clip_ratio_high": 0.2, "actor.clip_ratio_c": 3.0, "actor.use_kl_loss": False}
    said |= {"algorithm.adv_estimator": "gae", "actor.kl_loss_type": "low_var_kl", "actor.optim.lr": 1e-6}
    assert {key: of(config, key) for key in said} == said
