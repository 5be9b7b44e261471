"""Response i of a prompt is a function of (weights, prompt, its key, i) alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tepo.sampling.embedded import torch_sampler
from tepo.sampling.embedded.generation import Generation
from tepo.sampling.embedded.torch_sampler import TorchSampler
from tepo.sampling.sampler import Job, SamplingParams
from tests.support.models import KEYS, PROMPTS, TOKENIZER, tiny_model

PARAMS = SamplingParams(n=4, temperature=1.0, max_new_tokens=30)


@pytest.fixture(scope="module")
def model():
    return tiny_model("qwen3")


@pytest.fixture(scope="module")
def whole(model):
    return TorchSampler(model, TOKENIZER).sample(PROMPTS, KEYS, PARAMS)


def assert_same(groups, expected, *, exact=False):
    """Same tokens; log-probabilities and entropies equal, or up to rounding."""
    for group, other in zip(groups, expected, strict=True):
        for a, b in zip(group, other, strict=True):
            assert a.tokens.tolist() == b.tokens.tolist()
            assert a.finished == b.finished
            for one, two in ((a.logprobs, b.logprobs), (a.entropies, b.entropies)):
                np.testing.assert_allclose(one, two, rtol=0, atol=0 if exact else 4e-5)


def test_the_same_call_gives_the_same_bits(model, whole):
    sampler = TorchSampler(model, TOKENIZER)
    sampler.sample([[9] * 20], [5], replace(PARAMS, n=7, max_new_tokens=90))  # leaves used buffers behind
    assert_same(sampler.sample(PROMPTS, KEYS, PARAMS), whole, exact=True)


def test_the_same_bits_wherever_the_weights_lie(model):
    """A resumed run may have its weights at addresses of another alignment, as in a memory-mapped file."""
    other = tiny_model("qwen3")
    for parameter in other.parameters():
        shifted = torch.empty(parameter.numel() + 2)[2:].view_as(parameter)
        parameter.data = shifted.copy_(parameter.data)
    one = replace(PARAMS, n=1, max_new_tokens=60)  # a single row is where MKL's result depends on it
    expected = TorchSampler(model, TOKENIZER).sample(PROMPTS[2:3], KEYS[:1], one)
    assert_same(TorchSampler(other, TOKENIZER).sample(PROMPTS[2:3], KEYS[:1], one), expected, exact=True)


def test_alone_or_in_company(model, whole):
    sampler = TorchSampler(model, TOKENIZER)
    assert_same([sampler.sample([prompt], [key], PARAMS)[0] for prompt, key in zip(PROMPTS, KEYS, strict=True)], whole)
    assert_same(sampler.sample(PROMPTS[::-1], KEYS[::-1], PARAMS)[::-1], whole)


@pytest.mark.parametrize("rows", [1, 3, 9])
def test_however_many_rows_at_a_time(model, whole, rows):
    assert_same(TorchSampler(model, TOKENIZER, max_rows=rows).sample(PROMPTS, KEYS, PARAMS), whole)


def test_whatever_memory_is_free(model, whole, monkeypatch):
    """On a GPU the rows at a time follow from what is free at the call: the same responses from one row as from all."""
    rows = []
    run = Generation.run
    monkeypatch.setattr(Generation, "run", lambda self: rows.append(len(self.lengths)) or run(self))
    for free in (1, 250_000, 1 << 40):
        monkeypatch.setattr(torch_sampler, "free_bytes", lambda device, free=free: free)
        assert_same(TorchSampler(model, TOKENIZER).sample(PROMPTS, KEYS, PARAMS), whole)
    assert {1, 2, 16} <= set(rows)


def test_more_samples_or_more_tokens_extend(model, whole):
    groups = TorchSampler(model, TOKENIZER).sample(PROMPTS, KEYS, replace(PARAMS, n=9, max_new_tokens=50))
    for group, other in zip(groups, whole, strict=True):
        for a, b in zip(group, other, strict=False):
            assert a.tokens[:30].tolist() == b.tokens.tolist()


def test_other_keys_give_other_samples(model, whole):
    groups = TorchSampler(model, TOKENIZER).sample(PROMPTS, [key + 1 for key in KEYS], PARAMS)
    assert all(a.tokens.tolist() != b.tokens.tolist() for a, b in zip(groups[2], whole[2], strict=True))
    twins = TorchSampler(model, TOKENIZER).sample([PROMPTS[2]] * 2, [3, 4], PARAMS)
    texts = {tuple(response.tokens) for group in twins for response in group}
    assert len(texts) == 8


# the queue ------------------------------------------------------------------------------------------------------------
OTHERS = [Job(100 + number, [7 + number] * (3 + 5 * number), number) for number in range(5)]
WAVE = [Job(number, prompt, key) for number, (prompt, key) in enumerate(zip(PROMPTS, KEYS, strict=True))]


# what is done with a queue, in order: jobs are added; `look`, `glance`: at what is finished; `abort`
HISTORIES = {
    "after others": (OTHERS, WAVE),
    "before others": (WAVE, OTHERS),
    "beside others": (OTHERS[:2], OTHERS[2:], "look", WAVE, [replace(job, number=job.number + 100) for job in OTHERS]),
    "after an abort": (OTHERS, WAVE, "look", "abort", WAVE),
    "after an abort in its midst": (WAVE, "glance", "abort", WAVE, OTHERS),
}


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("limits", [{}, {"max_rows": 3}])
def test_the_same_bits_whatever_else_is_queued_finished_or_aborted(model, limits, history):
    expected = TorchSampler(model, TOKENIZER, **limits).sample(PROMPTS, KEYS, PARAMS)
    queue = TorchSampler(model, TOKENIZER, **limits).start(PARAMS)
    acts = {"look": queue.finished, "glance": lambda: queue.finished(0.0), "abort": queue.abort}
    for step in HISTORIES[history]:
        acts[step]() if isinstance(step, str) else queue.add(step)
    groups = {}
    while done := queue.finished():
        groups.update(done)
    assert_same([groups[job.number] for job in WAVE], expected, exact=True)
