"""Distance of the policy from the one that sampled a rollout, by the time of the step's last mini-batch."""

import torch
from torch import Tensor

from tepo.objectives import TokenBatch
from tepo.objectives.batch import all_sum
from tepo.objectives.objective import Clip
from tepo.objectives.segments import segment_sum
from tepo.training.distributed.comm import Comm


class PolicyDrift:
    """Sums over the tokens and sequences of the last mini-batch, from log-probs that its loss needs anyway: those
    before the last update. Kept on the device until `metrics`."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None  # float64 [8]

    @torch.no_grad()
    def add(self, batch: TokenBatch, log_ratio: Tensor) -> None:
        """Add one micro-batch; log_ratio: d = log pi - log pi_old [N], of tokens that pi_old sampled."""
        d, lengths = log_ratio.double(), batch.lengths
        means = segment_sum(d, lengths) / lengths.clamp(min=1)
        full = d.new_zeros(()) if batch.full_kl is None else batch.full_kl.detach().double().sum()
        counts = torch.stack([torch.tensor(len(d), device=d.device), (lengths > 0).sum()]).double()
        of_tokens = [d.sum(), d.square().sum(), (torch.expm1(d) - d).sum(), full]
        sums = torch.cat([counts, torch.stack([*of_tokens, means.sum(), means.square().sum()])])
        self._sums = sums if self._sums is None else self._sums + sums

    def metrics(self, clip: Clip | None, comm: Comm | None, *, exact: bool) -> dict[str, float]:
        """Metrics over all ranks. clip: of the objective. exact: whether `full_kl` was the KL to the policy that
        sampled."""
        assert self._sums is not None
        tokens, sequences, d, square, k3, full, mean, mean_square = all_sum(self._sums, comm).tolist()
        of_tokens = _sd(d, square, tokens)
        of_sequences = _sd(mean, mean_square, sequences)
        found = {
            "actor/realised_kl_k1": -d / tokens,
            "actor/realised_kl_k3": k3 / tokens,
            "actor/log_ratio_sd": of_tokens,
            "actor/sequence_log_ratio_sd": of_sequences,
        }
        if exact:
            found["actor/realised_kl_reverse"] = full / tokens
        spread = of_sequences if clip is not None and clip.of == "sequence" else of_tokens
        if clip is not None and spread > 0:
            found |= {f"actor/clip_{side}_over_sd": bound / spread for side, bound in clip.bounds.items()}
        return found


def _sd(total: float, squares: float, count: float) -> float:
    """Standard deviation of all values there are, without Bessel's correction."""
    return max(squares / count - (total / count) ** 2, 0.0) ** 0.5
