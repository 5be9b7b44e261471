from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from tepo.objectives import TokenBatch, load_objective
from tests.support.commands import python

pytestmark = [pytest.mark.verl, pytest.mark.disaster]

LOW, HIGH, DUAL = 0.2, 0.28, 3.0
CLIPPED = "min(w*A, clip(w, 1 - low, 1 + high)*A)"
# metrics that are not verl's number: see docs/metrics.md
OTHERWISE = {"geo_mean": "actor/pg_clipfrac", "clip_cov": "actor/pg_clipfrac", "kl_cov": "actor/ppo_kl"}


@pytest.fixture(scope="module")
def verl() -> ModuleType:
    """Ours, with verl's registries as `core_algos`."""
    return import_module("tepo.integrations.verl")


def bounds(low: float, high: float) -> dict[str, Any]:
    return {"clip_ratio_low": low, "clip_ratio_high": high}


DUAL_CLIP = {"c": CLIPPED, "J": f"where(A < 0, max(c, {DUAL}*A), c)"}
# as many draws as candidates, so that which are drawn is not left to chance
ALL_DRAWN = {"policy_loss": {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.1, "clip_cov_ub": 5.0}, **bounds(1.0, 1.0)}

SAME: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {  # verl's loss: our row, changes, mode, its actor
    "vanilla": ("grpo_dapo", {}, "token-mean", bounds(LOW, HIGH)),
    "vanilla with its dual clip": ("grpo_dapo", DUAL_CLIP, "token-mean", bounds(LOW, HIGH) | {"clip_ratio_c": DUAL}),
    "vanilla for Dr.GRPO": ("dr_grpo", {}, "seq-mean-token-sum-norm", bounds(LOW, LOW) | {"loss_scale_factor": 40}),
    "gspo": ("gspo_token", {}, "seq-mean-token-mean", bounds(3e-4, 4e-4)),
    "sapo": ("sapo", {}, "seq-mean-token-mean", {"tau_pos": 1.0, "tau_neg": 1.05}),
    "gpg": ("gpg", {}, "token-mean", {}),
    "cispo": ("cispo", {"J": f"sg(clip(w, 1 - {LOW}, 1 + high))*A*logp"}, "token-mean", bounds(LOW, HIGH)),
    # log-probs by the ratio without gradient: the gradient of the ratio
    "dppo_tv": ("dppo_tv", {"J": "~X*sg(w)*A*logp"}, "token-mean", bounds(0.2, 0.2)),
    "dppo_kl": ("dppo_kl", {"J": "~X*sg(w)*A*logp"}, "token-mean", bounds(0.05, 0.05)),
    # a square a token, not of the response's sum
    "dro": ("dro", {"kl": "k2(d)", "average": "tokens"}, "token-mean", {"policy_loss": {"dro_beta": 0.05}}),
    "geo_mean": ("gmpo", {}, "token-mean", bounds(0.4, 0.4)),
    "kl_cov": ("kl_cov", {"share": 0.1}, "token-mean", {"policy_loss": {"kl_cov_ratio": 0.1, "ppo_kl_coef": 1.0}}),
    "clip_cov": ("clip_cov", {"share": 1.0, "alpha": 0.1}, "token-mean", ALL_DRAWN),
}


def actor(mode: str, **changes: Any) -> Any:
    from verl.workers.config import FSDPActorConfig, PolicyLossConfig

    policy_loss = PolicyLossConfig(**changes.pop("policy_loss", {}))
    changes.setdefault("clip_ratio_c", 1e9)  # verl always has a dual clip; this one never acts
    sizes = {"strategy": "fsdp", "rollout_n": 4, "ppo_micro_batch_size_per_gpu": 4}
    config = FSDPActorConfig(policy_loss=policy_loss, loss_agg_mode=mode, **sizes, **changes)
    config.global_batch_info["loss_scale_factor"] = config.loss_scale_factor
    return config


def batch(seed: int = 0) -> dict[str, torch.Tensor]:
    """Padded tensors of six responses, float64, with ratios beyond all bounds."""
    made = torch.Generator().manual_seed(seed)
    mask = torch.arange(14) < torch.tensor([[14], [3], [9], [1], [12], [6]])
    old = -torch.rand(6, 14, dtype=torch.float64, generator=made) * 3
    new = old + 0.5 * torch.randn(6, 14, dtype=torch.float64, generator=made)
    advantages = torch.tensor([1.5, -0.5, -1.0, 0.8, -1.6, 0.8], dtype=torch.float64)[:, None] * mask
    return {"old_log_prob": old, "log_prob": new, "advantages": advantages, "response_mask": mask}


def run(loss: Any, tensors: dict[str, torch.Tensor], **given: Any) -> tuple[torch.Tensor, torch.Tensor, dict]:
    """Value, gradient by the log-probs, and metrics."""
    log_prob = tensors["log_prob"].clone().requires_grad_()
    value, metrics = loss(**(tensors | {"log_prob": log_prob}), **given)
    assert all(isinstance(number, float) for number in metrics.values())
    return value.detach(), torch.autograd.grad(value, log_prob)[0], metrics


@pytest.mark.parametrize("case", SAME)
def test_losses(case, verl):
    """The same scalar, gradient and metrics as verl's function of that name, with its weights for the sampler's gap."""
    row, changes, mode, options = SAME[case]
    config, tensors = actor(mode, **options), batch()
    given = {"loss_agg_mode": mode, "config": config}
    # verl's geo_mean makes one weight a response; kl_cov and dro weigh the KL too, which is not of the sampler's gap.
    if case not in ("geo_mean", "kl_cov", "dro"):
        given["rollout_is_weights"] = 0.5 + torch.rand(6, 14, dtype=torch.float64)
    names = (verl.register(row, changes, micro_batch=True), case.split()[0])
    ours, theirs = (run(verl.core_algos.get_policy_loss_fn(name), tensors, **given) for name in names)
    assert theirs[1].abs().max() > 1e-3
    for mine, other in zip(ours[:2], theirs[:2], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-8)
    for name in ours[2].keys() & theirs[2].keys():
        assert (ours[2][name] == pytest.approx(theirs[2][name], abs=1e-6)) == (name != OTHERWISE.get(case))


def test_distillation(verl):
    """verl's loss of distillation.distillation_loss with loss_mode=k1 and use_policy_gradient: the current policy's
    log-ratio to the teacher, as advantages of its clipped policy loss."""
    tensors = batch()
    mask, old, new = tensors["response_mask"], tensors["old_log_prob"], tensors["log_prob"].requires_grad_()
    teacher = old + 0.4 * torch.randn(6, 14, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    advantages = -verl.core_algos.kl_penalty(new, teacher, "k1").detach()
    given = {"loss_agg_mode": "token-mean", "config": actor("token-mean", **bounds(0.2, 0.2))}
    theirs, _ = verl.core_algos.get_policy_loss_fn("vanilla")(old, new, advantages, mask, **given)
    changes = {"A": "0*R + sg(logp_teacher - logp)", "J": "min(w*A, clip(w, 0.8, 1.2)*A)"}
    row, flat = load_objective("distillation", changes), {"logprobs": new[mask], "teacher_logprobs": teacher[mask]}
    ours = TokenBatch(old[mask], torch.zeros_like(old[mask]), mask.sum(1), **flat)
    mine = row.loss(ours, row.prepare(ours)).loss
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=0)
    gradients = [torch.autograd.grad(loss, new, retain_graph=True)[0] for loss in (mine, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


def test_draws_are_others_in_each_update(verl):
    """As verl's own: as many of the same candidates, and not the same tokens in every epoch. Ranks draw alike."""
    tensors, options = batch(), {"policy_loss": {"clip_cov_ratio": 0.07, "clip_cov_lb": 0.1}, **bounds(1.0, 1.0)}

    def dropped(times: int, name: str = "", **seed: int) -> list[frozenset[int]]:
        name = name or verl.register("clip_cov", {"share": 0.07, "alpha": 0.1}, "drawn", micro_batch=True)
        loss, config = verl.core_algos.get_policy_loss_fn(name), actor("token-mean", **options, **seed)
        gradients = [run(loss, tensors, config=config)[1].flatten() for _ in range(times)]
        return [frozenset((one == 0).nonzero()[:, 0].tolist()) for one in gradients]

    torch.manual_seed(0)
    theirs, ours = dropped(60, "clip_cov"), dropped(60)
    assert {len(one) for one in ours} == {len(one) for one in theirs}
    assert frozenset.union(*ours) == frozenset.union(*theirs)
    assert len(set(ours[:3])) == 3
    assert ours[:3] == dropped(3)  # on another rank, that sees the same
    assert ours[:3] != dropped(3, data_loader_seed=1)


def test_weights_are_of_the_policy_term_alone(verl):
    verl.register("tepo_kl_all", {"beta": 1}, "penalised")

    def made(name: str, **weights: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return run(verl.core_algos.get_policy_loss_fn(name), batch(), config=actor("token-mean"), **weights)[:2]

    light = torch.ones(6, 14, dtype=torch.float64)
    three, one = (made("penalised", rollout_is_weights=weight * light) for weight in (3, 1))
    for heavy, other, policy in zip(three, one, made("tepo_tepo_no_kl"), strict=True):
        torch.testing.assert_close(heavy - other, 2 * policy)


def test_responses_that_are_the_same_are_told_apart(verl):
    """Of each four times: KL-Cov on one token penalises one token, as in verl, and not the four that tie."""
    tensors = {name: part.repeat_interleave(4, 0) for name, part in batch().items()}
    config = actor("token-mean", policy_loss={"kl_cov_ratio": 1e-9, "ppo_kl_coef": 5.0})
    verl.register("kl_cov", {"share": 1e-9, "beta": 5}, "one", micro_batch=True)
    verl.register("kl_cov", {"J": "w*A"}, "none")
    losses = map(verl.core_algos.get_policy_loss_fn, ("kl_cov", "one", "none"))
    (theirs, one, _), (mine, other, _), (_, without, _) = (run(loss, tensors, config=config) for loss in losses)
    assert [int(((part - without).abs() > 1e-9).sum()) for part in (one, other)] == [1, 1]
    summed = [part.view(6, 4, -1).sum(1) for part in (one, other)]
    torch.testing.assert_close((mine, summed[1]), (theirs, summed[0]), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("row", ["gspo", "dr_grpo", "tepo_kl_all"])
def test_micro_batches_and_ranks_add_up(row, verl):
    """With the mini-batch's counts, which verl gives, any split has the full mini-batch's loss and gradient."""
    loss = verl.core_algos.get_policy_loss_fn(f"tepo_{row}")
    config, tensors = actor("token-mean", loss_scale_factor=40), batch()
    value, gradient, _ = run(loss, tensors, config=config)
    tokens = int(tensors["response_mask"].sum())
    config.global_batch_info.update({"dp_size": 2, "batch_num_tokens": tokens, "global_batch_size": 6})
    split = [{name: part[rows] for name, part in tensors.items()} for rows in (slice(0, 1), slice(1, 4), slice(4, 6))]
    parts = [run(loss, part, config=config) for part in split]
    torch.testing.assert_close(sum(part[0] for part in parts) / 2, value)  # verl averages over its two ranks
    torch.testing.assert_close(torch.cat([part[1] for part in parts]) / 2, gradient)


@pytest.mark.parametrize(
    ("theirs", "row", "changes", "options"),
    [
        ("grpo", "grpo_dapo", {}, {}),
        ("grpo", "dr_grpo", {}, {"norm_adv_by_std_in_grpo": False}),
        ("rloo", "rloo", {}, {}),
        ("reinforce_plus_plus_baseline", "reinforce_pp", {}, {}),
        ("gpg", "gpg", {"A": "(R - mean_g(R)) / mean_r(responses(R != 0))"}, {}),
    ],
)
def test_advantages(theirs, row, changes, options, verl):
    tensors = batch()
    rewards = torch.zeros(6, 14, dtype=torch.float64)
    rewards[torch.arange(6), tensors["response_mask"].sum(1) - 1] = torch.tensor([1.0, 0, 0, 1, 0, 1]).double()
    given = {"response_mask": tensors["response_mask"], "index": np.array(["b", "b", "b", "a", "a", "a"], dtype=object)}
    estimate = verl.core_algos.get_adv_estimator_fn(verl.register(row, changes))
    ours, returns = estimate(token_level_rewards=rewards.clone(), config=None, **given)
    given["response_mask"] = given["response_mask"].double()
    other, _ = verl.core_algos.get_adv_estimator_fn(theirs)(token_level_rewards=rewards, **given, **options)
    assert ours.abs().max() > 0.1
    torch.testing.assert_close(ours, other * tensors["response_mask"], rtol=1e-6, atol=1e-6)
    assert returns is ours


# what verl's losses are not told: log-probs of the sampler beside those of the old policy, and of the initial policy --
def by_hand(row: str, changes: dict[str, Any], tensors: dict[str, torch.Tensor], **others: torch.Tensor) -> Any:
    """Value, gradient by the padded log-probs, and the correction of each token; others: more log-probs, padded."""
    objective, mask = load_objective(row, changes), tensors["response_mask"]
    log_prob = tensors["log_prob"].clone().requires_grad_()
    flat = {name: values[mask] for name, values in others.items()}
    given = (tensors["old_log_prob"][mask], tensors["advantages"][mask], mask.sum(1))
    made = TokenBatch(*given, logprobs=log_prob[mask], uid=torch.arange(len(mask)), **flat)
    out = objective.loss(made, objective.prepare(made))
    return out.loss.detach(), torch.autograd.grad(out.loss, log_prob)[0], out.tokens.get("correction")


@pytest.mark.parametrize("row", ["bypass_ppo", "bypass_pg_is"])
def test_bypass_mode(row, verl):
    """verl's old log-probs are the sampler's there."""
    from verl.trainer.config.algorithm import RolloutCorrectionConfig as presets

    preset = {"bypass_ppo": presets.bypass_ppo_clip, "bypass_pg_is": presets.bypass_pg_is}[row]()
    tensors = batch()
    config = actor("token-mean", policy_loss={"rollout_correction": preset}, **bounds(LOW, HIGH))
    theirs = run(verl.core_algos.get_policy_loss_fn("bypass_mode"), tensors, config=config)
    away = tensors | {"old_log_prob": torch.zeros_like(tensors["old_log_prob"])}
    ours = by_hand(row, {}, away, sampler_logprobs=tensors["old_log_prob"])
    assert theirs[1].abs().max() > 1e-3
    torch.testing.assert_close(ours[:2], theirs[:2], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("row", "settings"),
    [
        ("chained_rejection", {"rollout_is": "token", "rs": ("token_k1,seq_max_k2", "0.6_1.6,2.5")}),
        ("seq_mis", {"rollout_is": "sequence", "rollout_is_threshold": "1e-8_3"}),
    ],
)
def test_corrections(row, settings):
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    tensors, (rule, threshold) = batch(), settings.pop("rs", (None, None))
    old, mask = tensors["old_log_prob"], tensors["response_mask"]
    sampler = old + 0.8 * torch.randn(old.shape, dtype=old.dtype, generator=torch.Generator().manual_seed(3))
    weights, kept, _ = compute_rollout_correction_and_rejection_mask(
        old, sampler, mask.double(), **settings, rollout_rs=rule, rollout_rs_threshold=threshold
    )
    theirs = (weights.batch["rollout_is_weights"] * kept)[mask]
    assert 0 < (theirs == 0).sum() < len(theirs)
    torch.testing.assert_close(by_hand(row, {}, tensors, sampler_logprobs=sampler)[2], theirs, rtol=1e-6, atol=1e-8)


def test_a_kl_in_the_reward(verl):
    from verl.trainer.config import AlgoConfig

    tensors, beta = batch(), 0.3
    old, mask = tensors["old_log_prob"], tensors["response_mask"]
    initial = old + 0.5 * torch.randn(old.shape, dtype=old.dtype, generator=torch.Generator().manual_seed(3))
    scores = torch.tensor([1.0, 0, 0, 1, 0, 1]).double()
    rewards = -beta * (old - initial) * mask
    rewards[torch.arange(6), mask.sum(1) - 1] += scores
    advantages, _ = verl.core_algos.get_adv_estimator_fn("reinforce_plus_plus")(
        token_level_rewards=rewards, response_mask=mask.double(), config=AlgoConfig()
    )
    config = actor("seq-mean-token-mean", **bounds(LOW, LOW))
    given = {"loss_agg_mode": "seq-mean-token-mean", "config": config}
    theirs = run(verl.core_algos.get_policy_loss_fn("vanilla"), tensors | {"advantages": advantages}, **given)
    handed = tensors | {"advantages": scores[:, None] * mask}
    ours = by_hand("reinforce_pp_no_group", {"beta": beta}, handed, initial_logprobs=initial)
    torch.testing.assert_close(ours[:2], theirs[:2], rtol=1e-6, atol=1e-8)


def test_verl_imports_it_by_name():
    """As a user names it, in every process of verl's."""
    code = "import verl; from verl.trainer.ppo import core_algos as c; c.get_policy_loss_fn('tepo_gspo')"
    code += "; c.get_adv_estimator_fn('tepo_gspo')"
    python("-c", code, VERL_USE_EXTERNAL_MODULES="tepo.integrations.verl")
