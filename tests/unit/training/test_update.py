"""What an update does with an objective's wishes:
a correction needs the trainer's own old log-probs, an empty mini-batch no step."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tepo.config.compose import compose
from tepo.errors import RunFailed
from tepo.objectives import load_objective
from tepo.objectives.correction import correction_weights
from tepo.policy.fused import linear_statistics
from tepo.policy.packing import pack
from tepo.policy.token_statistics import hidden_states, output_matrix, reference_logprobs
from tepo.sampling.gap import GapAlarm
from tepo.training.flat_rollout import FlatRollout, Group, even_chunks
from tepo.training.loop import train, update
from tepo.training.recorder import Recorder
from tepo.training.run_folder import RunFolder
from tepo.training.torch_engine import TorchEngine
from tepo.training.update import Updater
from tests.invariants.pipeline import LIMIT, WHOLE, KeepingEngine, configuration, make_groups, make_policy
from tests.invariants.rows import changed
from tests.unit.training.small import small

GROUPS = make_groups()


def updater_of(source: Any, engine: Any, budget: int = WHOLE) -> Updater:
    config = configuration(len(GROUPS))
    config = replace(config, engine=replace(config.engine, micro_batch_tokens=budget))
    return Updater(
        config,
        load_objective(source),
        engine,
        GapAlarm(1e9, temperature=1.0, sampler_dtype="float32", trainer_dtype="float32"),
    )


def truncated(groups: list[Group]) -> list[Group]:
    """The same groups, every response cut at the length limit."""
    return [
        replace(group, responses=[replace(response, finished=False) for response in group.responses])
        for group in groups
    ]


def test_the_correction_compares_the_trainer_with_the_sampler() -> None:
    """With the sampler's log-probs as the old ones, every weight would be 1."""
    source = changed("grpo_dapo", {"correction": {"kind": "truncated", "cap": 10.0}})
    updater, rollout = (
        updater_of(source, KeepingEngine(make_policy(torch.float32))),
        FlatRollout(GROUPS, torch.device("cpu")),
    )
    update(updater, rollout, 1, Recorder())
    weights = correction_weights(
        updater.objective.correction, rollout.batch(torch.zeros_like(rollout.sampler_logprobs), LIMIT)
    )  # type: ignore[arg-type]
    assert weights.std() > 0.1


@pytest.mark.parametrize("budget", [WHOLE, 20])
def test_a_mini_batch_with_nothing_in_the_loss_moves_nothing(budget: int) -> None:
    """AdamW's momentum would move the weights on a gradient of zeros."""
    engine = TorchEngine(make_policy(torch.float32), configuration(len(GROUPS)).train)
    updater = updater_of(changed("grpo_dapo", {"overlong": {"kind": "filter"}}), engine, budget)
    cpu = torch.device("cpu")
    assert update(updater, FlatRollout(GROUPS, cpu), 1, Recorder())["actor/skipped"] == 0
    before = {name: value.clone() for name, value in engine.weights().items()}
    metrics = update(updater, FlatRollout(truncated(GROUPS), cpu), 2, Recorder())
    assert (metrics["actor/skipped"], metrics["actor/grad_norm"], metrics["actor/pg_loss"]) == (1, 0, 0)
    assert all(torch.equal(value, before[name]) for name, value in engine.weights().items())
    update(updater, FlatRollout(GROUPS, cpu), 3, Recorder())
    assert not all(torch.equal(value, before[name]) for name, value in engine.weights().items())


def test_the_same_weights_in_bfloat16_have_no_entropy_change() -> None:
    """The old distribution is made from logits as wide as the current ones:
    rounded to bfloat16, every entropy would seem to have changed."""
    model = make_policy(torch.float32).to(torch.bfloat16)
    packed = pack([(group.prompt.tokens, [response.tokens for response in group.responses]) for group in GROUPS])
    with torch.no_grad():
        old = reference_logprobs(model, packed)
        entropies = linear_statistics(hidden_states(model, packed), output_matrix(model), packed.targets)[1]
    assert entropies is not None
    torch.testing.assert_close(-(old.exp() * old).sum(1), entropies, rtol=0, atol=1e-6)


READ = [(name, "reward") for name in ("tepo", "dr_grpo", "steer", "gtpo_v2")]
READ += [("dr_grpo", "log-prob"), ("steer", "log-prob"), ("steer", "entropy"), ("gtpo_v2", "entropy")]


@pytest.mark.parametrize(("name", "broken"), READ)
def test_a_nan_stops_the_run_before_the_weights_move(name: str, broken: str) -> None:
    """In one reward, or in what the sampler reports of one token and the row reads."""
    engine = TorchEngine(make_policy(torch.float32), configuration(len(GROUPS)).train)
    updater, rollout = updater_of(name, engine), FlatRollout(GROUPS, torch.device("cpu"))
    assert rollout.old_entropies is not None
    if broken == "reward":
        rollout.rewards[0] = torch.nan
    else:
        (rollout.sampler_logprobs if broken == "log-prob" else rollout.old_entropies)[0] = torch.nan
    before = {key: value.clone() for key, value in engine.weights().items()}
    with pytest.raises(RunFailed, match="step 1: the loss is nan"):
        update(updater, rollout, 1, Recorder())
    assert all(torch.equal(value, before[key]) for key, value in engine.weights().items())


@pytest.mark.parametrize(("size", "expected"), [(16, [16, 16, 16, 16]), (24, [21, 21, 22]), (100, [64]), (1, [1] * 64)])
def test_mini_batches_are_even_and_no_larger_than_asked(size: int, expected: list[int]) -> None:
    settings = compose([f"train.mini_batch_prompts={size}"]).train
    assert [len(part) for part in even_chunks(settings.prompts_per_step, settings.mini_batches)] == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_before_the_first_update_nothing_is_clipped(dtype: str, tmp_path: Path) -> None:
    """In bfloat16 sampler and trainer differ by more than GSPO's bounds of 3e-4 and 4e-4:
    with the sampler's log-probs a third was clipped."""
    train(
        config := small(
            tmp_path,
            "objective=gspo",
            f"model.dtype={dtype}",
            "train.steps=1",
            "train.epochs=1",
            "train.mini_batch_prompts=8",
        )
    )
    (row,) = RunFolder.of(config).metrics()
    assert row["actor/pg_clipfrac"] == 0
    assert row["actor/ratio_max"] == pytest.approx(1, abs=1e-5)
