"""Other trainers: the inputs that each hands to a loss, the objectives that can do with them, and the reading of an
objective that needs less. Errors where a trainer is missing or of an untested version."""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from tepo.common.errors import UserError
from tepo.common.text import listed
from tepo.formula.formula import NEEDED
from tepo.objectives import Needs, Objective, load_objective

Changes = Mapping[str, Any]  # by names of lines and constants

WORDS = {name: phrase for name, phrase in NEEDED.items() if name != "prepass"} | {
    "mini_batch": "the mini-batch before its first micro-batch",
    "group_ids": "the prompt of each response",
    "finished": "which responses were cut at the length limit",
    "counts": "the numbers of tokens and responses of the mini-batch",
    "rollout": "the rollout as one when it makes advantages",
    "lengths": "the lengths of the responses when it makes advantages",
    "limit": "the length limit when it makes advantages",
    "token_advantages": "an advantage for each token",
}


def reads(objective: Objective) -> set[str]:
    """Names from `WORDS` that a row reads."""
    names = {part.name for part in fields(Needs) if getattr(objective.needs, part.name) is True}
    handed = objective.handed
    rollout = list(handed.below())
    more = {
        "mini_batch": bool(objective.planned),
        "counts": objective.average != "tokens" or bool(objective.given & {"N", "B"}),
        "rollout": any(node.op.endswith("_r") for node in rollout),
        "lengths": any(node.per == "token" or node.value == "T" for node in rollout),
        "limit": any(node.value == "L" for node in rollout),
        "token_advantages": handed.per == "token" and any(not node.args and node.per == "token" for node in rollout),
    }
    return (names | {name for name, read in more.items() if read}) & WORDS.keys()


def instead(pattern: str, text: str) -> Callable[[Objective], Changes]:
    """The lines of an objective with a text in the place of a pattern, where they have it."""

    def changes(objective: Objective) -> Changes:
        lines = {name: re.sub(pattern, text, line) for name, line in objective.mapping["formula"].items()}
        return {name: line for name, line in lines.items() if line != objective.lines[name]}

    return changes


@dataclass(frozen=True)
class Peer:
    """A trainer. gives: what of `WORDS` its loss and its advantages get.

    cheaper: changes that may make a row need less, in the order in which they are tried.
    told: what of `WORDS` the user knows or settles, and how it is said to the adapter."""

    name: str
    gives: frozenset[str]
    cheaper: tuple[Callable[[Objective], Changes], ...] = ()
    told: Mapping[str, str] = field(default_factory=dict)

    def lacks(self, objective: Objective) -> list[str]:
        """Names from `WORDS` of what the row reads, and neither this trainer nor its user gives."""
        return [name for name in WORDS if name in reads(objective) - self.gives - self.told.keys()]

    def asks(self, objective: Objective) -> list[str]:
        """Names from `WORDS` of what the row reads, and the user gives."""
        return [name for name in self.told if name in reads(objective) - self.gives]

    def reading(self, objective: Objective) -> Changes | None:
        """Changes that make the row need no more than this trainer gives; empty: as it is; None: there are none."""
        total_changes: dict[str, Any] = {}
        for cheaper in self.cheaper:
            lacking, changes = self.lacks(objective), cheaper(objective)
            if not lacking or not changes:
                continue
            try:
                other = load_objective(objective, changes)
            except UserError:  # it has no line of a name that the changes read
                continue
            if len(self.lacks(other)) < len(lacking):
                objective = other
                total_changes |= changes
        return None if self.lacks(objective) else total_changes

    def check(self, objective: Objective, told: Mapping[str, Any] | None = None) -> None:
        """Raise UserError, with what is lacking and the reading that needs less, for a row that it cannot serve.

        told: by names from `WORDS`, what the user gave, where the row is asked for what they are for."""
        if lacking := self.lacks(objective):
            reading = self.reading(objective)
            fix = f"the reading that needs less: {in_words(reading)}" if reading else "another row"
        elif lacking := [name for name in self.asks(objective) if told is not None and told.get(name) is None]:
            fix = f"say it here: {' '.join(self.told[name] for name in lacking)}"
        else:
            return
        what = f"{self.name} does not give {listed([WORDS[name] for name in lacking])}"
        raise UserError(what, where=f"objective {objective.name}", fix=fix)


def in_words(changes: Changes) -> str:
    """As on a command line."""
    return shlex.join(f"{name}={value}" for name, value in changes.items())


TRL = Peer(
    *("TRL", frozenset(WORDS) - {"full_kl", "teacher_logprobs", "values"}),
    (instead(r"\bkl_old\b", "k3(d)"), instead(r"\bkl_initial\b", "k3(logp - logp_initial)")),
)
VERL = Peer(
    *("verl", frozenset({"counts", "rollout", "lengths", "token_advantages"})),
    (instead(r"\bdH\b(?! *\*\*)", "-cov_b(logp, A)"),),  # TEPO Eq. 18
    {
        "limit": "max_new_tokens=…",  # its newer trainer pads to the longest response, so the width does not tell
        "mini_batch": "micro_batch=True",  # a loss gets a micro-batch; verl's own Clip-Cov and KL-Cov take it for all
    },
)
PRIME_RL = Peer(
    *("prime-rl", frozenset[str]()),
    (instead(r" / mean_r\(responses\(std_g\(R\) > 0\)\)", ""), lambda _: {"average": "tokens"}),  # of GPG: alpha
    {"lengths": "lengths=…", "limit": "max_new_tokens=…"},
)

MODES = {  # verl's names of our averages
    "tokens": "token-mean",
    "responses": "seq-mean-token-mean",
    "sums": "seq-mean-token-sum",
    "budget": "seq-mean-token-sum-norm",
}
KLS = {  # verl's names of the KLs that it adds itself
    "logp - logp_initial": "kl",
    "abs(logp - logp_initial)": "abs",
    "k2(logp - logp_initial)": "mse",
    "k3(logp - logp_initial)": "low_var_kl",
}


def split(objective: Objective) -> tuple[Objective, Changes]:
    """A row for verl: without a KL to the initial policy on all tokens and an entropy bonus, which are terms that verl
    adds beside a policy loss, and the actor's settings for these."""
    rest, kl, beta = objective.without(*KLS)
    rest, entropy, bonus = rest.without("H")
    settings: dict[str, Any] = {"entropy_coeff": bonus} if entropy else {}
    if kl:
        settings |= {"use_kl_loss": True, "kl_loss_coef": -beta, "kl_loss_type": KLS[kl]}
    if not settings or objective.average not in MODES:
        return objective, {}
    return rest, settings | {"loss_agg_mode": MODES[objective.average]}


def missing(package: str, command: str) -> UserError:
    """The error for a peer that cannot be imported; command: what installs it."""
    return UserError(f"{package} is not installed here", where=f"tepo.integrations.{package}", fix=command)


def check_version(package: str, version: str, tested: tuple[str, ...], command: str) -> None:
    """Raise UserError unless `version` begins with a tested one (`1.16` stands for 1.16.*)."""
    if not any(version == prefix or version.startswith(f"{prefix}.") for prefix in tested):
        what = f"{package} {version} is installed; tested with {', '.join(f'{prefix}.*' for prefix in tested)}"
        raise UserError(what, where=f"tepo.integrations.{package}", fix=command)
