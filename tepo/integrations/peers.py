"""The trainers that rows go to, and what each gives."""

from dataclasses import dataclass, replace

from tepo.integrations.readings import WORDS, Changes, Peer
from tepo.objectives import Objective
from tepo.objectives.axes.penalty import EntropyBonus, Kl, Penalty

TRL = Peer("TRL", frozenset(WORDS) - {"full_kl"}, ({"penalty.estimator": "k3"},))
VERL = Peer(
    "verl",
    frozenset({"sequence_weights", "selection", "rollout", "lengths"}),
    ({"penalty.entropy_change": "covariance"}, {"penalty.scope": "micro_batch"}, {"weight.scope": "micro_batch"}),
    {"limit": "max_new_tokens"},  # its newer trainer pads to the longest response, so the width does not tell
)
PRIME_RL = Peer(
    *("prime-rl", frozenset[str](), ({"advantage.alpha": "none"}, {"aggregation.kind": "token_mean"})),
    {"lengths": "lengths", "limit": "max_new_tokens"},
)

MODES = {
    "TokenMean": "token-mean",
    "SeqMeanTokenMean": "seq-mean-token-mean",
    "SeqMeanTokenSum": "seq-mean-token-sum",
    "SeqMeanTokenSumNorm": "seq-mean-token-sum-norm",
}
ESTIMATORS = {"k1": "kl", "k2": "mse", "k3": "low_var_kl", "abs": "abs"}  # verl's names of ours


@dataclass(frozen=True)
class Split:
    """A row for verl: without the penalties that verl adds beside a policy loss, and the actor's settings for these."""

    objective: Objective
    settings: Changes


def split(objective: Objective) -> Split:
    """A KL to the initial policy on all tokens and an entropy bonus are terms of verl's own."""
    kept: list[Penalty] = []
    settings: dict[str, object] = {}
    for part in objective.penalties:
        if isinstance(part, EntropyBonus) and "entropy_coeff" not in settings:
            settings["entropy_coeff"] = part.coefficient
        elif _verls_kl(part) and "use_kl_loss" not in settings:
            assert isinstance(part, Kl)
            settings |= {"use_kl_loss": True, "kl_loss_coef": part.coefficient}
            settings["kl_loss_type"] = ESTIMATORS[part.estimator]
        else:
            kept.append(part)
    if settings:
        settings["loss_agg_mode"] = MODES.get(type(objective.aggregation).__name__, "")
    return Split(replace(objective, penalties=tuple(kept)), settings)


def _verls_kl(part: Penalty) -> bool:
    return isinstance(part, Kl) and (part.anchor, part.tokens) == ("initial", "all") and part.estimator in ESTIMATORS
