"""In a file of its own: an engine of vLLM that closes ends torch's process group for others of its process."""

import pytest
import torch

from tepo.sampling.vllm.vllm_sampler import EngineOptions, VllmSampler
from tests.integration.test_vllm_sampler import draw, sampled
from tests.support.models import EOS, engine_model, nearby, save

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_in_bfloat16_the_output_matrix_multiplies_in_float32_also_after_a_sync(tmp_path, tied):
    """Logits that are rounded to bfloat16 differ by steps of a hundredth. A head that did not arrive would be seen."""
    model = engine_model(0, tied=tied)
    options = EngineOptions(save(model, tmp_path), "bfloat16", 256, max_rows=64)
    sampler = VllmSampler(options, [EOS], memory_fraction=0.06)
    try:
        assert sampler.llm.llm_engine.vllm_config.model_config.head_dtype == torch.float32
        for new in (model, nearby(model, 1, 0.05)):
            rounded = new.bfloat16()
            sampler.sync(rounded.state_dict())
            drawn = draw(sampler, length=20)
            rows = [(torch.tensor([prompt + response.tokens.tolist()]), len(prompt) - 1) for prompt, response in drawn]
            hidden = [rounded.model(ids).last_hidden_state[0, first:-1] for ids, first in rows]
            logits = torch.cat(hidden).float() @ rounded.lm_head.weight.float().T
            tokens = torch.cat([torch.from_numpy(response.tokens).long() for _, response in drawn])
            off = sampled(drawn) - logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
            assert off.abs().mean() < 0.03
    finally:
        sampler.close()
