"""Statements of a kind of any axis beside its function: what the trainer has to compute for it (`Needs`), and its part
of an explanation (`Part`)."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol

EPS_SOURCE = "verl compute_grpo_outcome_advantage; the papers print none"


@dataclass(frozen=True)
class Needs:
    """Inputs that a kind, or a row, reads beside rewards, group ids and lengths (`Groups`) and beside old log-probs,
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


class Line(NamedTuple):
    """A formula in plain text and in LaTeX."""

    text: str
    latex: str


GAP = Line("g_t = log pi_old,t - log pi_sampler,t", r"g_{i,t} = \log\pi_{\mathrm{old}} - \log\pi_{\mathrm{sampler}}")


class Part(NamedTuple):
    """Contribution of a kind to the explanation of a row. formula: its piece of J. definitions: of the symbols in it.
    detached: what of it carries no gradient. coefficient: its piece of what multiplies grad log pi_t. zero: where that
    is 0, or what to add to the statement."""

    formula: Line = Line("", "")
    definitions: tuple[Line, ...] = ()
    detached: tuple[str, ...] = ()
    coefficient: str = ""
    zero: str = ""


def meaning(text: str, latex: str, *detached: str) -> Part:
    """The part of a kind that only defines a symbol of others."""
    return Part(definitions=(Line(text, latex),), detached=detached)


class Explained(Protocol):
    """A kind with a part in every explanation."""

    @property
    def explained(self) -> Part: ...


class Needing(Protocol):
    """A kind that may need more of the trainer than log-probs and old log-probs."""

    @property
    def needs(self) -> Needs: ...


class Kind(Explained, Needing, Protocol):
    """A kind with both."""


def all_needs(kinds: Iterable[Needing], prepass: bool) -> Needs:
    """The needs of all kinds together."""
    parts = [kind.needs for kind in kinds]
    flags = [part.name for part in fields(Needs) if part.name not in ("full_kl_anchor", "prepass")]
    anchors = [part.full_kl_anchor for part in parts if part.full_kl]
    together = {name: any(getattr(part, name) for part in parts) for name in flags}
    return Needs(**together, full_kl_anchor=anchors[0] if anchors else "old", prepass=prepass)
