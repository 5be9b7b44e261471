from dataclasses import replace

import numpy as np
import pytest
import torch

from tepo.common.errors import RunFailed, UserError
from tepo.sampling.gap import Evidence, GapAlarm
from tepo.sampling.sampler import Job, SamplingParams
from tepo.sampling.vllm.response_groups import sample_seed
from tepo.sampling.vllm.vllm_sampler import EngineOptions, VllmSampler
from tests.support.models import EOS, engine_model, logprobs, nearby, prompts, save
from tests.unit.sampling.definition import FILTERS, distribution

pytestmark = pytest.mark.vllm

LONG = 140  # above one block of the prefix cache (128 tokens on CPU)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """With tied weights, which vLLM has under one name; an output matrix of its own: test_vllm_bfloat16.py."""
    model = engine_model(0, tied=True)
    options = EngineOptions(save(model, tmp_path_factory.mktemp("tiny")), "float32", 256, max_rows=64)
    sampler = VllmSampler(options, [EOS], memory_fraction=0.06)
    yield model, sampler
    sampler.close()


@pytest.fixture
def engine(start):
    """The same with the starting weights back in the sampler."""
    model, sampler = start
    sampler.sync(model.state_dict())
    return model, sampler


def draw(sampler, *, length=LONG, temperature=1.0, seed=0, n=3):
    asked = prompts(3, length, seed)
    groups = sampler.sample(asked, [11, 12, 13], SamplingParams(n=n, temperature=temperature, max_new_tokens=24))
    return [(prompt, response) for prompt, group in zip(asked, groups, strict=True) for response in group]


def trainer(model, drawn, temperature=1.0):
    return torch.cat([logprobs(model, prompt, response.tokens.tolist(), temperature) for prompt, response in drawn])


def sampled(drawn):
    return torch.cat([torch.from_numpy(response.logprobs) for _, response in drawn])


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_logprobs_are_the_trainers(engine, temperature):
    model, sampler = engine
    drawn = draw(sampler, temperature=temperature)
    assert torch.allclose(sampled(drawn), trainer(model, drawn, temperature or 1.0), atol=1e-4)
    for prompt, response in drawn if temperature == 0.0 else ():
        logits = model(torch.tensor([prompt + response.tokens.tolist()])).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == response.tokens.tolist()


@pytest.mark.parametrize("name", FILTERS)
def test_filters_are_the_embedded_samplers(engine, name):
    """vLLM draws from the distribution of the definition, and gives its log-probs, at every token."""
    model, sampler = engine
    params, (prompt,) = SamplingParams(n=60, max_new_tokens=8, **FILTERS[name]), prompts(1, 12)
    [group] = sampler.sample([prompt], [11], params)
    first: set[int] = set()
    for response in group:
        logits = model(torch.tensor([prompt + response.tokens.tolist()])).logits[0, len(prompt) - 1 : -1]
        steps = [distribution(row, params) for row in logits.tolist()]
        drawn = [step[token] for step, token in zip(steps, response.tokens.tolist(), strict=True)]
        assert np.exp(response.logprobs) == pytest.approx(drawn, rel=1e-3)
        first.add(int(response.tokens[0]))
    assert first >= {token for token, p in enumerate(steps[0]) if p > 0.2}


def test_what_ends_a_turn_of_a_chat_template_ends_a_response_too(engine):
    _, sampler = engine
    asked, params = prompts(1, 5), SamplingParams(n=40, temperature=1.0, max_new_tokens=24)
    [plain] = sampler.sample(asked, [1], params)
    turn = int(plain[0].tokens[1])
    [ended] = sampler.sample(asked, [1], replace(params, stop=(turn,)))
    assert {int(response.tokens[-1]) for response in ended if response.finished} == {EOS, turn}
    assert {response.finished for response in plain} == {True, False}
    assert {len(response.tokens) for response in plain if not response.finished} == {24}
    assert all(not {EOS, turn} & set(response.tokens[:-1].tolist()) for response in ended)
    assert all(np.array_equal(a.tokens, b.tokens[: len(a.tokens)]) for a, b in zip(ended, plain, strict=True))


def test_a_response_depends_on_its_key_and_index_alone(engine):
    _, sampler = engine
    asked = prompts(3, 9)
    wide = sampler.sample(asked, [5, 6, 7], SamplingParams(n=4, temperature=1.0, max_new_tokens=12))
    narrow = sampler.sample([asked[2]], [7], SamplingParams(n=2, temperature=1.0, max_new_tokens=12))
    assert all(np.array_equal(a.tokens, b.tokens) for a, b in zip(wide[2], narrow[0], strict=False))
    twins = sampler.sample([asked[0], asked[0]], [5, 6], SamplingParams(n=4, temperature=1.0, max_new_tokens=12))
    assert len({response.tokens.tobytes() for group in twins for response in group}) == 8
    assert len({sample_seed(key, index) for key in range(-50, 50) for index in range(16)}) == 1600


def test_sync_reaches_every_weight_and_the_cache(engine):
    model, sampler = engine
    for seed in (1, 2):
        draw(sampler)  # fills the prefix cache under the old weights
        model = nearby(model, seed)
        sampler.sync(model.state_dict())
        drawn = draw(sampler)
        assert torch.allclose(sampled(drawn), trainer(model, drawn), atol=1e-4)
        fresh = np.concatenate(sampler.score([(prompt, response.tokens.tolist()) for prompt, response in drawn]))
        assert np.allclose(fresh, sampled(drawn), atol=1e-4)


def test_bad_requests(engine):
    model, sampler = engine
    with pytest.raises(UserError, match="do not fit"):
        sampler.sample(prompts(1, 250), [1], SamplingParams(n=1, temperature=1.0, max_new_tokens=24))
    with pytest.raises(ValueError, match="lm_head"):
        sampler.sync({name: value for name, value in model.state_dict().items() if name != "lm_head.weight"})


def test_starts_that_fail_say_why(tmp_path):
    with pytest.raises(UserError, match="no model there"):
        VllmSampler(EngineOptions(str(tmp_path / "nowhere"), "float32", 64), [EOS])
    path = save(engine_model(0, tied=True), tmp_path)
    with pytest.raises(UserError, match="512 positions"):
        VllmSampler(EngineOptions(path, "float32", 513), [EOS])
    with pytest.raises(UserError, match="too little memory"):
        VllmSampler(EngineOptions(path, "float32", 512), [EOS], memory_fraction=0.0003)


# the alarm ------------------------------------------------------------------------------------------------------------
def ring(model, sampler, previous):
    """Sample, check, and return what the alarm said. `model` is the trainer's."""
    alarm = GapAlarm(1e-3, temperature=1.0, dtypes=("float32", "float32"), fresh=sampler.score)
    alarm.synced(previous.state_dict())
    alarm.synced(model.state_dict())
    drawn = draw(sampler)
    sequences = [(prompt, response.tokens.tolist()) for prompt, response in drawn]
    evidence = Evidence(lambda t: trainer(model, drawn, t), sequences, model)
    with pytest.raises(RunFailed) as failure:
        alarm.check(sampled(drawn), trainer(model, drawn), evidence)
    return str(failure.value)


def test_the_alarm_names_what_was_forgotten(engine):
    old, sampler = engine
    new = nearby(old, 1)
    assert "weights not synced" in ring(new, sampler, old)
    body = {name: value for name, value in new.state_dict().items() if name != "lm_head.weight"}
    for part, said in ((body, "forgotten lm_head"), (new.state_dict(), "stale prefix cache")):
        sampler.sync(old.state_dict())
        draw(sampler)
        sampler.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(part.items())})
        if part is body:
            sampler.llm.reset_prefix_cache()
        assert said in ring(new, sampler, old)


# the queue ------------------------------------------------------------------------------------------------------------
SHORT = SamplingParams(n=2, temperature=1.0, max_new_tokens=24)


def jobs(asked, first=0):
    return [Job(number, prompt, number) for number, prompt in enumerate(asked, first)]


def gathered(queue):
    groups = []
    while done := queue.finished():
        groups += done
    return groups


def assert_same(groups, expected):
    """Tokens are equal, log-probs up to the rounding of another batch."""
    for group, other in zip(groups, expected, strict=True):
        for a, b in zip(group, other, strict=True):
            assert np.array_equal(a.tokens, b.tokens)
            assert np.allclose(a.logprobs, b.logprobs, atol=1e-4)


def test_groups_finish_in_any_order_and_more_are_added_beside_them(engine):
    _, sampler = engine
    asked = prompts(43, 20)
    expected = sampler.sample(asked, range(43), SHORT)
    queue = sampler.start(SHORT)
    queue.add(jobs(asked[:40]))  # 80 rows for an engine of 64
    done = queue.finished()
    assert 0 < len(done) < 40
    assert sampler.llm.llm_engine.has_unfinished_requests()
    queue.add(jobs(asked[40:], 40))
    while len(done) < 43:
        done += queue.finished(0.005)  # it comes back in time, and gives each group once
    numbers = [number for number, _ in done]
    assert sorted(numbers) == [*range(43)] != numbers
    assert_same([dict(done)[number] for number in range(43)], expected)
    assert queue.finished() == queue.finished(10.0) == []


def test_an_aborted_queue_leaves_the_engine_free_and_can_be_used_again(engine):
    model, sampler = engine
    asked = prompts(40, LONG)
    queue = sampler.start(SHORT)
    queue.add(jobs(asked))
    assert queue.finished(0.0) == []  # one step: the engine holds their first tokens
    scheduler = sampler.llm.llm_engine.engine_core.engine_core.scheduler
    assert scheduler.has_unfinished_requests()
    with pytest.raises(RuntimeError, match="still running"):
        sampler.sync(model.state_dict())
    queue.abort()
    assert not sampler.llm.llm_engine.has_unfinished_requests()
    assert not scheduler.has_unfinished_requests()
    assert queue.finished() == []
    model = nearby(model, 1)
    sampler.sync(model.state_dict())
    queue.add(jobs(asked[:3]))  # numbers of aborted ones
    groups = dict(gathered(queue))
    drawn = [(asked[number], response) for number in range(3) for response in groups[number]]
    assert len(drawn) == 6
    assert torch.allclose(sampled(drawn), trainer(model, drawn), atol=1e-4)


def test_dropped_jobs_leave_the_engine_and_the_others_stay(engine):
    """Single responses of groups, as a rollout over several ranks draws them: those of the group."""
    _, sampler = engine
    asked, params = prompts(10, LONG), SamplingParams(n=1, temperature=1.0, max_new_tokens=24)
    expected = sampler.sample(asked, range(10), SHORT)
    queue = sampler.start(params)
    parts = [Job(2 * number + index, asked[number], number, index) for number in range(10) for index in range(2)]
    queue.add(parts)
    assert queue.finished(0.0) == []
    scheduler = sampler.llm.llm_engine.engine_core.engine_core.scheduler
    assert len(scheduler.requests) == 20
    queue.drop([*range(6, 20), 99])  # one that is not under way, too
    assert len(scheduler.requests) == 6
    done = dict(gathered(queue))
    assert sorted(done) == [*range(6)]
    assert_same([[*done[2 * number], *done[2 * number + 1]] for number in range(3)], expected[:3])
    assert not scheduler.has_unfinished_requests()
    queue.add(parts[6:8])  # names of dropped ones
    assert_same([[row for _, group in sorted(gathered(queue)) for row in group]], expected[3:4])


def test_prompts_that_do_not_fit_into_one_step(engine):
    """12,800 tokens, where the engine reads 4,096 at a time: a seeded prompt is never read in pieces."""
    model, sampler = engine
    asked = prompts(64, 200)
    groups = sampler.sample(asked, range(64), SamplingParams(n=1, temperature=1.0, max_new_tokens=4))
    drawn = [(prompt, response) for prompt, [response] in zip(asked, groups, strict=True)]
    assert torch.allclose(sampled(drawn), trainer(model, drawn), atol=1e-4)
