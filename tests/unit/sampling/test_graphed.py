"""The step that a CUDA graph can hold: on a CPU its arithmetic without the graph,
on a GPU the graph against the plain step."""

from itertools import chain

import numpy as np
import pytest
import torch

from tepo.sampling.embedded import generation
from tepo.sampling.embedded.decode_forward import StaticStep, Stepper, Workspace
from tepo.sampling.embedded.decoder import Decoder
from tepo.sampling.embedded.generation import Generation, Shared
from tepo.sampling.embedded.kv_cache import Arena, KeyValueCache
from tepo.sampling.embedded.torch_sampler import TorchSampler
from tepo.sampling.sampler import SamplingParams
from tests.unit.sampling.tiny import EOS, FAMILIES, KEYS, PROMPTS, TOKENIZER, tiny_model

ROWS, START, WINDOW = 5, 4, 16


def stepper_of(decoder: Decoder) -> Stepper:
    """Rows with prompts of 1 to 4 tokens, the same random cache each time."""
    arenas = [Arena(decoder.dtype, decoder.device) for _ in range(2)]
    cache = KeyValueCache(arenas[0], (len(decoder.layers), ROWS, decoder.kv_heads, WINDOW, decoder.head_dim))
    cache.data.zero_()[..., :START, :, :] = torch.randn(
        cache.data[..., :START, :, :].shape, generator=torch.Generator().manual_seed(1)
    )
    lengths = torch.tensor([1, 4, 2, 3, 4])
    hidden = torch.ones(ROWS, WINDOW, dtype=torch.bool)
    hidden[:, :START] = torch.arange(START) >= lengths[:, None]
    work = Workspace(decoder, arenas[1], ROWS)
    return Stepper(work, cache, hidden, lengths - START, decoder.turns(WINDOW)[:, None, None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_a_step_with_its_inputs_in_buffers_is_the_plain_step(family, dtype):
    decoder = Decoder(tiny_model(family).to(dtype))
    plain, stepper = stepper_of(decoder), stepper_of(decoder)
    static = StaticStep(stepper)
    for column in range(START, WINDOW):
        tokens = torch.arange(ROWS) * 3 + column % 7
        torch.testing.assert_close(static.step(tokens, column), plain.step(tokens, column), rtol=0, atol=0)
    torch.testing.assert_close(stepper.cache.data, plain.cache.data, rtol=0, atol=0)


@torch.inference_mode()
def test_generation_by_such_steps_over_several_windows_and_compactions(monkeypatch):
    monkeypatch.setattr(generation, "GraphedStep", StaticStep)  # the step without the graph
    model = tiny_model("qwen3", vocab_size=101)
    arenas = (Arena(torch.float32, torch.device("cpu")), Arena(torch.float32, torch.device("cpu")))
    params = SamplingParams(n=12, temperature=2.0, max_new_tokens=200)
    found = Generation(
        Shared(Decoder(model), arenas, [EOS], graphs=True), PROMPTS, KEYS, params, [0] * len(PROMPTS)
    ).run()
    expected = [
        response for group in TorchSampler(model, TOKENIZER).sample(PROMPTS, KEYS, params) for response in group
    ]
    assert len({len(response.tokens) for response in expected}) > 20
    assert max(len(response.tokens) for response in expected) > 128
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


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
