"""An update's preparation and its checks. `loop.update` has their order.

Denominators and selections come from `objective.prepare` over the full mini-batch and all ranks before the first
backward, so micro-batches and ranks only add up.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor, nn

from tepo.common.errors import Diverged
from tepo.common.randomness import derive
from tepo.config.run_config import RunConfig, TrainConfig
from tepo.objectives import Objective
from tepo.objectives.batch import all_sum
from tepo.objectives.objective import Plan
from tepo.policy.logprobs.chunked import StatisticsOptions
from tepo.policy.logprobs.token_statistics import TokenStatistics, token_statistics
from tepo.sampling.gap import Evidence, GapAlarm
from tepo.training.batch import Dealer, FlatRollout, MiniBatch
from tepo.training.engine.engine import Engine
from tepo.training.forward import ForwardPasses


def scheduled_learning_rate(train: TrainConfig, step: int) -> float:
    """Learning rate of a step: linear warm-up over steps, then constant."""
    return train.learning_rate * (min(1.0, step / train.warmup_steps) if train.warmup_steps else 1.0)


@dataclass
class Updater:
    """An objective, the engine that trains on it, and the checks between them."""

    config: RunConfig
    objective: Objective
    engine: Engine
    alarm: GapAlarm
    initial: nn.Module | None = None  # the policy before training, where the objective is anchored on it

    @property
    def dealer(self) -> Dealer:
        """Deals sequences to the ranks of the engine."""
        budget, comm = self.config.engine.micro_batch_tokens, self.engine.comm
        return Dealer(budget) if comm is None else Dealer(budget, comm.rank, comm.world_size)

    @property
    def passes(self) -> ForwardPasses:
        """Forward passes with what the objective needs."""
        train, dtype = self.config.train, self.config.model.dtype
        return ForwardPasses(self.engine, self.initial, self.objective.needs, train, dtype, self.dealer)

    def prepare(self, mini_batch: MiniBatch) -> Plan:
        """Denominators and selections over the full mini-batch and all ranks. An objective that selects tokens by
        current log-probs and entropies needs them of all tokens first; those of a single micro-batch serve its loss."""
        batch, rollout = mini_batch.batch, mini_batch.rollout
        if self.objective.needs.prepass:
            if mini_batch.single:
                current = [self.passes.statistics(rollout, mini_batch.sequences)]
                mini_batch.current = current[0]
            else:
                with torch.no_grad():
                    parts = map(mini_batch.sequences_at, mini_batch.micro_batches)
                    current = [self.passes.statistics(rollout, part) for part in parts]
            logprobs = torch.cat([part.logprobs.detach() for part in current])
            entropies = [part.entropies.detach() for part in current if part.entropies is not None]
            known = len(entropies) == len(current)
            batch = replace(batch, logprobs=logprobs, entropies=torch.cat(entropies) if known else None)
        salt = derive(self.config.seed, "objective", mini_batch.step, mini_batch.number)
        return self.objective.prepare(batch, comm=self.engine.comm, salt=salt)

    def log_probs(self, mini_batch: MiniBatch, indices: Sequence[int]) -> TokenStatistics:
        """Log-probs of a micro-batch under the current policy, with gradient, and what else the objective needs."""
        current, mini_batch.current = mini_batch.current, None  # its graph must not outlive the backward
        return current or self.passes.statistics(mini_batch.rollout, mini_batch.sequences_at(indices))

    def check_finite(self, losses: Sequence[Tensor], tokens: Tensor, step: int) -> bool:
        """Stop all ranks before a NaN of one reaches the optimiser; False when `tokens` is 0: a gradient of zeros would
        still move the weights, by AdamW's momentum and decay.
        Read once a mini-batch: reading a loss makes the host wait for the GPU."""
        loss = all_sum(torch.stack(tuple(losses)).sum().double(), self.engine.comm)
        value, number = torch.stack([loss, tokens]).tolist()
        if not math.isfinite(value):
            name, rate = self.config.objective.get("name", "?"), self.config.train.learning_rate
            fix = "lower train.learning_rate, or check the rewards and the objective's coefficients"
            raise Diverged(
                f"step {step}: the loss is {value}",
                where=f"objective={name}, learning rate {rate:g}",
                fix=f"{fix}; the last checkpoint is kept",
            )
        return number > 0

    @torch.no_grad()
    def check_probabilities(self, rollout: FlatRollout) -> None:
        """Look at one group after the last update of a run, which no rollout follows that would find out.

        Raises Diverged, on all ranks, where log-probs are not numbers."""
        logprobs = self.passes.statistics(rollout, rollout.sequences_of([0])).logprobs
        if float(all_sum(logprobs.isnan().sum().double(), self.engine.comm)):
            raise Diverged("the policy's probabilities are not numbers after the last update")

    def check_gap(self, mini_batch: MiniBatch, logprobs: Sequence[Tensor]) -> dict[str, float]:
        """Compare sampler and trainer on the first mini-batch; logprobs: the trainer's [n] of each micro-batch.
        Raises RunFailed beyond the bound, with the likely cause."""
        parts = [mini_batch.sequences_at(indices) for indices in mini_batch.micro_batches]
        sampled = [mini_batch.batch.select(indices).sampler_logprobs for indices in mini_batch.micro_batches]
        sampler = torch.cat([values for values in sampled if values is not None])
        return self._compare(mini_batch.rollout, parts, (sampler, torch.cat(tuple(logprobs))), mini_batch.step)

    def check_drawn(self, rollout: FlatRollout, step: int) -> dict[str, float]:
        """Compare them on a full rollout, by the old log-probs that the trainer has just computed."""
        parts = self.dealer.own(rollout, range(rollout.sequence_count))
        tokens = rollout.tokens_of(list(chain(*parts)))
        return self._compare(rollout, parts, (rollout.sampler_logprobs[tokens], rollout.old_logprobs[tokens]), step)

    def drift(self, mini_batch: MiniBatch, logprobs: Sequence[Tensor]) -> dict[str, float]:
        """Distance of the policy from the one that sampled, on the first mini-batch; logprobs: as in `check_gap`."""
        old = [mini_batch.batch.select(indices).old_logprobs for indices in mini_batch.micro_batches]
        moved = (torch.cat(tuple(logprobs)) - torch.cat(old)).abs().double()
        sums = torch.stack([moved.sum(), torch.ones_like(moved).sum()])
        total, count = all_sum(sums, self.engine.comm).tolist()
        steps = min(self.config.train.staleness, mini_batch.step - 1)
        return {"training/staleness": float(steps), "training/stale_log_ratio": total / count}

    def _compare(
        self, rollout: FlatRollout, parts: Sequence[Sequence[int]], logprobs: tuple[Tensor, Tensor], step: int
    ) -> dict[str, float]:
        """Ask the alarm about this rank's sequences; logprobs: of sampler and trainer [n], in the order of `parts`."""

        def score(temperature: float) -> Tensor:
            options, pieces = StatisticsOptions(temperature=temperature, need_entropy=False), []
            for part in parts:
                done = token_statistics(self.engine.model, rollout.pack(part or [rollout.shortest]), options)
                pieces.append(done.logprobs if part else done.logprobs[:0])
            return torch.cat(pieces)

        pairs = [rollout.tokens_as_sampled(sequence) for part in parts for sequence in part]
        return self.alarm.check(*logprobs, Evidence(score, pairs, self.engine.model), where=f"step {step}")
