"""The updates of one rollout step: for each mini-batch log-probs, objective, step (TEPO Algorithm 1, lines 12-25).

The one place where an objective's loss is called. Denominators and selections come from `objective.prepare` over the
whole mini-batch and all ranks before the first backward, so micro-batches and ranks only add up (DESIGN rule 1).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tepo.config.schema import RunConfig
from tepo.errors import RunFailed
from tepo.objectives import Objective, TokenBatch
from tepo.policy.packing import Packed, pack, split_by_tokens
from tepo.policy.statistics import TokenStatistics, token_statistics
from tepo.randomness import derive
from tepo.training.engine import Engine
from tepo.training.flat import FlatRollout, even_chunks
from tepo.training.metrics import Stopwatch
from tepo.training.tallies import Tallies


@dataclass
class Updater:
    """Applies an objective to rollouts."""

    config: RunConfig
    objective: Objective
    engine: Engine

    def update(self, rollout: FlatRollout, step: int, watch: Stopwatch) -> dict[str, float]:
        """All mini-batches of all epochs of one rollout. Returns metrics under verl's names; raises RunFailed on a NaN loss."""
        train, tallies = self.config.train, Tallies()
        with watch("old_log_prob"):
            self._old_values(rollout)
        with watch("adv"):
            advantages = self.objective.advantages(rollout.groups_for_advantages(train.max_new_tokens))
        mini_batches = even_chunks(rollout.group_count, math.ceil(train.prompts_per_step / train.mini_batch_prompts))
        learning_rate = train.learning_rate * min(1.0, step / train.warmup_steps if train.warmup_steps else 1.0)
        with watch("update_actor"):
            for number in range(train.epochs * len(mini_batches)):
                groups = mini_batches[number % len(mini_batches)]
                salt = derive(self.config.seed, "objective", step, number)
                self._mini_batch(rollout, advantages, rollout.sequences_of(groups), salt, step, tallies)
                tallies.add_means(self.engine.step(learning_rate))
        return tallies.means(self.engine.comm) | {"actor/lr": learning_rate, "actor/updates": float(train.epochs * len(mini_batches))}

    def _mini_batch(self, rollout: FlatRollout, advantages: Tensor, sequences: list[int], salt: int, step: int, tallies: Tallies) -> None:
        """Accumulate the gradient of one mini-batch."""
        own = rollout.share(sequences, self.engine.comm)
        parts = self._micro_batches(rollout, own)
        ready = [self._forward(rollout, part) for part in parts] if len(parts) == 1 else None
        logprobs, entropies = self._prepass(rollout, parts, ready)
        plan = self.objective.prepare(rollout.batch(own, advantages, logprobs, entropies), comm=self.engine.comm, salt=salt)
        total = 0.0
        for part in parts:
            statistics = ready[0] if ready else self._forward(rollout, part)
            tallies.gap(rollout, part, statistics)
            batch = rollout.batch(part, advantages, statistics.logprobs, statistics.entropies, full_kl=statistics.full_kl)
            places = [own.index(sequence) for sequence in part] if len(parts) > 1 else list(range(len(part)))
            out = self.objective.loss(batch, plan.select(places) if len(parts) > 1 else plan)
            self.engine.backward(out.loss)
            total += float(out.loss.detach())
            tallies.add(out, batch)
        if not math.isfinite(total):
            raise RunFailed(
                f"step {step}: the loss is {total}",
                where=f"objective={self.config.objective.get('name', '?')}, learning rate {self.config.train.learning_rate:g}",
                fix="lower train.learning_rate or check the objective's coefficients; the last checkpoint is kept",
            )

    def _micro_batches(self, rollout: FlatRollout, sequences: Sequence[int]) -> list[list[int]]:
        """Sequences in parts of at most `engine.micro_batch_tokens` tokens, groups kept together where they fit."""
        lengths = [rollout.prompt_length(sequence) + rollout.length(sequence) for sequence in sequences]
        return [[sequences[place] for place in part] for part in split_by_tokens(lengths, self.config.engine.micro_batch_tokens)]

    def _prepass(self, rollout: FlatRollout, parts: list[list[int]], ready: list[TokenStatistics] | None) -> tuple[Tensor | None, Tensor | None]:
        """Current log-probs and entropies of the whole mini-batch, detached, for objectives that select tokens by them."""
        if not self.objective.needs.prepass:
            return None, None
        if ready is None:
            with torch.no_grad():
                ready = [self._forward(rollout, part, gradient=False) for part in parts]
        return torch.cat([part.logprobs.detach() for part in ready]), torch.cat([part.entropies.detach() for part in ready])

    def _forward(self, rollout: FlatRollout, part: Sequence[int], gradient: bool = True) -> TokenStatistics:
        needs = self.objective.needs
        return token_statistics(
            self.engine.model,
            self._pack(rollout, part),
            temperature=self.config.train.temperature,
            entropy_gradient=needs.entropy_gradient and gradient,
            reference=rollout.reference(part) if needs.full_kl and gradient else None,
        )

    def _pack(self, rollout: FlatRollout, part: Sequence[int]) -> Packed:
        return pack(rollout.groups_of(part), device=rollout.device)

    @torch.no_grad()
    def _old_values(self, rollout: FlatRollout) -> None:
        """pi_old's log-probs and entropies. The sampler's own are taken where they serve; where the objective compares full
        distributions or the sampler gave no entropies, the trainer computes them on its own path (reading A2)."""
        ...
