"""The embedded sampler against the model it reads, run by `transformers`."""

import numpy as np
import pytest
import torch

from tepo.sampling.torch_sampler import TorchSampler
from tests.unit.sampling.tiny import EOS, FAMILIES, KEYS, PROMPTS, TOKENIZER, tiny_model


def recomputed(model, prompt, response, temperature=1.0):
    """Log-probabilities and entropies of a response by one plain forward pass."""
    ids = torch.tensor([[*prompt, *response.tokens.tolist()]])
    with torch.no_grad():
        logp = (model(ids).logits[0, len(prompt) - 1 : -1].float() / temperature).log_softmax(-1)
    return logp.gather(1, ids[0, len(prompt) :, None])[:, 0].numpy(), -(logp.exp() * logp).sum(-1).numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_generate_token_for_token(family):
    model = tiny_model(family)
    groups = TorchSampler(model, TOKENIZER).sample(PROMPTS, KEYS, n=2, temperature=0.0, max_new_tokens=24)
    for prompt, group in zip(PROMPTS, groups, strict=True):
        expected = model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0, len(prompt) :]
        for response in group:
            assert response.tokens.tolist() == expected.tolist()
            assert response.finished == (expected[-1].item() == EOS)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_logprobs_and_entropies_match_a_recompute(family, temperature):
    model = tiny_model(family)
    groups = TorchSampler(model, TOKENIZER).sample(PROMPTS, KEYS, n=4, temperature=temperature, max_new_tokens=20)
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for response in group:
            logprobs, entropies = recomputed(model, prompt, response, temperature or 1.0)
            np.testing.assert_allclose(response.logprobs, logprobs, atol=4e-5)
            np.testing.assert_allclose(response.entropies, entropies, atol=4e-5)
