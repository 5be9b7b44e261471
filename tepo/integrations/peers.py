"""The trainers that rows go to, what each gives, and the table of rows and trainers in docs/trainers.md."""

from dataclasses import dataclass, replace

from tepo.integrations.readings import WORDS, Changes, Peer, and_, in_words
from tepo.objectives import Objective
from tepo.objectives.penalty import EntropyBonus, Kl, Penalty

TRL = Peer("TRL", frozenset(WORDS) - {"full_kl"}, ({"penalty.estimator": "k3"},))
VERL = Peer(
    "verl",
    frozenset({"sequence_weights", "selection", "rollout"}),
    ({"penalty.entropy_change": "covariance"}, {"penalty.scope": "micro_batch"}, {"weight.scope": "micro_batch"}),
)
PRIME_RL = Peer("prime-rl", frozenset(), ({"advantage.alpha": "none"}, {"aggregation.kind": "token_mean"}))

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


def cell(objective: Objective, peer: Peer) -> str:
    """What a trainer can do with a row, in Markdown."""
    parts = split(objective) if peer is VERL else Split(objective, {})
    reading = peer.reading(parts.objective)
    if reading is None:
        return f"no: not given {and_(peer.lacks(parts.objective))}"
    said = [f"`{in_words(reading)}`"] if reading else []
    said += (
        [f"`{in_words({f'actor.{key}': value for key, value in parts.settings.items()})}`"] if parts.settings else []
    )
    return f"with {' and '.join(said)}" if said else "exact"
