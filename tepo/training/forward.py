"""Forward passes over a rollout: log-probs and entropies of its tokens under the trained and the initial policy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from tepo.config.run_config import TrainConfig
from tepo.objectives import Needs
from tepo.policy.logprobs.hidden_states import hidden_states
from tepo.policy.logprobs.linear_statistics import StatisticsOptions
from tepo.policy.logprobs.token_statistics import TokenStatistics, reference_logprobs, token_statistics
from tepo.policy.model.lora import adapters_off
from tepo.training.batch import Dealer, FlatRollout, even_chunks
from tepo.training.engine.engine import Engine


@dataclass(frozen=True)
class ForwardPasses:
    """Passes of the trained model, and of the initial policy where the objective is anchored on it.

    needs: of the objective. dtype: of the trained weights. dealer: shares the sequences out among the ranks."""

    engine: Engine
    initial: nn.Module | None
    needs: Needs
    train: TrainConfig
    dtype: str
    dealer: Dealer

    def statistics(self, rollout: FlatRollout, part: Sequence[int]) -> TokenStatistics:
        """Log-probs of some sequences, and what else the objective needs. None at all still runs the model on the
        shortest, and keeps its graph: every rank of a sharded model must take part in every pass."""
        needs, pushed = self.needs, part or [rollout.shortest]
        options = StatisticsOptions(
            temperature=self.train.temperature,
            entropy_gradient=needs.entropy_gradient and torch.is_grad_enabled(),
            reference=rollout.reference(pushed) if needs.full_kl else None,
        )
        done = token_statistics(self.engine.model, rollout.pack(pushed), options, hidden=rollout.take_kept(part))
        if part:
            return done
        values = (None if value is None else value[:0] for value in (done.logprobs, done.entropies, done.full_kl))
        return TokenStatistics(*values)  # type: ignore[arg-type]

    @torch.no_grad()
    def compute_old_logprobs(self, rollout: FlatRollout) -> int:
        """Give a rollout pi_old's log-probs and entropies, and those of its anchor. Returns how many passes over the
        rollout that took. The sampler's own are taken where they serve; where the objective compares full distributions
        or corrects the gap between the two, where the sampler gave no entropies, and in bfloat16, in which the two
        round apart by more than GSPO's clip distances, the trainer computes them on its own path (reading A2). So it
        does for a rollout that waits for its step: later, nothing could tell the sampler's error from what the policy
        has moved."""
        needs = self.needs
        # Two things that are compared: a difference must not be rounding, nor 0 by definition.
        compared = needs.sampler_logprobs or (needs.entropies and needs.old_entropies)
        passes = 0
        own = compared or self.dtype != "float32" or self.train.staleness > 0
        if needs.full_kl and needs.full_kl_anchor == "old":
            rollout.old_distribution = self._old_distribution(rollout)
            rollout.old_logprobs = rollout.old_distribution.gather(1, rollout.targets()[:, None])[:, 0]
            rollout.old_entropies = -(rollout.old_distribution.exp() * rollout.old_distribution).sum(1)
            passes += 1
        elif rollout.old_entropies is None or own:

            def score(part: Sequence[int]) -> Tensor:
                done = self.statistics(rollout, part)
                assert done.entropies is not None
                return torch.stack([done.logprobs, done.entropies], 1)

            both = self._scored(rollout, score).unbind(1)
            rollout.old_logprobs, rollout.old_entropies = (values.contiguous() for values in both)
            passes += 1
        if (initial := self.initial) is not None:
            with adapters_off(initial):  # with LoRA it is the trained model itself
                if needs.full_kl and needs.full_kl_anchor == "initial":
                    rollout.old_distribution = self._distribution(rollout, initial)
                    passes += 1
                if needs.initial_logprobs:
                    options = StatisticsOptions(temperature=self.train.temperature, need_entropy=False)
                    rollout.initial_logprobs = self._scored(
                        rollout, lambda part: token_statistics(initial, rollout.pack(part), options).logprobs
                    )
                    passes += 1
        return passes

    def _old_distribution(self, rollout: FlatRollout) -> Tensor:
        """Log-probs [N, V] of the full vocabulary under the policy that sampled. The first update needs a pass over the
        first mini-batch with these very weights: where that is one micro-batch, its graph is kept for it. Not for a
        rollout that waits: its first update has other weights."""
        model, temperature = self.engine.model, self.train.temperature
        runs = even_chunks(rollout.group_count, self.train.mini_batches)
        first = rollout.sequences_of(runs[0])
        waits = self.train.staleness > 0
        if waits or self.engine.comm is not None or len(self.dealer.own(rollout, first)) > 1:
            return self._distribution(rollout, model)
        packed = rollout.pack(first)
        with torch.enable_grad():
            rollout.kept = first, hidden_states(model, packed)
        own = reference_logprobs(model, packed, temperature=temperature, hidden=rollout.kept[1].detach())
        rest = len(runs) > 1
        return torch.cat([own, self._distribution(rollout, model, after=len(first))]) if rest else own

    def _distribution(self, rollout: FlatRollout, model: nn.Module, after: int = 0) -> Tensor:
        """Log-probs [n, V] of the full vocabulary for the sequences number `after` and up."""
        temperature = self.train.temperature
        return self._scored(
            rollout, lambda part: reference_logprobs(model, rollout.pack(part), temperature=temperature), after
        )

    def _scored(self, rollout: FlatRollout, score: Callable[[Sequence[int]], Tensor], after: int = 0) -> Tensor:
        """Results of `score` for the sequences number `after` and up, a row for each of their tokens: every rank scores
        its micro-batches, and all have the result. An empty one still runs the model, see `statistics`."""
        comm, every = self.engine.comm, range(after, rollout.sequence_count)
        dealt = self.dealer.all(rollout, every)
        own = dealt[self.dealer.rank]
        rows = torch.cat([score(part) if part else score([rollout.shortest])[:0] for part in own])
        if comm is None:
            return rows
        pieces = [piece.view(-1, *rows.shape[1:]) for piece in comm.all_gather(rows.flatten())]
        full = rows.new_empty(len(rollout.sampler_logprobs), *rows.shape[1:])
        full[rollout.tokens_of(list(chain(*chain(*dealt))))] = torch.cat(pieces)
        return full[rollout.offsets[after] :]
