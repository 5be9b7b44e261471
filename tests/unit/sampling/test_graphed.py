"""On a GPU steps as CUDA graphs are the plain steps."""

from itertools import chain

import numpy as np
import pytest
import torch

from tepo.sampling.embedded.torch_sampler import TorchSampler
from tepo.sampling.sampler import SamplingParams
from tests.unit.sampling.tiny import FAMILIES, KEYS, PROMPTS, TOKENIZER, tiny_model


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_change_nothing_on_cuda(family, dtype):
    model = tiny_model(family, vocab_size=101).to("cuda", dtype)
    params = SamplingParams(n=12, temperature=2.0, max_new_tokens=200)
    with_graphs, without = (
        TorchSampler(model, TOKENIZER, graphs=graphs).sample(PROMPTS, KEYS, params) for graphs in (True, False)
    )
    bound = 1e-4 if dtype == torch.float32 else 0.1
    for one, other in zip(chain(*with_graphs), chain(*without), strict=True):
        same = min(len(one.tokens), len(other.tokens))
        if dtype == torch.float32:
            np.testing.assert_array_equal(one.tokens, other.tokens)
        differs = np.flatnonzero(
            one.tokens[:same] != other.tokens[:same]
        )  # bfloat16: another window may round a draw over an edge
        agreed = int(differs[0]) if len(differs) else same
        np.testing.assert_allclose(one.logprobs[:agreed], other.logprobs[:agreed], atol=bound)
