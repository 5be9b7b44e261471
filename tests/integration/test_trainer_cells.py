"""The cells of the table in docs/trainers.md, each by running the row in the trainer: its adapter, its installed peer,
and the loss, gradient and advantages of the row by hand.

Where an adapter refuses a row, what its error says to give is given, as a user would, and the row is run again."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

from tepo.common.errors import UserError
from tepo.common.randomness import derive
from tepo.integrations.trainers import in_words
from tepo.objectives import Groups, Objective, TokenBatch, load_objective, names
from tepo.objectives.testing.case import LIMIT, TabularCase, make_case
from tests.invariants.rows import covering
from tests.support.models import plain_statistics
from tests.unit.integrations.tables import PAGE, cells_of

Run = Callable[[str, dict[str, Any], dict[str, Any], dict[str, Any]], None]
READING, TOLD, ACTOR = "the reading that needs less: ", "say it here: ", "actor_rollout_ref.actor."


def outcome(name: str, run: Run) -> str:
    """What a trainer can do with a row: exact, with what its errors ask for, or no.

    run: raises UserError for a refusal and AssertionError where numbers differ; given the row, changes by key, what is
    told to the adapter, and settings of the actor."""
    changes, told, settings = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    for _ in range(4):
        try:
            run(name, changes, {key: LIMIT if one == "…" else one for key, one in told.items()}, settings)
        except UserError as error:
            fix, before = error.fix, (dict(changes), dict(told), dict(settings))
            if fix.startswith(READING):
                changes |= words(fix.removeprefix(READING))
            elif fix.startswith(TOLD):
                told |= words(fix.removeprefix(TOLD))
            elif fix.startswith(ACTOR):
                settings |= words(fix.replace(ACTOR, ""))
            if before == (changes, told, settings):
                return f"no: not given {error.what.split(' does not give ')[1]}"
        else:
            ours = [in_words(changes)] * bool(changes) + [f"{key}={value}" for key, value in told.items()]
            theirs = [f"actor.{key}={value}" for key, value in settings.items()]
            said = [f"`{' '.join(part)}`" for part in (ours, theirs) if part]
            return f"with {' and '.join(said)}" if said else "exact"
    raise AssertionError(f"{name}: no end of errors")


def words(text: str) -> dict[str, Any]:
    """`a=1 'b=k3(d)'` as typed values."""
    return {key: yaml.safe_load(value) for key, value in (part.split("=", 1) for part in shlex.split(text))}


def case_of_cells() -> TabularCase:
    """A success in each group, so that no method of ours is without a gradient."""
    case = make_case(5)
    case.rewards[7] = 1
    return case


def by_hand(row: Objective, case: TabularCase, uid: Tensor, salt: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Advantages, loss and gradient by the logits."""
    advantages = row.advantages(case.groups())
    batch = replace(case.batch(row, advantages), uid=uid)
    loss = row.loss(batch, row.prepare(batch, salt=salt)).loss
    return advantages, loss.detach(), torch.autograd.grad(loss, case.logits)[0]


def same(mine: tuple[Tensor, ...], other: tuple[Tensor, ...], tolerance: float) -> None:
    for one, two in zip(mine, other, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=tolerance * max(1.0, float(two.abs().max())))
    assert other[-1].abs().max() > tolerance


# verl -----------------------------------------------------------------------------------------------------------------
def run_verl(name: str, changes: dict[str, Any], told: dict[str, Any], settings: dict[str, Any]) -> None:
    """verl's estimator and policy loss out of its registries, and the terms of its actor by its own functions."""
    from verl.trainer.ppo.core_algos import agg_loss, get_adv_estimator_fn, get_policy_loss_fn, kl_penalty

    from tepo.integrations import verl
    from tests.integration.test_verl import actor

    case, row = case_of_cells(), load_objective(name, changes)
    registered = verl.register(name, changes, f"cell_{name}", **told)
    mask = torch.arange(case.limit) < case.lengths[:, None]

    def padded(values: Tensor) -> Tensor:
        return torch.zeros(mask.shape, dtype=values.dtype).masked_scatter(mask, values)

    rewards = torch.zeros(mask.shape, dtype=torch.float64)
    rewards[torch.arange(len(mask)), (case.lengths - 1).clamp(min=0)] = case.rewards
    index = np.array([str(group) for group in case.group_ids.tolist()], dtype=object)
    estimate = get_adv_estimator_fn(registered)
    estimated, _ = estimate(token_level_rewards=rewards, response_mask=mask, index=index, config=None)
    options = dict(settings)
    mode = options.pop("loss_agg_mode", "token-mean")
    config = actor(mode, loss_scale_factor=case.limit, **options)
    old = padded(case.chosen(case.old_logits))
    given = {"old_log_prob": old, "log_prob": padded(case.chosen(case.logits)), "advantages": estimated}
    loss, _ = get_policy_loss_fn(registered)(**given, response_mask=mask, config=config)
    if "entropy_coeff" in settings:
        loss = loss - config.entropy_coeff * agg_loss(padded(case.entropy(case.logits)), mask, mode)
    if settings.get("use_kl_loss"):
        initial = padded(case.chosen(case.initial_logits))
        kl = kl_penalty(padded(case.chosen(case.logits)), initial, config.kl_loss_type)
        loss = loss + config.kl_loss_coef * agg_loss(kl, mask, mode)
    (gradient,) = torch.autograd.grad(loss, case.logits)
    uid, salt = torch.arange(len(mask)), derive(config.data_loader_seed, "objective", 0)
    same((estimated[mask], loss.detach(), gradient), by_hand(row, case, uid, salt), 1e-9)


# prime-rl -------------------------------------------------------------------------------------------------------------
def run_prime_rl(name: str, changes: dict[str, Any], told: dict[str, Any], settings: dict[str, Any]) -> None:
    """The loss of one response after the other over all tokens, and the advantages of one group after the other.

    prime-rl does not install on a CPU: `LossInputs` has the fields of its 0.8."""
    from tepo.integrations.prime_rl import advantages, loss
    from tests.unit.integrations.test_trainers import LossInputs

    case, row = case_of_cells(), load_objective(name, changes)
    case.sampler_logits = case.old_logits  # the policy that sampled is the old one, by the sampler's log-probs
    old, made = case.chosen(case.old_logits), torch.zeros(len(case.tokens), dtype=torch.float64)
    for group in case.group_ids.unique():
        mine = ((case.group_ids == group) & (case.lengths > 0)).nonzero()[:, 0]
        given = {key: value for key, value in told.items() if key != "lengths"}
        if "lengths" in told:
            given["lengths"] = case.lengths[mine].tolist()
        found = advantages(case.rewards[mine].tolist(), name, changes, **given)
        for sequence, advantage in zip(mine.tolist(), found, strict=True):
            made[case.offsets[sequence] : case.offsets[sequence + 1]] = advantage
    total = torch.zeros((), dtype=torch.float64)
    for begin, end in zip(case.offsets, case.offsets[1:], strict=False):
        part = torch.arange(len(case.tokens))
        mask = (part >= begin) & (part < end)
        total = total + loss(LossInputs(case.chosen(case.logits), old, None, made, mask), name, changes).loss
    total = total / len(case.tokens)
    (gradient,) = torch.autograd.grad(total, case.logits)
    same((made, total.detach(), gradient), by_hand(row, without_empty(case), case.uid[case.lengths > 0]), 1e-9)


def without_empty(case: TabularCase) -> TabularCase:
    """The case without its responses of no token, whose rewards prime-rl's groups here do not have."""
    kept = case.lengths > 0
    chosen = {key: getattr(case, key)[kept] for key in ("lengths", "rewards", "group_ids", "finished", "uid")}
    return TabularCase(**{**vars(case), **chosen})


# TRL ------------------------------------------------------------------------------------------------------------------
def run_trl(folder: Path) -> Run:
    """Two optimiser steps of a real training, of which the second is away from the policy that sampled."""

    def run(name: str, changes: dict[str, Any], told: dict[str, Any], settings: dict[str, Any]) -> None:
        from tests.integration import trl_run

        row = load_objective(name, changes)
        rate = 1e-5 if name in ("gspo", "gspo_token", "luspo") else 1e-3  # their bounds would hold every response
        steps: list[tuple[Tensor, Tensor]] = []

        class Recomputed(trl_run.Watch):
            def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> Any:
                found = torch.cat([part.grad.flatten() for part in model.parameters() if part.grad is not None])
                initial = trl_run.AutoModelForCausalLM.from_pretrained(trl_run.BASE, dtype=torch.float64)
                expected = trl_gradient(row, self.trainer, model, initial, state.global_step)
                steps.append((found.clone(), expected))
                return control

        args = trl_run.settings(folder, max_steps=2, learning_rate=rate, optim="sgd")
        trl_run.train(args, row, rollout_func=trl_run.sampled, reward_funcs=graded, watch=Recomputed())
        assert len(steps) == 2
        for found, expected in steps:
            same((found,), (expected,), 1e-5)

    return run


def graded(completions: list[str], **_: Any) -> list[float]:
    """Failures and several values of success, so that a group has one best response and pass@2 is open."""
    return [float(max(0, sum(map(ord, text)) % 7 - 3)) for text in completions]


def trl_gradient(row: Objective, trainer: Any, model: Any, initial: Any, step: int) -> Tensor:
    """The gradient of a step by hand: the row's loss on all completions of the rollout, of plain forward passes."""
    from tests.integration.trl_run import SAMPLED_OFF

    parts = trainer._buffered_inputs

    def rows(name: str) -> list[Tensor]:
        pairs = [pair for part in parts for pair in zip(part[f"{name}_ids"], part[f"{name}_mask"], strict=True)]
        return [tokens[mask.bool()] for tokens, mask in pairs]

    prompts, answers = rows("prompt"), rows("completion")
    texts = trainer.processing_class.batch_decode(answers, skip_special_tokens=True)
    known: dict[tuple[int, ...], int] = {}
    groups = torch.tensor([known.setdefault(tuple(prompt.tolist()), len(known)) for prompt in prompts])
    lengths = torch.tensor([len(answer) for answer in answers])

    pairs = [(prompt, [answer]) for prompt, answer in zip(prompts, answers, strict=True)]
    training = model.training
    with torch.no_grad():
        old, old_entropies = plain_statistics(initial, pairs)
        if row.needs.old_entropies:  # TRL's are in float32, and GTPO divides by small ones
            given = torch.cat([part["old_entropies"][part["completion_mask"].bool()] for part in parts])
            torch.testing.assert_close(given, old_entropies.to(given), rtol=0, atol=2e-5)
            old_entropies = given
    logprobs, entropies = plain_statistics(model, pairs)
    model.train(training)
    places = torch.cat([torch.arange(length) for length in lengths.tolist()])
    shared: dict[str, Any] = {"group_ids": groups, "finished": torch.zeros(len(groups)) > 0, "max_new_tokens": 12}
    rollout = Groups(torch.tensor(graded(texts)), lengths=lengths, old_entropies=old_entropies, **shared)
    shared |= {"entropies": entropies, "old_entropies": old_entropies, "initial_logprobs": old}
    shared |= {"sampler_logprobs": old - SAMPLED_OFF * (places % 3 - 1)}
    shared |= {"uid": torch.cat([part["uid"] for part in parts])}
    batch = TokenBatch(old, row.advantages(rollout), lengths, logprobs=logprobs, **shared)
    loss = row.loss(batch, row.prepare(batch, salt=derive(trainer.args.seed, "objective", step))).loss
    gradients = torch.autograd.grad(loss, [part for part in model.parameters() if part.grad is not None])
    return torch.cat([part.flatten() for part in gradients])


# the table ------------------------------------------------------------------------------------------------------------
CELLS = cells_of(PAGE.read_text())


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
@pytest.mark.parametrize("name", [name for name in names() if name in covering()])
def test_trl(name, tmp_path):
    """Rows that together have most names and functions of formulas: each is a training of two steps."""
    assert outcome(name, run_trl(tmp_path)) == CELLS[name][0]


@pytest.mark.verl
@pytest.mark.parametrize("name", names())
def test_verl(name):
    assert outcome(name, run_verl) == CELLS[name][1]


@pytest.mark.parametrize("name", names())
def test_prime_rl(name):
    """prime-rl does not install on a CPU: its loop over responses and groups is the test's."""
    assert outcome(name, run_prime_rl) == CELLS[name][2]
