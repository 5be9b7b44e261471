"""Rollouts of a step on simulated engines: by our queue, by rounds of what is missing, and by verl's DAPO recipe."""

from collections.abc import Sequence
from dataclasses import dataclass

from tepo.config.run_config import RunConfig
from tepo.objectives.testing.simulated_ranks import SimulatedRank, on_ranks
from tepo.planning.simulator.cards import Decoding
from tepo.planning.simulator.clocked_sampler import AtOnce, ClockedRank, ClockedSampler, Engine, Judge, Stream
from tepo.planning.simulator.workload import PROMPT, Workload
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.rollout.collector import Collector
from tepo.training.rollout.group_stats import Rollout as Kept


@dataclass(frozen=True)
class Setup:
    """A run on `engines` engines."""

    config: RunConfig
    decoding: Decoding
    engines: int
    workload: Workload
    batches: bool = False  # see `ClockedSampler`

    @property
    def size(self) -> int:
        """Responses of a group."""
        return self.config.train.samples_per_prompt


@dataclass(frozen=True)
class Rollout:
    """Simulated rollout of one step.

    lengths: of the kept groups, by group. consumed: prompts up to the last group kept. drawn: all tokens decoded, with
    what was given up. busy: share of the time in which engines decoded. least: the lower bound, see `Decoding.least`.
    rounds: how many batches were waited for.
    """

    seconds: float
    lengths: list[list[int]]
    consumed: int
    drawn: int
    busy: float
    least: float
    rounds: int = 1


def by_queue(setup: Setup, start: int, before: int) -> Rollout:
    """`Collector.collect` on every rank, each with an engine and the clock in place of a GPU."""
    engines = [Engine(setup.decoding) for _ in range(setup.engines)]

    def collect(simulated: SimulatedRank) -> Kept:
        engine = engines[simulated.rank]
        sampler = ClockedSampler(engine, setup.workload, setup.size, setup.batches)
        comm = ClockedRank(simulated, engine)
        collector = Collector(setup.config, Stream(), sampler, Judge(), comm, AtOnce)  # type: ignore[arg-type]
        return collector.collect(start, 1, before, StepMetrics())

    kept = on_ranks(collect, setup.engines)[0]
    numbers = [group.prompt.number for group in kept.groups]
    return _rollout(setup, engines, range(start, start + kept.consumed), numbers)


def in_turn(setup: Setup, steps: int, before: int = 0) -> list[tuple[int, Rollout]]:
    """Rollouts of consecutive steps by the queue, each with its first prompt; before: prompts that the step before the
    first consumed. A step that needs more than the one before draws again, one that needs less gives prompts up."""
    start, drawn = 0, []
    for _ in range(steps):
        drawn.append((start, by_queue(setup, start, before)))
        before = drawn[-1][1].consumed
        start += before
    return drawn


def by_rounds(setup: Setup, start: int) -> Rollout:
    """Rounds of as many prompts as groups are missing, each waited for: how rollouts were drawn before the queue."""
    engines, train = [Engine(setup.decoding) for _ in range(setup.engines)], setup.config.train
    kept: list[int] = []
    next_prompt, rounds = start, 0
    while len(kept) < train.prompts_per_step and next_prompt - start < train.max_rounds * train.prompts_per_step:
        batch = range(next_prompt, next_prompt + train.prompts_per_step - len(kept))
        _generate(setup, engines, [batch[rank :: setup.engines] for rank in range(setup.engines)])
        kept += [number for number in batch if _mixed(setup, number)]
        next_prompt, rounds = batch.stop, rounds + 1
    return _rollout(setup, engines, range(start, next_prompt), kept, rounds)


def by_generation_batches(setup: Setup, start: int, times: int) -> Rollout:
    """verl's DAPO recipe: batches of `times` the training batch, cut into one run of neighbours for each engine, each
    batch waited for, until there are enough mixed groups; those beyond are thrown away. times 0: no filter, one batch.
    """
    engines, count = [Engine(setup.decoding) for _ in range(setup.engines)], setup.config.train.prompts_per_step
    kept: list[int] = []
    next_prompt, rounds = start, 0
    while len(kept) < count:
        batch = range(next_prompt, next_prompt + max(times, 1) * count)
        bounds = [len(batch) * rank // setup.engines for rank in range(setup.engines + 1)]
        _generate(setup, engines, [batch[bounds[rank] : bounds[rank + 1]] for rank in range(setup.engines)])
        kept += [number for number in batch if not times or _mixed(setup, number)]
        next_prompt, rounds = batch.stop, rounds + 1
    return _rollout(setup, engines, range(start, next_prompt), kept[:count], rounds)


def _mixed(setup: Setup, number: int) -> bool:
    return 0 < setup.workload.group(number, setup.size).right < setup.size


def _generate(setup: Setup, engines: Sequence[Engine], batches: Sequence[Sequence[int]]) -> None:
    """Draw these prompts, each batch on its engine; then all wait for the last."""
    for engine, batch in zip(engines, batches, strict=True):
        lengths = [length for number in batch for length in setup.workload.group(number, setup.size).lengths]
        for index, length in enumerate(lengths):
            engine.add(index, length)
        while engine.run(float("inf")):
            pass
    last = max(engine.clock for engine in engines)
    for engine in engines:
        engine.clock = last


def _rollout(setup: Setup, engines: Sequence[Engine], consumed: range, kept: Sequence[int], rounds: int = 1) -> Rollout:
    seconds = max(engine.clock for engine in engines)
    needed = [setup.workload.group(number, setup.size).lengths for number in consumed]
    lengths = [setup.workload.group(number, setup.size).lengths for number in kept]
    every = [length for group in needed for length in group]
    least = setup.decoding.least(max(max(group) for group in lengths), every, PROMPT, setup.engines)
    busy = sum(engine.busy for engine in engines) / (seconds * len(engines))
    return Rollout(seconds, lengths, len(consumed), sum(engine.tokens for engine in engines), busy, least, rounds)
