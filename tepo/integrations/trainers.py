"""Other trainers: the inputs that each hands to a loss, the objectives that can do with them, and the reading of an
objective that needs less. Errors where a trainer is missing or of an untested version."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from tepo.common.errors import UserError
from tepo.objectives import Groups, Needs, Objective, load_objective, objective_mapping
from tepo.objectives.axes.aggregation import TokenMean
from tepo.objectives.axes.penalty import EntropyBonus, Kl, Penalty

Changes = Mapping[str, Any]  # by keys such as `penalty.scope`

WORDS = {
    "entropies": "entropies of the current policy",
    "entropy_gradient": "entropies with a gradient",
    "old_entropies": "entropies of the policy that sampled",
    "initial_logprobs": "log-probs of the initial policy",
    "sampler_logprobs": "log-probs of the sampler beside those of the old policy",
    "full_kl": "distributions over the vocabulary",
    "prepass": "the mini-batch before its first micro-batch",
    "selection": "several responses at once",
    "group_ids": "the prompt of each response",
    "finished": "which responses were cut at the length limit",
    "sequence_weights": "the number of responses of the mini-batch",
    "rollout": "the rollout as one when it makes advantages",
    "lengths": "the lengths of the responses when it makes advantages",
    "limit": "the length limit when it makes advantages",
}


@dataclass(frozen=True)
class Peer:
    """A trainer. gives: what of `WORDS` its loss and its advantages get.

    cheaper: settings that may make a row need less, in the order in which they are tried.
    told: what of `WORDS` the user knows and can give to the adapter, and as which argument."""

    name: str
    gives: frozenset[str]
    cheaper: tuple[Changes, ...] = ()
    told: Mapping[str, str] = field(default_factory=dict)

    def lacks(self, objective: Objective) -> list[str]:
        """Inputs that the row reads, and that neither this trainer nor its user gives, in words."""
        read = reads(objective)
        return [words for key, words in WORDS.items() if key in read and key not in {*self.gives, *self.told}]

    def asks(self, objective: Objective) -> list[str]:
        """The arguments by which the user gives the rest of what the row reads."""
        read = reads(objective)
        return [argument for key, argument in self.told.items() if key in read and key not in self.gives]

    def reading(self, objective: Objective) -> Changes | None:
        """Settings that make the row need no more than this trainer gives; empty: as it is; None: there are none."""
        made: dict[str, Any] = {}
        for changes in self.cheaper:
            lacking = self.lacks(with_changes(objective, made))
            if not lacking:
                break
            try:
                other = with_changes(objective, {**made, **changes})
            except UserError:  # a setting that the row does not have
                continue
            if len(self.lacks(other)) < len(lacking):
                made |= changes
        return None if self.lacks(with_changes(objective, made)) else made

    def check(self, objective: Objective, told: Collection[str] | None = None) -> None:
        """Raise UserError, with what is lacking and the reading that needs less, for a row that it cannot serve.

        told: the arguments that the user gave, where the row is asked for what they are for."""
        where = f"objective {objective.name}"
        if lacking := self.lacks(objective):
            reading = self.reading(objective)
            fix = f"the reading that needs less: {in_words(reading)}" if reading else "another row: see docs/library.md"
            raise UserError(f"{self.name} does not give {and_(lacking)}", where=where, fix=fix)
        missing = [] if told is None else [one for one in self.asks(objective) if one not in told]
        if missing:
            words = and_([WORDS[key] for key, argument in self.told.items() if argument in missing])
            fix = " ".join(f"{argument}=…" for argument in missing)
            raise UserError(f"{self.name} does not give {words}", where=where, fix=f"give it here: {fix}")


def reads(objective: Objective) -> set[str]:
    """Names from `WORDS` that a row reads."""
    needs = objective.needs
    found = {part.name for part in fields(Needs) if getattr(needs, part.name) is True}
    if objective.weight.scope or any(part.selects for part in objective.penalties):
        found.add("selection")
    if not isinstance(objective.aggregation, TokenMean):
        found.add("sequence_weights")
    if objective.advantage.needs.max_new_tokens or objective.overlong.needs.max_new_tokens:
        found.add("limit")
    return found | _read_of_the_rollout(objective)


def _read_of_the_rollout(objective: Objective) -> set[str]:
    """Dependence of a group's advantages on other groups, and on lengths, as seen on small ones."""
    rewards, lengths = torch.tensor([1.0, 0, 0, 1, 1, 1, 1, 0, 0]).double(), torch.tensor([3, 2, 4, 1, 2, 3, 2, 2, 1])
    groups = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2])

    def made(chosen: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """The advantage of the first token of each response."""
        own, ended = lengths[chosen], torch.ones(int(chosen.sum())) > 0
        entropies = torch.linspace(0.1, 1.5, int(lengths.sum()), dtype=torch.float64)[chosen.repeat_interleave(lengths)]
        given = Groups(rewards[chosen], groups[chosen], own, entropies, finished=ended, max_new_tokens=4)
        return objective.advantages(given)[own.cumsum(0) - own]

    first = groups == 0
    alone = made(first, lengths)
    others = {"rollout": made(first | True, lengths)[first], "lengths": made(first, lengths.flip(0))}
    return {key for key, other in others.items() if not torch.allclose(alone, other, rtol=0, atol=1e-9)}


def with_changes(source: Any, changes: Changes) -> Objective:
    """The objective of a name, file, mapping or Objective, with options changed by keys such as `penalty.scope`.

    Raises UserError for a key that the row does not have or that would change nothing."""
    objective = source if isinstance(source, Objective) else load_objective(source)
    return load_objective(objective_mapping(objective), changes) if changes else objective


def in_words(changes: Changes) -> str:
    """As on a command line."""
    return " ".join(f"{key}={value}" for key, value in changes.items())


def and_(parts: Iterable[str]) -> str:
    """A list in words."""
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


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
        elif (
            isinstance(part, Kl)
            and (part.anchor, part.tokens) == ("initial", "all")
            and part.estimator in ESTIMATORS
            and "use_kl_loss" not in settings
        ):
            settings |= {"use_kl_loss": True, "kl_loss_coef": part.coefficient}
            settings["kl_loss_type"] = ESTIMATORS[part.estimator]
        else:
            kept.append(part)
    if settings:
        settings["loss_agg_mode"] = MODES.get(type(objective.aggregation).__name__, "")
    return Split(replace(objective, penalties=tuple(kept)), settings)


def missing(package: str, command: str) -> UserError:
    """The error for a peer that cannot be imported; command: what installs it."""
    return UserError(f"{package} is not installed here", where=f"tepo.integrations.{package}", fix=command)


def check_version(package: str, version: str, tested: tuple[str, ...], command: str) -> None:
    """Raise UserError unless `version` begins with a tested one (`1.16` stands for 1.16.*)."""
    if not any(version == known or version.startswith(f"{known}.") for known in tested):
        what = f"{package} {version} is installed; tested with {', '.join(f'{known}.*' for known in tested)}"
        raise UserError(what, where=f"tepo.integrations.{package}", fix=command)
