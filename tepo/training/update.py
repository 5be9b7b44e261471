"""An update's forward passes, its preparation and its checks. `loop.update` has their order.

Denominators and selections come from `objective.prepare` over the full mini-batch and all ranks before the first
backward, so micro-batches and ranks only add up.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor, nn

from tepo.common.errors import Diverged, UserError
from tepo.common.randomness import derive
from tepo.config.run_config import RunConfig, chosen
from tepo.objectives import Objective, Plan
from tepo.objectives.batch import all_sum
from tepo.policy.logprobs.softmax_at_temperature import StatisticsOptions, token_parts
from tepo.policy.logprobs.token_statistics import (
    TokenStatistics,
    hidden_states,
    output_matrix,
    reference_logprobs,
    token_statistics,
)
from tepo.policy.model.allocator import free_bytes
from tepo.policy.model.lora import adapters_off
from tepo.sampling.gap import Evidence, GapAlarm
from tepo.training.distributed import process_group
from tepo.training.engine.engine import Engine
from tepo.training.rollout_batch import Dealer, FlatRollout, MiniBatch, even_chunks
from tepo.training.value_tracker import ValueTracker

_SHARE = 0.25  # of the free memory, for the log-probs of an exact KL: they lie there twice while they are put together


@dataclass
class Updater:
    """An objective, the engine that trains on it, and the passes and checks between them."""

    config: RunConfig
    objective: Objective
    engine: Engine
    alarm: GapAlarm
    initial: nn.Module | None = None  # the policy before training, where the objective is anchored on it
    teacher: nn.Module | None = None  # where the objective reads its log-probs
    tracker: ValueTracker | None = None  # where the objective reads success rates

    @property
    def dealer(self) -> Dealer:
        """Deals sequences to the ranks of the engine."""
        budget, comm = chosen(self.config.engine.micro_batch_tokens), self.engine.comm
        return Dealer(budget) if comm is None else Dealer(budget, comm.rank, comm.world_size)

    def prepare(self, mini_batch: MiniBatch) -> Plan:
        """Denominators and selections over the full mini-batch and all ranks. An objective that selects tokens by
        current log-probs and entropies needs them of all tokens first; those of a single micro-batch serve its loss."""
        batch, rollout = mini_batch.batch, mini_batch.rollout
        if self.objective.needs.prepass:
            if mini_batch.single:
                current = [self.statistics(rollout, mini_batch.sequences)]
                mini_batch.current = current[0]
            else:
                with torch.no_grad():
                    current = [self.statistics(rollout, part) for part in mini_batch.parts]
            logprobs = torch.cat([part.logprobs.detach() for part in current])
            entropies = [part.entropies.detach() for part in current if part.entropies is not None]
            has_entropies = len(entropies) == len(current)
            batch = replace(batch, logprobs=logprobs, entropies=torch.cat(entropies) if has_entropies else None)
        salt = derive(self.config.seed, "objective", mini_batch.step, mini_batch.number)
        return self.objective.prepare(batch, comm=self.engine.comm, salt=salt)

    def log_probs(self, mini_batch: MiniBatch, indices: Sequence[int]) -> TokenStatistics:
        """Log-probs of a micro-batch under the current policy, with gradient, and what else the objective needs."""
        current, mini_batch.current = mini_batch.current, None  # its graph must not outlive the backward
        return current or self.statistics(mini_batch.rollout, mini_batch.sequences_at(indices))

    def check_finite(self, losses: Sequence[Tensor], tokens: Tensor, step: int) -> bool:
        """Stop all ranks before a NaN of one reaches the optimiser; False when `tokens` is 0: a gradient of zeros would
        still move the weights, by AdamW's momentum and decay.
        Read once a mini-batch: reading a loss makes the host wait for the GPU."""
        loss = all_sum(torch.stack(tuple(losses)).sum().double(), self.engine.comm)
        value, number = torch.stack([loss, tokens]).tolist()
        if not math.isfinite(value):
            name, rate = self.config.objective.get("name", "?"), self.config.train.learning_rate
            fix = "lower train.learning_rate, or check the rewards and the objective's coefficients"
            where = f"objective={name}, learning rate {rate:g}"
            raise Diverged(f"step {step}: the loss is {value}", where=where, fix=f"{fix}; the last checkpoint is kept")
        return number > 0

    @torch.no_grad()
    def check_probabilities(self, rollout: FlatRollout) -> None:
        """Look at one group after the last update of a run, which no rollout follows that would find out.

        Raises Diverged, on all ranks, where log-probs are not numbers."""
        logprobs = self.statistics(rollout, rollout.sequences_of([0])).logprobs
        if float(all_sum(logprobs.isnan().sum().double(), self.engine.comm)):
            raise Diverged("the policy's probabilities are not numbers after the last update")

    def check_gap(self, mini_batch: MiniBatch, logprobs: Sequence[Tensor]) -> dict[str, float]:
        """Compare sampler and trainer on the first mini-batch; logprobs: the trainer's [n] of each micro-batch.
        Raises RunFailed beyond the bound, with the likely cause."""
        return self._compare(mini_batch.rollout, mini_batch.parts, torch.cat(tuple(logprobs)), mini_batch.step)

    def check_drawn(self, rollout: FlatRollout) -> dict[str, float]:
        """Compare them on a full rollout, by the old log-probs that the trainer has just computed."""
        parts = self.dealer.own(rollout, range(rollout.sequence_count))
        return self._compare(rollout, parts, rollout.old_logprobs[rollout.tokens_of(list(chain(*parts)))], rollout.step)

    def drift(self, mini_batch: MiniBatch, logprobs: Sequence[Tensor]) -> dict[str, float]:
        """Distance of the policy from the one that sampled, on the first mini-batch; logprobs: as in `check_gap`."""
        tokens = mini_batch.rollout.tokens_of(list(chain(*mini_batch.parts)))
        moved = (torch.cat(tuple(logprobs)) - mini_batch.rollout.old_logprobs[tokens]).abs().double()
        sums = torch.stack([moved.sum(), torch.ones_like(moved).sum()])
        total, count = all_sum(sums, self.engine.comm).tolist()
        steps = min(self.config.train.staleness, mini_batch.step - 1)
        return {"training/staleness": float(steps), "training/stale_log_ratio": total / count}

    def _compare(
        self, rollout: FlatRollout, parts: Sequence[Sequence[int]], logprobs: Tensor, step: int
    ) -> dict[str, float]:
        """Ask the alarm about this rank's sequences; logprobs: of the trainer [n], in the order of `parts`."""

        def score(temperature: float) -> Tensor:
            options, pieces = StatisticsOptions(temperature=temperature, need_entropy=False), []
            for part in parts:
                statistics = token_statistics(self.engine.model, rollout.pack(part or [rollout.shortest]), options)
                pieces.append(statistics.logprobs if part else statistics.logprobs[:0])
            return torch.cat(pieces)

        pairs = [rollout.tokens_as_sampled(sequence) for part in parts for sequence in part]
        sampler = rollout.sampler_logprobs[rollout.tokens_of(list(chain(*parts)))]
        return self.alarm.check(sampler, logprobs, Evidence(score, pairs, self.engine.model), where=f"step {step}")

    # forward passes, with what the objective needs ------------------------------------------------------------------
    def statistics(self, rollout: FlatRollout, part: Sequence[int]) -> TokenStatistics:
        """Log-probs of some sequences, and what else the objective needs. None at all still runs the model on the
        shortest, and keeps its graph: every rank of a sharded model must take part in every pass."""
        needs, pushed = self.objective.needs, part or [rollout.shortest]
        options = StatisticsOptions(
            temperature=self.config.train.temperature,
            entropy_gradient=needs.entropy_gradient and torch.is_grad_enabled(),
            reference=rollout.reference(pushed) if needs.full_kl else None,
        )
        statistics = token_statistics(self.engine.model, rollout.pack(pushed), options, hidden=rollout.take_kept(part))
        if part:
            return statistics
        values = (
            None if value is None else value[:0]
            for value in (statistics.logprobs, statistics.entropies, statistics.full_kl)
        )
        return TokenStatistics(*values)  # type: ignore[arg-type]

    def _needs_trainer_pass(self) -> bool:
        """Tell whether the trainer computes pi_old itself though the sampler gave it (reading A2)."""
        needs, config = self.objective.needs, self.config
        # The objective compares sampler and trainer, or entropies before and after: no part of the difference may be
        # rounding, nor may it be 0 by definition.
        compares = needs.sampler_logprobs or (needs.entropies and needs.old_entropies)
        rounds = config.model.dtype != "float32"  # the two part by more than GSPO's clip distances
        waits = config.train.staleness > 0  # later, nothing tells the sampler's error from what the policy has moved
        return compares or rounds or waits

    @torch.no_grad()
    def compute_old_logprobs(self, rollout: FlatRollout) -> int:
        """Give a rollout pi_old's log-probs and entropies, and those of its anchor: the sampler's, or a pass of the
        trainer over the rollout. Returns how many passes that took. Raises UserError where the distributions of an
        exact KL are too large for the memory that is free."""
        needs = self.objective.needs
        passes = 0
        if needs.full_kl:
            self._check_room(rollout)
        if needs.full_kl and needs.full_kl_anchor == "old":
            rollout.old_distribution = old = self._old_distribution(rollout)
            rollout.old_logprobs = old.gather(1, rollout.targets()[:, None])[:, 0]
            entropies = [-(old[rows].exp() * old[rows]).sum(1) for rows in token_parts(*old.shape)]
            rollout.old_entropies = torch.cat(entropies)
            passes += 1
        elif rollout.old_entropies is None or self._needs_trainer_pass():

            def score(part: Sequence[int]) -> Tensor:
                statistics = self.statistics(rollout, part)
                assert statistics.entropies is not None
                return torch.stack([statistics.logprobs, statistics.entropies], 1)

            both = self._scored(rollout, score).unbind(1)
            rollout.old_logprobs, rollout.old_entropies = (values.contiguous() for values in both)
            passes += 1
        if (initial := self.initial) is not None:
            with adapters_off(initial):  # with LoRA it is the trained model itself
                if needs.full_kl and needs.full_kl_anchor == "initial":
                    rollout.old_distribution = self._distribution(rollout, initial)
                    passes += 1
                if needs.initial_logprobs:
                    rollout.initial_logprobs = self._logprobs(rollout, initial)
                    passes += 1
        if self.teacher is not None:
            rollout.teacher_logprobs = self._logprobs(rollout, self.teacher)
            gap = (rollout.old_logprobs - rollout.teacher_logprobs).mean(dtype=torch.float64)
            rollout.metrics["rollout/teacher_kl"] = float(gap)
            passes += 1
        return passes

    def _check_room(self, rollout: FlatRollout) -> None:
        tokens, words = len(rollout.sampler_logprobs), len(output_matrix(self.engine.model))
        free, needed = free_bytes(rollout.device), 4 * tokens * words
        here = 1 if rollout.device.type == "cuda" else process_group.local_world_size()
        if free is not None and needed > _SHARE * free / here:
            what = f"the exact KL would keep {needed / 2**30:.1f} GiB of log-probs, {tokens} tokens over a vocabulary "
            what += f"of {words}; {_SHARE:.0%} of the free memory is {_SHARE * free / here / 2**30:.1f} GiB"
            fix = "train.exact_kl=false or objective.kl='k3(d)': these need the sampled tokens alone"
            raise UserError(what, where=f"objective={self.objective.name}", fix=fix)

    def value(self, rollout: FlatRollout) -> None:
        """Give a rollout its tracked success rates, before its updates: where it has waited, of all steps before."""
        if self.tracker is not None:
            values = torch.tensor(self.tracker.values(rollout.groups), dtype=torch.float64, device=rollout.device)
            rollout.values, rollout.metrics["rollout/value"] = values[rollout.owners], float(values.mean())

    @torch.no_grad()
    def track(self, rollout: FlatRollout) -> None:
        """Let the tracker see a rollout, after its updates."""
        if self.tracker is not None:
            self.tracker.visit(rollout, lambda scored: self._logprobs(scored, self.engine.model))

    def _logprobs(self, rollout: FlatRollout, model: nn.Module) -> Tensor:
        """Log-probs [N] of a rollout's tokens under a model."""
        options = StatisticsOptions(temperature=self.config.train.temperature, need_entropy=False)
        return self._scored(rollout, lambda part: token_statistics(model, rollout.pack(part), options).logprobs)

    def _old_distribution(self, rollout: FlatRollout) -> Tensor:
        """Log-probs [N, V] of the full vocabulary under the policy that sampled. The first update needs a pass over the
        first mini-batch with these very weights: where that is one micro-batch, its graph is kept for it. Not for a
        rollout that waits: its first update has other weights."""
        model, temperature = self.engine.model, self.config.train.temperature
        runs = even_chunks(rollout.group_count, self.config.train.mini_batches)
        first = rollout.sequences_of(runs[0])
        waits = self.config.train.staleness > 0
        if waits or self.engine.comm is not None or len(self.dealer.own(rollout, first)) > 1:
            return self._distribution(rollout, model)
        packed = rollout.pack(first)
        with torch.enable_grad():
            rollout.kept = first, hidden_states(model, packed)
        logprobs = reference_logprobs(model, packed, temperature=temperature, hidden=rollout.kept[1].detach())
        rest = len(runs) > 1
        return torch.cat([logprobs, self._distribution(rollout, model, after=len(first))]) if rest else logprobs

    def _distribution(self, rollout: FlatRollout, model: nn.Module, after: int = 0) -> Tensor:
        """Log-probs [n, V] of the full vocabulary for the sequences number `after` and up."""
        temperature = self.config.train.temperature
        return self._scored(
            rollout, lambda part: reference_logprobs(model, rollout.pack(part), temperature=temperature), after
        )

    def _scored(self, rollout: FlatRollout, score: Callable[[Sequence[int]], Tensor], after: int = 0) -> Tensor:
        """Results of `score` for the sequences number `after` and up, a row for each of their tokens: every rank scores
        its micro-batches, and all have the result. An empty one still runs the model, see `statistics`."""
        comm, every = self.engine.comm, range(after, rollout.sequence_count)
        dealt = self.dealer.all(rollout, every)
        own_parts = dealt[self.dealer.rank]
        rows = torch.cat([score(part) if part else score([rollout.shortest])[:0] for part in own_parts])
        if comm is None:
            return rows
        pieces = [piece.view(-1, *rows.shape[1:]) for piece in comm.all_gather(rows.flatten())]
        full = rows.new_empty(len(rollout.sampler_logprobs), *rows.shape[1:])
        full[rollout.tokens_of(list(chain(*chain(*dealt))))] = torch.cat(pieces)
        return full[rollout.offsets[after] :]
