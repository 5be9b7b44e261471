"""The tokens that may be drawn: min_p, top_k and top_p, as `SamplingParams` defines them."""

import math

import torch
from torch import Tensor

from tepo.sampling.sampler import SamplingParams

_CANDIDATES = 1024  # the likeliest tokens, in which top_p nearly always ends; sorting 150,000 takes 20 times as long


def filtered(params: SamplingParams) -> bool:
    """Tell whether some tokens may not be drawn."""
    return params.temperature > 0 and (params.min_p > 0 or params.top_k > 0 or params.top_p < 1)


def filter_logits(logits: Tensor, params: SamplingParams) -> Tensor:
    """Put the lowest number in place of the logits [N, V], at the temperature, of the tokens left out, and return them:
    not -inf, whose product with its probability 0 is NaN. NaN is never left out."""
    least, size = torch.finfo(logits.dtype).min, logits.shape[-1]
    if params.min_p > 0:
        limit = logits.amax(-1, keepdim=True) + math.log(params.min_p)
        logits.masked_fill_(logits < limit, least)
    if 0 < params.top_k < size:
        logits.masked_fill_(logits < logits.topk(params.top_k).values[:, -1:], least)
    if params.top_p < 1:
        total = logits.logsumexp(-1, keepdim=True)
        for count in (min(_CANDIDATES, size), size):
            likeliest = logits.topk(count).values
            sums = (likeliest - total).exp().cumsum(-1)
            if count == size or not bool((sums[:, -1] < params.top_p).any()):
                break
        last = (sums < params.top_p).sum(-1, keepdim=True).clamp(max=count - 1)
        logits.masked_fill_(logits < likeliest.gather(-1, last), least)
    return logits
