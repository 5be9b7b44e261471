"""What the updates of a rollout are made of: mini-batches, passes of the models, checks. `loop.update` has their order.

Denominators and selections come from `objective.prepare` over the full mini-batch and all ranks before the first
backward, so micro-batches and ranks only add up.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise

import torch
from torch import Tensor, nn

from tepo.common.errors import Diverged
from tepo.common.randomness import derive
from tepo.config.run_config import RunConfig
from tepo.objectives import Objective, TokenBatch
from tepo.objectives.batch import all_sum
from tepo.objectives.plan import Plan
from tepo.policy.logprobs.chunked import StatisticsOptions
from tepo.policy.logprobs.hidden_states import hidden_states
from tepo.policy.logprobs.token_statistics import TokenStatistics, reference_logprobs, token_statistics
from tepo.policy.model.lora import adapters_off
from tepo.sampling.gap import Evidence, GapAlarm
from tepo.training.batch import FlatRollout, even_chunks
from tepo.training.engine.engine import Engine


@dataclass
class MiniBatch:
    """This rank's sequences of one update and their tokens, without current log-probs."""

    rollout: FlatRollout
    step: int
    number: int  # of the update in its step, from 0
    last: bool  # of its step
    sequences: list[int]
    batch: TokenBatch
    micro_batches: list[list[int]]  # indices into `sequences`; on several ranks some may be empty
    current: TokenStatistics | None = None  # of a single micro-batch, where `Updater.prepare` has made them

    @property
    def single(self) -> bool:
        """Whether it is one micro-batch."""
        return len(self.micro_batches) == 1

    def sequences_at(self, indices: Sequence[int]) -> list[int]:
        """Sequence numbers of a micro-batch."""
        return [self.sequences[index] for index in indices]

    def select(self, plan: Plan, indices: Sequence[int]) -> tuple[TokenBatch, Plan]:
        """The tokens of a micro-batch and its part of the plan."""
        return (self.batch, plan) if self.single else (self.batch.select(indices), plan.select(indices))


@dataclass
class Updater:
    """An objective, the engine that trains on it, and the checks between them."""

    config: RunConfig
    objective: Objective
    engine: Engine
    alarm: GapAlarm
    initial: nn.Module | None = None  # the policy before training, where the objective is anchored on it

    def learning_rate(self, step: int) -> float:
        """That of a step: linear warm-up over steps, then constant."""
        train = self.config.train
        return train.learning_rate * (min(1.0, step / train.warmup_steps) if train.warmup_steps else 1.0)

    def mini_batches(self, rollout: FlatRollout, advantages: Tensor, step: int) -> Iterator[MiniBatch]:
        """Those of all epochs: groups in runs of even size, sequences dealt to the ranks. advantages: float [N]."""
        batch = rollout.batch(advantages, self.config.train.max_new_tokens)
        runs = even_chunks(rollout.group_count, self.config.train.mini_batches) * self.config.train.epochs
        for number, groups in enumerate(runs):
            parts, last = self._own(rollout, rollout.sequences_of(groups)), number == len(runs) - 1
            own, ends = list(chain(*parts)), accumulate(map(len, parts), initial=0)
            places = [list(range(begin, end)) for begin, end in pairwise(ends)]
            yield MiniBatch(rollout, step, number, last, own, batch.select(own), places)

    def prepare(self, mini_batch: MiniBatch) -> Plan:
        """Denominators and selections over the full mini-batch and all ranks. An objective that selects tokens by
        current log-probs and entropies needs them of all tokens first; those of a single micro-batch serve its loss."""
        batch, rollout = mini_batch.batch, mini_batch.rollout
        if self.objective.needs.prepass:
            if mini_batch.single:
                passes = [self._forward(rollout, mini_batch.sequences)]
                mini_batch.current = passes[0]
            else:
                with torch.no_grad():
                    parts = map(mini_batch.sequences_at, mini_batch.micro_batches)
                    passes = [self._forward(rollout, part) for part in parts]
            logprobs = torch.cat([part.logprobs.detach() for part in passes])
            batch = replace(batch, logprobs=logprobs, entropies=_cat([part.entropies for part in passes]))
        salt = derive(self.config.seed, "objective", mini_batch.step, mini_batch.number)
        return self.objective.prepare(batch, comm=self.engine.comm, salt=salt)

    def log_probs(self, mini_batch: MiniBatch, indices: Sequence[int]) -> TokenStatistics:
        """Log-probs of a micro-batch under the current policy, with gradient, and what else the objective needs."""
        current, mini_batch.current = mini_batch.current, None  # its graph must not outlive the backward
        return current or self._forward(mini_batch.rollout, mini_batch.sequences_at(indices))

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
        logprobs = self._forward(rollout, rollout.sequences_of([0])).logprobs
        if float(all_sum(logprobs.isnan().sum().double(), self.engine.comm)):
            raise Diverged("the policy's probabilities are not numbers after the last update")

    def _dealt(self, rollout: FlatRollout, sequences: Sequence[int]) -> list[list[list[int]]]:
        """The micro-batches of every rank, see `FlatRollout.deal`."""
        ranks = 1 if self.engine.comm is None else self.engine.comm.world_size
        return rollout.deal(sequences, self.config.engine.micro_batch_tokens, ranks)

    def _own(self, rollout: FlatRollout, sequences: Sequence[int]) -> list[list[int]]:
        """Those of this rank."""
        return self._dealt(rollout, sequences)[0 if self.engine.comm is None else self.engine.comm.rank]

    def _forward(self, rollout: FlatRollout, part: Sequence[int]) -> TokenStatistics:
        """Statistics of some sequences. None at all still runs the model on the shortest, and keeps its graph: every
        rank of a sharded model must take part in every pass."""
        needs, pushed = self.objective.needs, part or [rollout.shortest]
        options = StatisticsOptions(
            temperature=self.config.train.temperature,
            entropy_gradient=needs.entropy_gradient and torch.is_grad_enabled(),
            reference=rollout.reference(pushed) if needs.full_kl else None,
        )
        done = token_statistics(self.engine.model, rollout.pack(pushed), options, hidden=rollout.take_kept(part))
        if part:
            return done
        values = (None if value is None else value[:0] for value in (done.logprobs, done.entropies, done.full_kl))
        return TokenStatistics(*values)  # type: ignore[arg-type]

    def check_gap(self, mini_batch: MiniBatch, gap: Sequence[tuple[Tensor, Tensor]]) -> dict[str, float]:
        """Sampler against trainer on the first mini-batch; gap: log-probs [n] of both for each micro-batch.
        Raises RunFailed beyond the bound, with the likely cause."""
        parts = [mini_batch.sequences_at(indices) for indices in mini_batch.micro_batches]
        sampler, trainer = (torch.cat(values) for values in zip(*gap, strict=True))
        return self._compare(mini_batch.rollout, parts, (sampler, trainer), mini_batch.step)

    def check_drawn(self, rollout: FlatRollout, step: int) -> dict[str, float]:
        """The same on a full rollout, by the old log-probs that the trainer has just computed."""
        parts = self._own(rollout, range(rollout.sequence_count))
        tokens = rollout.tokens_of(list(chain(*parts)))
        return self._compare(rollout, parts, (rollout.sampler_logprobs[tokens], rollout.old_logprobs[tokens]), step)

    def drift(self, mini_batch: MiniBatch, gap: Sequence[tuple[Tensor, Tensor]]) -> dict[str, float]:
        """How far the policy is from the one that sampled, on the first mini-batch; gap: as in `check_gap`."""
        old = [mini_batch.batch.select(indices).old_logprobs for indices in mini_batch.micro_batches]
        moved = (torch.cat([now for _, now in gap]) - torch.cat(old)).abs().double()
        sums = torch.stack([moved.sum(), torch.ones_like(moved).sum()])
        total, count = all_sum(sums, self.engine.comm).tolist()
        steps = min(self.config.train.staleness, mini_batch.step - 1)
        return {"training/staleness": float(steps), "training/stale_log_ratio": total / count}

    def _compare(
        self, rollout: FlatRollout, parts: Sequence[Sequence[int]], logprobs: tuple[Tensor, Tensor], step: int
    ) -> dict[str, float]:
        """The alarm on this rank's sequences; logprobs: of sampler and trainer [n], in the order of `parts`."""

        def score(temperature: float) -> Tensor:
            options, pieces = StatisticsOptions(temperature=temperature, need_entropy=False), []
            for part in parts:
                done = token_statistics(self.engine.model, rollout.pack(part or [rollout.shortest]), options)
                pieces.append(done.logprobs if part else done.logprobs[:0])
            return torch.cat(pieces)

        pairs = [rollout.tokens_as_sampled(sequence) for part in parts for sequence in part]
        return self.alarm.check(*logprobs, Evidence(score, pairs, self.engine.model), where=f"step {step}")

    @torch.no_grad()
    def old_values(self, rollout: FlatRollout) -> int:
        """pi_old's log-probs and entropies. Returns how many passes over the rollout that took.
        The sampler's own are taken where they serve; where the objective compares full distributions or corrects the
        gap between the two, where the sampler gave no entropies, and in bfloat16, in which the two round apart by more
        than GSPO's clip distances, the trainer computes them on its own path (reading A2). So it does for a rollout
        that waits for its step: later, nothing could tell the sampler's error from what the policy has moved."""
        needs = self.objective.needs
        # What is compared: a difference must not be rounding, nor 0 by definition.
        compared = needs.sampler_logprobs or (needs.entropies and needs.old_entropies)
        passes = 0
        own = compared or self.config.model.dtype != "float32" or self.config.train.staleness > 0
        if needs.full_kl and needs.full_kl_anchor == "old":
            rollout.old_distribution = self._old_distribution(rollout)
            rollout.old_logprobs = rollout.old_distribution.gather(1, rollout.targets()[:, None])[:, 0]
            rollout.old_entropies = -(rollout.old_distribution.exp() * rollout.old_distribution).sum(1)
            passes += 1
        elif rollout.old_entropies is None or own:
            rollout.old_logprobs, rollout.old_entropies = self._spread(rollout)
            passes += 1
        if self.initial is not None:
            with adapters_off(self.initial):  # with LoRA it is the trained model itself
                if needs.full_kl and needs.full_kl_anchor == "initial":
                    rollout.old_distribution = self._distribution(rollout, self.initial)
                    passes += 1
                if needs.initial_logprobs:
                    rollout.initial_logprobs = self._initial(rollout, self.initial)
                    passes += 1
        return passes

    def _initial(self, rollout: FlatRollout, model: nn.Module) -> Tensor:
        """Log-probs [N] of the initial policy."""
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
        if waits or self.engine.comm is not None or len(self._own(rollout, first)) > 1:
            return self._distribution(rollout, model)
        packed = rollout.pack(first)
        with torch.enable_grad():
            rollout.kept = first, hidden_states(model, packed)
        own = reference_logprobs(model, packed, temperature=temperature, hidden=rollout.kept[1].detach())
        rest = len(runs) > 1
        return torch.cat([own, self._distribution(rollout, model, after=len(first))]) if rest else own

    def _distribution(self, rollout: FlatRollout, model: nn.Module, after: int = 0) -> Tensor:
        """Log-probs [n, V] of the full vocabulary for the sequences number `after` and up."""
        temperature = self.config.train.temperature
        return self._scored(
            rollout, lambda part: reference_logprobs(model, rollout.pack(part), temperature=temperature), after
        )

    def _spread(self, rollout: FlatRollout) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies [N] under the policy as it is."""

        def score(part: Sequence[int]) -> Tensor:
            done = self._forward(rollout, part)
            assert done.entropies is not None
            return torch.stack([done.logprobs, done.entropies], 1)

        logprobs, entropies = self._scored(rollout, score).unbind(1)
        return logprobs.contiguous(), entropies.contiguous()

    def _scored(self, rollout: FlatRollout, score: Callable[[Sequence[int]], Tensor], after: int = 0) -> Tensor:
        """What `score` gives for the sequences number `after` and up, a row for each of their tokens: every rank scores
        its micro-batches, and all have the result. An empty one still runs the model, see `_forward`."""
        comm, every = self.engine.comm, range(after, rollout.sequence_count)
        dealt = self._dealt(rollout, every)
        own = dealt[0 if comm is None else comm.rank]
        rows = torch.cat([score(part) if part else score([rollout.shortest])[:0] for part in own])
        if comm is None:
            return rows
        pieces = [piece.view(-1, *rows.shape[1:]) for piece in comm.all_gather(rows.flatten())]
        full = rows.new_empty(len(rollout.sampler_logprobs), *rows.shape[1:])
        full[rollout.tokens_of(list(chain(*chain(*dealt))))] = torch.cat(pieces)
        return full[rollout.offsets[after] :]


def _cat(values: Sequence[Tensor | None]) -> Tensor | None:
    present = [value.detach() for value in values if value is not None]
    return torch.cat(present) if len(present) == len(values) else None
