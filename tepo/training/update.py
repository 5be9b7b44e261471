"""The updates of one rollout step: for each mini-batch log-probs, objective, step (TEPO Algorithm 1, lines 12-25).

The one place where an objective's loss is called. Denominators and selections come from `objective.prepare` over the
whole mini-batch and all ranks before the first backward, so micro-batches and ranks only add up.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from tepo.config.schema import RunConfig
from tepo.errors import RunFailed
from tepo.objectives import Objective, TokenBatch
from tepo.policy.packing import split_by_tokens
from tepo.policy.statistics import TokenStatistics, reference_logprobs, token_statistics
from tepo.randomness import derive
from tepo.sampling.gap import Evidence, GapAlarm
from tepo.training.engine import Engine
from tepo.training.flat import FlatRollout, even_chunks
from tepo.training.metrics import Stopwatch
from tepo.training.tallies import Tallies
from tepo.training.token_dump import TokenDump


@dataclass
class Updater:
    """Applies an objective to rollouts."""

    config: RunConfig
    objective: Objective
    engine: Engine
    alarm: GapAlarm
    initial: nn.Module | None = None  # the policy before training, where the objective is anchored on it

    def update(
        self, rollout: FlatRollout, step: int, watch: Stopwatch, tallies: Tallies, dump: TokenDump | None = None
    ) -> dict[str, float]:
        """All mini-batches of all epochs of one rollout; `dump` gets the tokens of the last one. Returns metrics under
        verl's names; raises RunFailed on a NaN loss."""
        train = self.config.train
        with watch("old_log_prob"):
            self._old_values(rollout)
        with watch("adv"):
            advantages = self.objective.advantages(rollout.for_advantages(train.max_new_tokens))
        batch = rollout.batch(advantages, train.max_new_tokens)
        mini_batches = even_chunks(rollout.group_count, train.mini_batches)
        metrics: dict[str, float] = {}
        updates = train.epochs * len(mini_batches)
        learning_rate = train.learning_rate * (min(1.0, step / train.warmup_steps) if train.warmup_steps else 1.0)
        with watch("update_actor"):
            for number in range(updates):
                sequences = rollout.share(
                    rollout.sequences_of(mini_batches[number % len(mini_batches)]), self.engine.comm
                )
                counts = self._mini_batch(
                    rollout,
                    batch.select(sequences),
                    sequences,
                    step,
                    number,
                    tallies,
                    dump if number == updates - 1 else None,
                )
                if number == 0:  # the policy is still the one that sampled
                    metrics |= self._check_gap(rollout, sequences, tallies, step)
                tallies.add_values(
                    self.engine.step(learning_rate) if counts else {"actor/grad_norm": 0.0, "actor/skipped": 1.0}
                )
        return metrics | tallies.means(self.engine.comm) | {"actor/lr": learning_rate, "actor/updates": float(updates)}

    def _mini_batch(
        self,
        rollout: FlatRollout,
        batch: TokenBatch,
        sequences: list[int],
        step: int,
        number: int,
        tallies: Tallies,
        dump: TokenDump | None,
    ) -> bool:
        """Accumulate the gradient of one mini-batch (this rank's part of it).
        False when no token of it is in the loss, on any rank."""
        parts = self._micro_batches(rollout, sequences)
        alone = self._forward(rollout, sequences) if len(parts) == 1 else None
        salt = derive(self.config.seed, "objective", step, number)
        plan = self.objective.prepare(
            self._with_current(rollout, batch, sequences, parts, alone), comm=self.engine.comm, salt=salt
        )
        losses: list[Tensor] = []
        for places in parts:
            current = alone or self._forward(rollout, [sequences[place] for place in places])
            micro = batch if alone else batch.select(places)
            micro = replace(micro, logprobs=current.logprobs, entropies=current.entropies, full_kl=current.full_kl)
            out = self.objective.loss(micro, plan if alone else plan.select(places))
            self.engine.backward(out.loss)
            losses.append(out.loss.detach())
            tallies.add(out, micro, first=number == 0)
            if dump is not None:
                dump.add([sequences[place] for place in places], micro, out)
        return self._check_finite(losses, plan.totals[0], step)

    def _check_finite(self, losses: Sequence[Tensor], tokens: Tensor, step: int) -> bool:
        """Stop before a NaN reaches the optimiser; False when `tokens` is 0: a gradient of zeros would still move
        the weights, by AdamW's momentum and decay.
        Read once a mini-batch: reading a loss makes the host wait for the GPU."""
        value, number = torch.stack([torch.stack(tuple(losses)).sum().double(), tokens]).tolist()
        if not math.isfinite(value):
            raise RunFailed(
                f"step {step}: the loss is {value}",
                where=(
                    f"objective={self.config.objective.get('name', '?')}, "
                    f"learning rate {self.config.train.learning_rate:g}"
                ),
                fix=(
                    "lower train.learning_rate, or check the rewards and the objective's coefficients; "
                    "the last checkpoint is kept"
                ),
            )
        return number > 0

    def _micro_batches(self, rollout: FlatRollout, sequences: Sequence[int]) -> list[list[int]]:
        """Places in `sequences`, in parts of at most `engine.micro_batch_tokens` tokens, groups kept together where
        they fit. Every rank gets the same number of parts, as sharded engines need; the ones added are empty."""
        parts = split_by_tokens(*rollout.costs(sequences), self.config.engine.micro_batch_tokens)
        comm = self.engine.comm
        if comm is not None:
            most = int(torch.cat(comm.all_gather(torch.tensor([len(parts)]))).max())
            parts += [[] for _ in range(most - len(parts))]
        return parts

    def _with_current(
        self,
        rollout: FlatRollout,
        batch: TokenBatch,
        sequences: list[int],
        parts: list[list[int]],
        alone: TokenStatistics | None,
    ) -> TokenBatch:
        """The mini-batch with detached current log-probs and entropies, where the objective selects tokens by them."""
        if not self.objective.needs.prepass:
            return batch
        if alone is not None:
            ready = [alone]
        else:
            with torch.no_grad():
                ready = [self._forward(rollout, [sequences[place] for place in places]) for places in parts]
        return replace(
            batch,
            logprobs=torch.cat([part.logprobs.detach() for part in ready]),
            entropies=_cat([part.entropies for part in ready]),
        )

    def _forward(self, rollout: FlatRollout, part: Sequence[int]) -> TokenStatistics:
        """Statistics of some sequences. None at all still runs the model, and keeps its graph: every rank of a sharded
        model must take part in every pass."""
        needs = self.objective.needs
        done = token_statistics(
            self.engine.model,
            rollout.pack(part or [0]),
            temperature=self.config.train.temperature,
            entropy_gradient=needs.entropy_gradient and torch.is_grad_enabled(),
            reference=rollout.reference(part or [0]) if needs.full_kl else None,
        )
        if part:
            return done
        return TokenStatistics(
            *(None if value is None else value[:0] for value in (done.logprobs, done.entropies, done.full_kl))
        )  # type: ignore[arg-type]

    def _check_gap(self, rollout: FlatRollout, sequences: list[int], tallies: Tallies, step: int) -> dict[str, float]:
        """Sampler against trainer on the first mini-batch. Raises RunFailed beyond the bound, with the likely cause."""
        parts = [[sequences[place] for place in places] for places in self._micro_batches(rollout, sequences)]

        def score(temperature: float) -> Tensor:
            done = [
                token_statistics(
                    self.engine.model, rollout.pack(part or [0]), temperature=temperature, need_entropy=False
                ).logprobs
                for part in parts
            ]
            return torch.cat([values if part else values[:0] for part, values in zip(parts, done, strict=True)])

        pairs = [rollout.tokens_as_sampled(sequence) for part in parts for sequence in part]
        sampler, trainer = (torch.cat(values) for values in zip(*tallies.gap, strict=True))
        return self.alarm.check(sampler, trainer, Evidence(score, pairs, self.engine.model), where=f"step {step}")

    @torch.no_grad()
    def _old_values(self, rollout: FlatRollout) -> None:
        """pi_old's log-probs and entropies.
        The sampler's own are taken where they serve; where the objective compares whole distributions or corrects the
        gap between the two, where the sampler gave no entropies, and in bfloat16, in which the two round apart by more
        than GSPO's clip distances, the trainer computes them on its own path (reading A2)."""
        needs = self.objective.needs
        compared = needs.sampler_logprobs or (
            needs.entropies and needs.old_entropies
        )  # their difference must not be rounding, nor 0 by definition
        if needs.full_kl and needs.full_kl_anchor == "old":
            rollout.old_distribution = self._distribution(rollout, self.engine.model)
            rollout.old_logprobs = rollout.old_distribution.gather(1, rollout.targets()[:, None])[:, 0]
            rollout.old_entropies = -(rollout.old_distribution.exp() * rollout.old_distribution).sum(1)
        elif rollout.old_entropies is None or compared or self.config.model.dtype != "float32":
            rollout.old_logprobs, rollout.old_entropies = self._spread(rollout)
        if self.initial is not None:
            if needs.full_kl and needs.full_kl_anchor == "initial":
                rollout.old_distribution = self._distribution(rollout, self.initial)
            if needs.initial_logprobs:
                rollout.initial_logprobs = self._initial(rollout, self.initial)

    def _initial(self, rollout: FlatRollout, model: nn.Module) -> Tensor:
        """Log-probs [N] of the initial policy; every rank scores all, as it has the model whole."""
        parts = self._all_parts(rollout)
        return torch.cat(
            [
                token_statistics(
                    model, rollout.pack(part), temperature=self.config.train.temperature, need_entropy=False
                ).logprobs
                for part in parts
            ]
        )

    def _distribution(self, rollout: FlatRollout, model: nn.Module) -> Tensor:
        """Log-probs [N, V] of the whole vocabulary."""
        return torch.cat(
            [
                reference_logprobs(model, rollout.pack(part), temperature=self.config.train.temperature)
                for part in self._all_parts(rollout)
            ]
        )

    def _all_parts(self, rollout: FlatRollout) -> list[list[int]]:
        return split_by_tokens(*rollout.costs(range(rollout.sequence_count)), self.config.engine.micro_batch_tokens)

    def _spread(self, rollout: FlatRollout) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies [N] of the whole rollout, each rank scoring its share."""
        every, comm = list(range(rollout.sequence_count)), self.engine.comm
        own = rollout.share(every, comm)
        done = [
            self._forward(rollout, [own[place] for place in places]) for places in self._micro_batches(rollout, own)
        ]
        results = []
        for values in ([part.logprobs for part in done], [part.entropies for part in done]):
            flat = torch.cat([value for value in values if value is not None])
            whole = flat.new_empty(len(rollout.sampler_logprobs))
            for rank, piece in enumerate([flat] if comm is None else comm.all_gather(flat)):
                whole[rollout.tokens_of(rollout.share(every, comm, rank))] = piece
            results.append(whole)
        return results[0], results[1]


def _cat(values: Sequence[Tensor | None]) -> Tensor | None:
    present = [value.detach() for value in values if value is not None]
    return torch.cat(present) if len(present) == len(values) else None
