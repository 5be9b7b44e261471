"""Log-prob, entropy and exact KL of a linear output layer, from hidden states and the output matrix.

Small problems take the direct path, which holds the log-probs of the vocabulary once. Large ones never hold their
logits: one tile of [tokens, part of the vocabulary] is used again and again. The forward keeps a running maximum, sum
of exponentials and weighted sum per token (online log-sum-exp: Milakov and Gimelshein 2018, arXiv 1805.02867); the
backward makes each tile again, turns it in place into the gradient of the logits and multiplies it on. That is four
products of 2NVH operations where three are the least, and O(N) numbers kept. Tiles span all tokens when the budget
allows, so each slice of the weight's gradient is written once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tepo.policy.logprobs import tile
from tepo.policy.logprobs.tile_budget import BUDGET, tile_budget
from tepo.policy.logprobs.tile_sums import GradientCoefficients, RunningSums


@dataclass(frozen=True, slots=True)
class StatisticsOptions:
    """Choice of what is computed of the output distribution."""

    temperature: float = 1.0  # of the softmax
    entropy_gradient: bool = False  # let the gradient of the entropy flow
    need_entropy: bool = True  # else None
    reference: Tensor | None = None  # log-probs [N, V] float32 of another policy, for the exact KL to it
    budget: int | None = None  # bytes for logits; None: the device's

    @property
    def kept(self) -> int:
        """Bytes of log-probs of the full vocabulary up to which those of all tokens are kept."""
        return BUDGET if self.budget is None else self.budget

    def tile(self, device: torch.device) -> int:
        """Bytes of a tile of logits."""
        if self.budget is not None:
            return self.budget
        return tile_budget(torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0)


_LEAST_COLUMNS = 2048  # narrower tiles waste the products
_LEAST_ROWS = 256


class ChunkedStatistics(torch.autograd.Function):
    """log p(target) [N] and entropy [N] of softmax(hidden weight^T / temperature); a tile takes at most
    `options.tile` bytes (unless 256 tokens x 2,048 columns are already more). float32 results, float64 for float64
    inputs."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, options: StatisticsOptions
    ) -> tuple[Tensor, Tensor]:
        state = RunningSums.empty(hidden)
        shape = _tile_shape(len(hidden), len(weight), options.tile(hidden.device))
        buffer = hidden.new_empty(shape[0] * shape[1], dtype=state.total.dtype)
        for rows, columns in _tiles(len(hidden), len(weight), shape):
            logits = tile.product(hidden[rows], weight[columns], buffer)
            tile.accumulate(logits, state.part(rows), targets[rows] - columns.start, 1.0 / options.temperature)
        logprobs, entropies, normaliser = state.finish()
        ctx.save_for_backward(hidden, weight, targets, normaliser, entropies)
        ctx.options, ctx.shape = options, shape
        ctx.mark_non_differentiable(*([] if options.entropy_gradient else [entropies]))
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, normaliser, entropies = ctx.saved_tensors
        inverse = 1.0 / ctx.options.temperature
        # With g = d loss / d log p(target), h = d loss / d H and z the scaled logits:
        #   d log p(target) / dz_v = [v = target] - p_v,    dH / dz_v = -p_v (log p_v + H)
        # so d loss / dz_v = p_v (-g - h H - h log p_v) + g [v = target]: two numbers a token and one at its target,
        # which is all that a tile needs beside its own logits. No [N, V] is kept from the forward.
        slope = -inverse * grads[1] if ctx.options.entropy_gradient else None  # -h
        offset = -inverse * grads[0] if slope is None else -inverse * grads[0] + slope * entropies  # -g - h H
        coefficients = GradientCoefficients(normaliser, offset, slope, inverse * grads[0])
        buffer = hidden.new_empty(ctx.shape[0] * ctx.shape[1], dtype=normaliser.dtype)
        for_hidden, for_weight = ctx.needs_input_grad[:2]
        sums = tile.GradientSums(hidden, weight, for_hidden, for_weight, columns=ctx.shape[1])
        for rows, columns in _tiles(len(hidden), len(weight), ctx.shape):
            logits = tile.product(hidden[rows], weight[columns], buffer)
            dlogits = tile.gradient(
                logits, coefficients.part(rows), targets[rows] - columns.start, inverse, hidden.dtype
            )
            sums.add(dlogits, rows, columns)
        return *sums.results(), None, None


def _tile_shape(tokens: int, vocabulary: int, budget: int) -> tuple[int, int]:
    """Rows and columns of a tile of at most `budget` bytes of float32: all tokens if the columns do not get too few."""
    cells = budget // 4
    rows = min(tokens, max(cells // _LEAST_COLUMNS, _LEAST_ROWS))
    rows = -(-tokens // -(-tokens // rows))  # equal parts
    columns = min(vocabulary, max(cells // rows, _LEAST_COLUMNS))
    columns = -(-vocabulary // -(-vocabulary // columns))
    return rows, min(vocabulary, -(-columns // 64) * 64)


def _tiles(tokens: int, vocabulary: int, shape: tuple[int, int]) -> Iterator[tuple[slice, slice]]:
    """(rows, columns) of every tile; all rows of some columns before the next columns."""
    for column in range(0, vocabulary, shape[1]):
        for row in range(0, tokens, shape[0]):
            yield slice(row, min(row + shape[0], tokens)), slice(column, min(column + shape[1], vocabulary))


def softmax_statistics(
    hidden: Tensor, weight: Tensor, targets: Tensor, options: StatisticsOptions = StatisticsOptions()
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """log p(target) [N], entropy [N] and KL(p || reference) [N] of p = softmax(hidden weight^T / temperature).

    hidden [N, H] and weight [V, H] of one dtype, targets [N] int64. Results are float32 (float64 for float64 inputs),
    in nats. Gradients are exact; that of the entropy flows only with `entropy_gradient`, else the entropy comes
    detached. Products accumulate in float32 whatever the inputs. With a reference, which is as large as the logits, a
    part is some tokens with the full vocabulary.
    """
    widened = 0 if hidden.is_cuda or hidden.dtype.itemsize >= 4 else hidden.shape[1]  # half precision, on a CPU
    small = 4 * len(weight) * max(len(hidden), widened) <= options.kept
    if options.reference is not None or small or not len(hidden):
        logprobs, entropies, full_kl = DirectStatistics.apply(hidden, weight, targets, options)
    else:
        logprobs, entropies = ChunkedStatistics.apply(hidden, weight, targets, options)
        full_kl = None
    if not options.need_entropy:
        return logprobs, None, full_kl
    return logprobs, entropies if options.entropy_gradient else entropies.detach(), full_kl


class DirectStatistics(torch.autograd.Function):
    """log p(target) [N], entropy [N] or None, KL to a reference [N] or None. Keeps probabilities and log-probs [N, V]
    for the backward where one of them takes at most `options.kept` bytes, else makes those of some tokens at a time
    again."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, options: StatisticsOptions
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        reference = options.reference
        parts = token_parts(len(hidden), len(weight), options.kept)
        logprobs, entropies, kls = [], [], []
        for rows in parts:
            probs, logp = _distribution(hidden[rows], weight, options.temperature)
            logprobs.append(logp.gather(1, targets[rows, None])[:, 0])
            if options.need_entropy:
                entropies.append(-torch.linalg.vecdot(probs, logp))
            if reference is not None:
                kls.append(torch.linalg.vecdot(probs, logp - reference[rows]))
        entropy, kl = (torch.cat(values) if values else None for values in (entropies, kls))
        ctx.save_for_backward(hidden, weight, targets, reference, entropy, kl, *((probs, logp) * (len(parts) == 1)))
        ctx.temperature, ctx.parts = options.temperature, parts
        ctx.set_materialize_grads(False)
        return torch.cat(logprobs), entropy, kl

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, reference, entropy, kl, *kept = ctx.saved_tensors
        of_logprob, of_entropy, of_kl = grads

        def dlogits(rows: slice, probs: Tensor, logp: Tensor) -> Tensor:
            out = torch.zeros_like(probs) if of_logprob is None else probs * -of_logprob[rows, None]
            if of_logprob is not None:
                out.scatter_add_(1, targets[rows, None], of_logprob[rows, None])
            if of_entropy is not None:  # dH/dz_v = -p_v (log p_v + H)
                out.addcmul_(probs, (logp + entropy[rows, None]).mul_(of_entropy[rows, None]), value=-1.0)
            if of_kl is not None:  # dKL/dz_v = p_v (log p_v - log q_v - KL)
                out.addcmul_(probs, (logp - reference[rows]).sub_(kl[rows, None]).mul_(of_kl[rows, None]))
            if ctx.temperature != 1.0:
                out.div_(ctx.temperature)
            return out.to(hidden.dtype)

        if kept:
            whole = dlogits(ctx.parts[0], *kept)
            dhidden = torch.mm(whole, weight) if ctx.needs_input_grad[0] else None
            dweight = torch.mm(whole.t(), hidden) if ctx.needs_input_grad[1] else None
            return dhidden, dweight, None, None
        for_hidden, for_weight = ctx.needs_input_grad[:2]
        sums = tile.GradientSums(hidden, weight, for_hidden, for_weight, columns=len(weight))
        for rows in ctx.parts:
            part = dlogits(rows, *_distribution(hidden[rows], weight, ctx.temperature))
            sums.add(part, rows, slice(0, len(weight)))
        return *sums.results(), None, None


def _distribution(hidden: Tensor, weight: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Probabilities and log-probs [n, V], in float32 at least."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    logits = tile.product(hidden, weight, hidden.new_empty(len(hidden) * len(weight), dtype=wide))
    if temperature != 1.0:
        logits.div_(temperature)
    logp = torch.log_softmax(logits, dim=1)
    return torch.exp(logp, out=logits), logp


def token_parts(tokens: int, vocabulary: int, budget: int = BUDGET) -> list[slice]:
    """Rows of [N, V] numbers in even parts of at most `budget` bytes of float32, or of one token."""
    count = max(-(-tokens // max(budget // (4 * vocabulary), 1)), 1)
    bounds = [tokens * part // count for part in range(count + 1)]
    return [slice(begin, end) for begin, end in pairwise(bounds)]
