"""verl's policy losses and advantage estimators out of objectives. Importing this module registers every row that verl
can serve as it is, as `tepo_NAME` in both registries:

VERL_USE_EXTERNAL_MODULES=tepo.integrations.verl python -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=tepo_gspo actor_rollout_ref.actor.policy_loss.loss_mode=tepo_gspo …

`register` adds a changed row, or one of your own, from a module that is named there too. See docs/trainers-use.md."""

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.common.randomness import derive
from tepo.integrations.trainers import VERL, Changes, check_version, missing, split
from tepo.objectives import Groups, Objective, TokenBatch, load_objective, names

INSTALL = 'pip install "verl>=0.9,<0.10"'
TESTED = ("0.9",)

try:
    import verl
    from verl.trainer.ppo import core_algos
except ImportError as error:
    raise missing("verl", INSTALL) from error

check_version("verl", verl.__version__, TESTED, INSTALL)


def register(
    source: Any,
    changes: Changes | None = None,
    name: str | None = None,
    *,
    max_new_tokens: int | None = None,
    micro_batch: bool = False,
) -> str:
    """Register a row's policy loss and advantages with verl under `name` (default: `tepo_` and the row's name).

    source: an Objective, or as for `load_objective`; changes: constants and lines by name (`{"beta": 1}`);
    max_new_tokens: the length limit, `data.max_response_length`, for rows that punish long responses; micro_batch: take
    what a row says of the mini-batch over each micro-batch, as verl's own functions do, so that the gradient depends on
    the split. Returns the name. Raises UserError for a row that reads what verl does not give, with the reading that
    needs less.
    """
    row, settings = split(load_objective(source, changes))
    VERL.check(row, {"limit": max_new_tokens, "mini_batch": micro_batch or None})
    name = name or f"tepo_{row.name}"
    core_algos.ADV_ESTIMATOR_REGISTRY.pop(name, None)  # verl refuses a second function under a name
    core_algos.register_policy_loss(name)(policy_loss(row, settings))
    core_algos.register_adv_est(name)(advantages(row, max_new_tokens))
    return name


def policy_loss(objective: Objective, settings: Changes) -> Callable[..., tuple[Tensor, dict[str, Any]]]:
    """verl's policy loss of a row: padded [B, T] in, the scalar and plain metrics out.

    Denominators are verl's of the mini-batch, where it gives them. The row's average decides, not `loss_agg_mode`.
    Draws are functions of the actor's seed and of the number of the call: verl tells a loss no step.
    settings: what the actor must have for the terms that verl adds itself."""
    calls = count()

    def loss(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        if wrong := {key: value for key, value in settings.items() if getattr(config, key, None) != value}:
            what = "a term of this row is one that verl adds itself"
            fix = " ".join(f"actor_rollout_ref.actor.{key}={value}" for key, value in wrong.items())
            raise UserError(what, where=f"objective {objective.name}", fix=fix)
        mask, info = response_mask.bool(), config.global_batch_info
        batch = TokenBatch(
            old_log_prob[mask],
            advantages[mask],
            mask.sum(1),
            logprobs=log_prob[mask],
            uid=torch.arange(len(mask), device=mask.device),  # responses may be the same
            max_new_tokens=info.get("loss_scale_factor") or mask.shape[1],
        )
        salt = derive(getattr(config, "data_loader_seed", 0), "objective", next(calls))
        plan = objective.prepare(batch, salt=salt, totals=_totals(batch.lengths, info))
        weights = None if rollout_is_weights is None else rollout_is_weights[mask]
        out = objective.loss(batch, plan, weights)
        means = out.metrics.means()
        del means["actor/pg_loss"]  # verl logs it itself
        return out.loss * (info.get("dp_size") or 1), means  # gradients are averaged over ranks

    return loss


def _totals(lengths: Tensor, info: dict[str, Any]) -> Tensor:
    """Tokens and responses of verl's mini-batch over all ranks, float64 [2]; of this batch where verl gives none."""
    batch_totals = torch.stack([lengths.sum(), (lengths > 0).sum()]).double()
    verl_totals = (info.get("batch_num_tokens"), info.get("global_batch_size"))
    return torch.stack(
        [
            batch_totals[i] if value is None else batch_totals.new_tensor(float(value))
            for i, value in enumerate(verl_totals)
        ]
    )


def advantages(objective: Objective, max_new_tokens: int | None = None) -> Callable[..., tuple[Tensor, Tensor]]:
    """verl's advantage estimator of a row: advantages [B, T], twice (verl's second one is the returns)."""

    def estimate(
        token_level_rewards: Tensor, response_mask: Tensor, index: np.ndarray, config: Any = None, **_: Any
    ) -> tuple[Tensor, Tensor]:
        mask = response_mask.bool()
        groups = torch.from_numpy(np.unique(index, return_inverse=True)[1].reshape(-1)).to(mask.device)
        graded_groups = Groups(token_level_rewards.sum(1), groups, mask.sum(1), max_new_tokens=max_new_tokens)
        flat = objective.advantages(graded_groups)
        padded = token_level_rewards.new_zeros(mask.shape).masked_scatter(mask, flat.to(token_level_rewards.dtype))
        return padded, padded

    return estimate


for _name in names():
    _row = split(load_objective(_name))[0]
    if not VERL.lacks(_row) + VERL.asks(_row):
        register(_name)
