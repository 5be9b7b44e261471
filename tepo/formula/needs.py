"""Inputs that a formula wants of the trainer."""

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Needs:
    """Inputs that a formula reads beside rewards, group ids and lengths (`Groups`) and beside old log-probs,
    advantages, lengths and log-probs (`TokenBatch`). What is not named here need not be given."""

    entropy_gradient: bool = False
    entropies: bool = False
    old_entropies: bool = False
    initial_logprobs: bool = False
    sampler_logprobs: bool = False
    full_kl: bool = False
    full_kl_anchor: str = "old"  # whose distributions `full_kl` is against: old | initial
    uid: bool = False
    group_ids: bool = False  # in the batch of the loss
    finished: bool = False
    max_new_tokens: bool = False
    prepass: bool = False  # `prepare` wants the current log-probs (and entropies) of the whole mini-batch

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the fields of `Groups` and `TokenBatch` that it reads."""
        options = ("entropy_gradient", "full_kl_anchor", "prepass")
        return tuple(part.name for part in fields(self) if part.name not in options and getattr(self, part.name))

    @property
    def initial_policy(self) -> bool:
        """True where a frozen copy of the policy before training is kept."""
        return self.initial_logprobs or (self.full_kl and self.full_kl_anchor == "initial")
