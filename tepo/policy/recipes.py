"""Recipes of base models: tiny Qwen2-architecture policies that learn everything from generated solutions, and a
pretrained language model that is shown a few (`tepo.policy.warmstart` follows them).

A recipe is a few phases. The first teaches the skills with right chains of thought; the last one spreads the policy's
mass, so that RL has something to find: on wrong results and bare guesses (the default mix), or on right chains with
steps left out, so that the reliable full chain is rare (the sparse mix). Measurements: docs/scales.md.
"""

import bisect
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tepo.common.errors import UserError

TRAINED_SCALE = 4.0  # alpha / rank of adapters while they train


@dataclass(frozen=True, slots=True)
class Phase:
    """Some steps of a warm start and what the responses look like in them; shares and probabilities in 0..1."""

    steps: int
    guesses: float = 0.0  # share of bare answers; the rest are chains
    slip: float = 0.0  # probability that a result of a chain is wrong (and carried on with)
    chain_slip: float = 0.0  # probability that a chain holds a wrong result, the same for chains of any length
    skip: float = 0.0  # probability that a step of a right chain is left out
    wordings: bool = False  # right chains in wordings and orders that are drawn


_NOISE = ("guesses", "slip", "chain_slip", "skip")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything a base model is a function of. `tasks` maps a task to its weight."""

    tasks: Mapping[str, float]
    phases: tuple[Phase, ...]
    seed: int = 0
    batch: int = 48
    learning_rate: float = 3e-3
    warmup_steps: int = 50
    weight_decay: float = 0.01
    hidden: int = 96
    layers: int = 2
    heads: int = 3
    feed_forward: int = 256
    max_length: int = 256  # positions: prompt and response
    model: str = ""  # a pretrained model to start from, asked as data are; the sizes above are its own then
    rank: int = 0  # of an adapter on the frozen model; 0: all weights train
    scale: float = TRAINED_SCALE  # of the adapter in the model that comes out: a lower one leaves more of its own words

    @property
    def steps(self) -> int:
        """Number of steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    def phase(self, step: int) -> Phase:
        """The phase a step is in."""
        ends = list(itertools.accumulate(phase.steps for phase in self.phases))
        return self.phases[bisect.bisect_right(ends, step)]

    def shortened(self, steps: int) -> "Recipe":
        """About `steps` steps, every phase in proportion."""
        phases = tuple(replace(phase, steps=max(1, round(phase.steps * steps / self.steps))) for phase in self.phases)
        return replace(self, phases=phases, warmup_steps=min(self.warmup_steps, steps // 10))

    def with_noise(self, factor: float) -> "Recipe":
        """The recipe with so many times the bare answers, wrong results and left-out steps. Raises UserError where a
        share would exceed 1."""
        phases = tuple(
            replace(phase, **{name: factor * getattr(phase, name) for name in _NOISE}) for phase in self.phases
        )
        largest = max(getattr(phase, name) for phase in phases for name in _NOISE)
        if largest > 1:
            what = f"a share of {largest:g} in the recipe"
            raise UserError(what, where=f"--noise {factor:g}", fix="at most 1 of each")
        return replace(self, phases=phases)


# of the bases that ship with the package, by the name in `package:NAME`
RECIPES: dict[str, Recipe] = {
    "laptop": Recipe(
        tasks=dict.fromkeys(
            ("add2", "add3", "add4", "mul2", "mul3", "mod3", "mod4", "gcd", "max3", "max4", "lin", "ds4", "ds6"), 1.0
        ),
        phases=(Phase(1600, guesses=0.05), Phase(400, guesses=0.25, slip=0.18)),
    ),
    "laptop_sparse": Recipe(
        tasks=dict.fromkeys(("add7", "mul6", "mul22", "ds14", "sort10", "bin11", "mod9"), 1.0)
        | {"add4": 0.5, "mul3": 0.5, "ds6": 0.4, "sort5": 0.4, "bin6": 0.4, "mod4": 0.5},
        phases=(Phase(1300), Phase(400, skip=0.19)),
        learning_rate=2e-3,
    ),
    "laptop_chains": Recipe(
        tasks=dict.fromkeys(("run2", "run3", "run4", "run6", "run10", "run14", "run20", "run29"), 1.0),
        phases=(Phase(1300), Phase(300, guesses=0.05, chain_slip=0.45)),
        learning_rate=2e-3,
    ),
}

# of pretrained models, in the cache under these names
PRETRAINED: dict[str, Recipe] = {
    "smollm2-135m-words": Recipe(
        model="cache:smollm2-135m",
        tasks={"words1": 1, "words2": 1, "words3": 1},
        phases=(Phase(60),),
        batch=16,
        learning_rate=4e-5,
        warmup_steps=6,
        weight_decay=0.0,
    ),
    # ships as an adapter, for it is another one on another CPU
    "smollm2-135m-wordings": Recipe(
        model="cache:smollm2-135m",
        tasks={"words1": 1, "words2": 3},
        phases=(Phase(120, wordings=True),),
        batch=16,
        learning_rate=2e-3,
        warmup_steps=10,
        weight_decay=0.0,
        rank=8,
        scale=2.5,  # at 4 it is right on 43% of words2 and has 0.28 nats a token, at 2.5 on 36% and 0.31
    ),
}

_LAPTOP = RECIPES["laptop"]
# the first of them at other sizes, for questions about size; not shipped
SIZES: dict[str, Recipe] = {
    "laptop_50k": replace(_LAPTOP, hidden=48, feed_forward=128),
    "laptop_1m": replace(_LAPTOP, hidden=192, feed_forward=512, heads=6, layers=3),
    "laptop_4m": replace(_LAPTOP, hidden=320, feed_forward=896, heads=10, layers=4, learning_rate=1e-3),
}
