from dataclasses import replace

import pytest

from tepo.common.errors import UserError
from tepo.sampling.embedded import torch_sampler
from tepo.sampling.embedded.torch_sampler import TorchSampler
from tepo.sampling.sampler import Job, SamplingParams
from tests.support.models import KEYS, PROMPTS, TOKENIZER, tiny_model

PARAMS = SamplingParams(n=2, temperature=1.0, max_new_tokens=6)
JOBS = [Job(40 + number, prompt, key) for number, (prompt, key) in enumerate(zip(PROMPTS, KEYS, strict=True))]


def texts(groups):
    return {number: [response.tokens.tolist() for response in group] for number, group in groups}


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(scope="module")
def expected(model):
    groups = TorchSampler(model, TOKENIZER).sample(PROMPTS, KEYS, PARAMS)
    return texts(zip((job.number for job in JOBS), groups, strict=True))


@pytest.mark.parametrize("seconds", [None, 0.0, 60.0])
def test_a_batch_each_time_and_each_group_once(model, expected, seconds):
    queue = TorchSampler(model, TOKENIZER, max_rows=2 * PARAMS.n).start(PARAMS)
    assert queue.finished(seconds) == []
    queue.add([])
    queue.add(JOBS)
    shares = []
    while share := queue.finished(seconds):
        shares.append(share)
    assert [len(share) for share in shares[:-1]] == [2] * (len(shares) - 1)
    groups = [group for share in shares for group in share]
    assert len(groups) == len(JOBS)
    assert texts(groups) == expected
    assert queue.finished(seconds) == []


def test_bad_jobs_are_refused_as_they_are_added():
    """A window of 16 tokens: no response may go beyond it."""
    sampler = TorchSampler(tiny_model("mistral", sliding_window=16), TOKENIZER)
    for params in ({"n": 0}, {"max_new_tokens": 0}, {"temperature": -1.0}):
        with pytest.raises(UserError, match="at least 1"):
            sampler.start(replace(PARAMS, **params))
    queue = sampler.start(PARAMS)
    for prompt, word in (([], "prompt 7 is empty"), ([5] * 11, "16 the model can attend to")):
        with pytest.raises(UserError, match=word):
            queue.add([*JOBS, Job(7, prompt, 0)])
    assert queue.finished() == []  # none of a refused call is under way


def test_a_wave_is_cut_evenly_where_its_keys_and_values_outgrow_the_cache(model, expected, monkeypatch):
    """Four groups of two rows, at most three of which stay in the cache: two and two, not three and one."""
    monkeypatch.setattr(torch_sampler, "_LEAST", 6)
    monkeypatch.setattr(torch_sampler, "_SWIFT", 0)
    queue = TorchSampler(model, TOKENIZER).start(PARAMS)
    queue.add(JOBS)
    batches = [queue.finished(), queue.finished(), queue.finished()]
    assert [len(batch) for batch in batches] == [2, 2, 0]
    assert texts(batches[0] + batches[1]) == expected


def test_a_part_of_a_group_has_the_responses_of_the_group(model, expected):
    params = replace(PARAMS, n=1)
    for index in range(PARAMS.n):
        queue = TorchSampler(model, TOKENIZER).start(params)
        queue.add([replace(job, first=index) for job in JOBS])
        assert texts(queue.finished()) == {number: [group[index]] for number, group in expected.items()}


def test_a_wave_is_dropped_only_when_nothing_of_it_is_wanted(model, expected):
    """A smaller one would be cut into other batches."""
    queue = TorchSampler(model, TOKENIZER).start(PARAMS)
    queue.add(JOBS[:2])
    queue.add(JOBS[2:])
    queue.drop([job.number for job in JOBS[1:]])
    assert texts(queue.finished()) == {job.number: expected[job.number] for job in JOBS[:2]}
    assert queue.finished() == []
