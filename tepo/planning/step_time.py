"""Time of a run on a machine of a plan, by simulation: the phases of a step, and measuring it on its benchmarks."""

import math
from dataclasses import dataclass, replace
from statistics import fmean

from tepo.config.run_config import RunConfig, chosen
from tepo.planning.gpus import HOST_BANDWIDTH, KEPT_SHARE, LEFT, LINK, MEASURING, RESPONSE_SHARE, Machine, ranks_of
from tepo.planning.simulator import updates
from tepo.planning.simulator.cards import SYNC, WORK, Decoding, Training
from tepo.planning.simulator.clocked_sampler import Engine
from tepo.planning.simulator.schedules import Setup, in_turn
from tepo.planning.simulator.workload import Lognormal
from tepo.policy.model.shapes import KNOWN, Shape, number_bytes
from tepo.problems.benchmarks import load_benchmark
from tepo.sampling.backends import longest_sequence, sampler_backend
from tepo.training.engine.backends import shares_weights
from tepo.training.resources.gpu_cards import Card
from tepo.training.resources.memory import Memory

STEPS = 2  # that are simulated


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step by phase; offload: of the optimiser in main memory, which the GPU waits for; sync: of the
    weights to the sampler. beside: the rollout of the next step is drawn beside the updates."""

    rollout: float
    logprobs: float
    updates: float
    offload: float
    sync: float
    beside: bool = False

    @property
    def total(self) -> float:
        """Seconds of the step; beside the updates, the old log-probs wait for both."""
        phases = self.rollout, self.updates + self.offload
        return (max(phases) if self.beside else sum(phases)) + self.logprobs + self.sync


def step_time(config: RunConfig, shape: Shape, machine: Machine, memory: Memory) -> StepTime:
    """The mean of steps in turn, refills and prompts that are given up among them; the one before them consumed what
    the assumed keep rate asks for. Servers are taken to be as many GPUs again, with nothing else in their memory."""
    train, ranks, tensor = config.train, ranks_of(config, machine), config.sampler.tensor_parallel
    decoding = _decoding(config, shape, machine, memory)
    batches = sampler_backend(config.sampler.kind).full_rows
    alone = replace(config, sampler=replace(config.sampler, tensor_parallel=1))  # a simulated rank is an engine
    setup = Setup(alone, decoding, max(1, ranks // tensor), _responses(config, train.max_new_tokens), batches)
    rollouts = [rollout for _, rollout in in_turn(setup, STEPS, math.ceil(train.prompts_per_step / KEPT_SHARE))]
    training = Training(_card(config, machine), shape, ranks)
    done = [updates.ours(training, config, rollout.lengths) for rollout in rollouts]
    scored = fmean(one.logprobs for one in done) * (2 if memory.reference else 1)
    sync = 0.0 if shares_weights(config) else SYNC * shape.parameters / KNOWN["Qwen/Qwen2.5-7B"].parameters
    beside = train.staleness > 0 and sampler_backend(config.sampler.kind).remote
    rollout, updated = fmean(one.seconds for one in rollouts), fmean(one.updates for one in done)
    return StepTime(rollout, scored, updated, _offload(config, shape, ranks), sync, beside)


def benchmark_time(config: RunConfig, shape: Shape, machine: Machine, memory: Memory) -> float:
    """Seconds of measuring a run on its benchmarks, one after the other, on one GPU of the machine; responses are
    assumed as long as in training, the longest as long as the benchmark allows."""
    engine = Engine(_decoding(config, shape, machine, memory))
    for one in (load_benchmark(name) for name in config.data.benchmarks):
        workload = _responses(config, one.max_new_tokens)
        for problem in range(one.count):
            for sample, length in enumerate(workload.group(problem, one.samples).lengths):
                engine.add((problem, sample), length)
        while engine.run(math.inf):
            pass
    return engine.clock


def _responses(config: RunConfig, limit: int) -> Lognormal:
    return Lognormal(RESPONSE_SHARE * config.train.max_new_tokens, limit, kept=KEPT_SHARE)


def _card(config: RunConfig, machine: Machine) -> Card:
    """One GPU of the machine. Of numbers of four bytes it moves half as many a second."""
    return replace(machine.card, bandwidth=machine.card.bandwidth * 2 / number_bytes(config.model.dtype))


def _decoding(config: RunConfig, shape: Shape, machine: Machine, memory: Memory) -> Decoding:
    """An engine with the cache that the planner leaves it. One that keeps full rows has as many as fit."""
    card, size, tensor = _card(config, machine), number_bytes(config.model.dtype), config.sampler.tensor_parallel
    parameters, numbers = shape.parameters / tensor, shape.cut_cache_numbers(tensor)
    rows = chosen(config.sampler.max_rows)
    cache = max(LEFT * card.bytes - size * parameters, 0.0) if memory.cache is None else memory.cache
    tokens = cache / (size * numbers)
    if sampler_backend(config.sampler.kind).full_rows:
        rows = max(1, min(rows, int(tokens / longest_sequence(config))))
    needed = 2 * parameters + WORK + 2 * numbers * tokens
    return Decoding(card, shape, needed / card.bytes, rows, tensor)


def _offload(config: RunConfig, shape: Shape, ranks: int) -> float:
    """Seconds of all updates of a step in main memory: master and both moments are read and written there, the gradient
    is read, a sample of the update is measured, and the master is rounded to the weight's type; gradient and weight
    cross between memories."""
    if not config.engine.offload:
        return 0.0
    share = (shape.adapter_parameters(config.model.lora_rank) or shape.parameters) / ranks
    size = number_bytes(config.model.dtype)
    seconds = (28 * (1 + MEASURING) + 4 + size) / HOST_BANDWIDTH + (4 + size) / LINK
    return config.train.epochs * config.train.mini_batches * share * seconds
