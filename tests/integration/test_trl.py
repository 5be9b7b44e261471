import math
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
import torch

from tepo.common.errors import UserError
from tepo.objectives import Objective, load_objective
from tests.support.commands import ranks


@pytest.fixture(scope="module")
def trl_run() -> ModuleType:
    """Imported here: TRL takes seconds, and every worker collects this file."""
    return import_module("tests.integration.trl_run")


TRLS_EPS = 1e-4  # what TRL adds to a group's deviation

ONE_BATCH = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
BY_SEQUENCE = {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
SAME: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # our row, what is changed in it, TRL's settings
    "GRPO": ("grpo", {}, {"loss_type": "grpo", "beta": 0.04, "use_bias_correction_kl": False}),
    "GRPO, TRL's KL": ("grpo", {"kl": "w*k3(logp - logp_initial)"}, {"loss_type": "grpo", "beta": 0.04}),
    "Dr.GRPO": ("dr_grpo", {}, {"loss_type": "dr_grpo", "scale_rewards": "none"}),
    "DAPO": ("grpo_dapo", {}, {"loss_type": "dapo", "epsilon_high": 0.28}),
    "BNPO in one micro-batch": ("grpo_dapo", {}, {"loss_type": "bnpo", "epsilon_high": 0.28, **ONE_BATCH}),
    "GSPO": ("gspo", {}, {"loss_type": "grpo", **BY_SEQUENCE}),
    "CISPO": ("cispo", {}, {"loss_type": "cispo", "epsilon_high": 1.28}),
    "SAPO": ("sapo", {}, {"loss_type": "sapo"}),
}


def changed(name: str, changes: dict[str, Any]) -> Objective:
    """A row with TRL's epsilon and other changes."""
    eps = {"eps": TRLS_EPS} if "eps" in load_objective(name).read else {}
    return load_objective(name, eps | changes)


def losses(watch: Any) -> torch.Tensor:
    return torch.tensor([row["loss"] for row in watch.logs if "loss" in row])


def assert_same(ours: Any, theirs: Any) -> None:
    """Values and gradients of all optimiser steps."""
    assert len(ours.gradients) == len(theirs.gradients) == 4
    torch.testing.assert_close(losses(ours), losses(theirs), rtol=0, atol=3e-7)
    assert max(float(other.abs().max()) for other in theirs.gradients[1::2]) > 0.01  # with ratios other than 1
    for mine, other in zip(ours.gradients, theirs.gradients, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=3e-7 * max(1.0, float(other.abs().max())))


@pytest.mark.parametrize("method", SAME)
def test_same_as_trl(method, tmp_path, trl_run):
    """Four steps of two micro-batches, every second one away from the policy that sampled: the clip acts."""
    row, changes, args = SAME[method]
    rate = {"learning_rate": 1e-6 if method == "GSPO" else 1e-4}  # its bounds would hold every response
    theirs, _ = trl_run.train(trl_run.settings(tmp_path, **args, **rate))
    ours, _ = trl_run.train(trl_run.settings(tmp_path, **rate), changed(row, changes))
    assert_same(ours, theirs)
    if method in ("GRPO", "DAPO", "GSPO"):
        assert max(row.get("clip_ratio/region_mean", 0) for row in theirs.logs) > 0.01


def test_trains_and_logs_by_trls_names_too(tmp_path, trl_run):
    from tepo.integrations.trl import ALIASES

    settings = trl_run.settings(tmp_path, learning_rate=1e-3, per_device_eval_batch_size=8)
    watch, trainer = trl_run.train(settings, load_objective("tepo"))
    steps = watch.logs[:-1]
    assert all(math.isfinite(step["loss"]) and step["grad_norm"] > 0 for step in steps)
    for alias, name in ALIASES.items():
        assert [step[alias] for step in steps] == [step[name] for step in steps]
    assert steps[0]["actor/entropy_change"] == pytest.approx(0, abs=1e-6)
    assert steps[0]["actor/kl_tokens"] == 0
    assert steps[1]["actor/kl_tokens"] > 0
    logged = trainer.evaluate(trainer.train_dataset.select(range(2)))  # a mini-batch of its own
    assert math.isfinite(logged["eval_loss"])
    assert trainer._window is None


def test_unscored_completions_count_in_no_group(tmp_path, trl_run):
    """TRL's own rule: a completion that no reward function scores has advantage 0 and no part in the baseline."""

    def some(completions, **_):
        return [None if number % 4 == 1 else float(number % 3) for number in range(len(completions))]

    args = {"loss_type": "dapo", "epsilon_high": 0.28}
    theirs, _ = trl_run.train(trl_run.settings(tmp_path, **args), reward_funcs=some)
    ours, _ = trl_run.train(trl_run.settings(tmp_path), changed("grpo_dapo", {}), reward_funcs=some)
    assert_same(ours, theirs)


CORRECTED = {  # weights of ratios exp(-off), 1, exp(off) in turn, of a sampler that is so far from the policy
    "tis": lambda ratio: ratio.clamp(0.5, 2),
    "trm": lambda ratio: torch.ones_like(ratio),
}


@pytest.mark.filterwarnings("ignore:.*a rollout has one optimiser step")
@pytest.mark.parametrize("row", CORRECTED)
def test_a_correction_with_one_update_a_rollout(row, tmp_path, trl_run):
    """TRL leaves the old log-probs out: the weights are of the policy that sampled, not of log-probs of 0."""
    watch, trainer = trl_run.train(
        trl_run.settings(tmp_path, num_iterations=1, max_steps=1), row, rollout_func=trl_run.sampled
    )
    masks = torch.cat([part["completion_mask"] for part in trainer._buffered_inputs])
    places = torch.arange(masks.shape[1]).expand(masks.shape)[masks.bool()]
    expected = CORRECTED[row]((trl_run.SAMPLED_OFF * (places % 3 - 1)).double().exp()).mean()
    assert watch.logs[0]["actor/correction_dropped"] == 0
    assert watch.logs[0]["actor/correction_weight"] == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"beta": 0.1}, "beta"),
        ({"top_p": 0.9, "top_k": 20}, "with top_k, top_p completions come from another distribution"),
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 3, "num_generations": 2}, "optimiser step"),
    ],
)
def test_settings_that_would_be_ignored(changes, what, tmp_path, trl_run):
    with pytest.raises(UserError, match=what):
        trl_run.ObjectiveTrainer(objective="tepo", model="never loaded", args=trl_run.settings(tmp_path, **changes))


@pytest.mark.disaster
def test_processes_change_nothing(tmp_path, trl_run):
    """Two processes with one micro-batch each and one process with two, on the same completions."""
    for rank in ranks(trl_run.train_shared, tmp_path):
        rank.end()
    for row in trl_run.SHARED:
        one = trl_run.with_fixed_completions(tmp_path, row, gradient_accumulation_steps=2)
        two = torch.load(tmp_path / f"{row}.pt")
        torch.testing.assert_close(losses(one), two["losses"], rtol=1e-6, atol=1e-6)
        for mine, other in zip(one.gradients, two["gradients"], strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=1e-6 * max(1.0, float(mine.abs().max())))
