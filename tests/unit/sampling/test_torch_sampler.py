import json
import shutil
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch

from tepo.common.errors import RunFailed, UserError
from tepo.common.paths import PACKAGE
from tepo.common.randomness import derive
from tepo.sampling.embedded.torch_sampler import TorchSampler
from tepo.sampling.sampler import Job, SamplingParams
from tepo.sampling.stop_tokens import stop_tokens_of
from tests.support.models import EOS, FAMILIES, KEYS, PROMPTS, TOKENIZER, tiny_model
from tests.unit.sampling.definition import FILTERS, distribution

SHORT = SamplingParams(n=2, temperature=1.0, max_new_tokens=8)


def drawn(model, **params):
    """Groups for all prompts."""
    return TorchSampler(model, TOKENIZER).sample(PROMPTS, KEYS, SamplingParams(**params))


def recomputed(model, prompt, response, temperature=1.0):
    """Log-probabilities and entropies of a response by one plain forward pass."""
    ids = torch.tensor([[*prompt, *response.tokens.tolist()]], device=model.device)
    with torch.no_grad():
        logp = (model(ids).logits[0, len(prompt) - 1 : -1].float() / temperature).log_softmax(-1).cpu()
    return logp.gather(1, ids[0, len(prompt) :, None].cpu())[:, 0].numpy(), -(logp.exp() * logp).sum(-1).numpy()


def largest_gap(model, reference, groups, temperature=1.0):
    """Largest and mean distance of the sampler's log-probabilities and entropies from a recompute."""
    gaps = []
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for response in group:
            logprobs, entropies = recomputed(reference, prompt, response, temperature)
            gaps += [np.abs(response.logprobs - logprobs), np.abs(response.entropies - entropies)]
    return max(gap.max() for gap in gaps), np.concatenate(gaps).mean()


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_generate_token_for_token(family):
    model = tiny_model(family)
    groups = drawn(model, n=2, temperature=0.0, max_new_tokens=24)
    for prompt, group in zip(PROMPTS, groups, strict=True):
        expected = model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0, len(prompt) :]
        for response in group:
            assert response.tokens.tolist() == expected.tolist()
            assert response.finished == (expected[-1].item() == EOS)


def scaled(**rope):
    """A way of the Llama family to reach further than it was trained for."""
    return "llama", {"rope_parameters": {"rope_theta": 10000.0, **rope}}


YARN = scaled(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
# three query heads a key head, as SmolLM2 has: with one key head, it asks as a fourth
TRIPLES = [
    ("llama", {"hidden_size": 16 * heads, "num_attention_heads": heads, "num_key_value_heads": heads // 3})
    for heads in (3, 6)
]
VARIANTS = [*((family, {}) for family in FAMILIES), YARN, scaled(rope_type="linear", factor=2.0), *TRIPLES]


@pytest.mark.parametrize(("family", "changes"), VARIANTS)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_logprobs_and_entropies_match_a_recompute(family, changes, temperature):
    model = tiny_model(family, **changes)
    groups = drawn(model, n=4, temperature=temperature, max_new_tokens=20)
    assert largest_gap(model, model, groups, temperature or 1.0)[0] < 4e-5


def test_a_cache_that_grows_and_shrinks():
    """Beyond the first capacity, with rows ending at all times: the last rows still agree with a recompute."""
    model = tiny_model("qwen3", vocab_size=101)
    groups = drawn(model, n=12, temperature=2.0, max_new_tokens=200)
    lengths = {len(response.tokens) for group in groups for response in group}
    assert max(lengths) > 130
    assert len(lengths) > 10
    assert largest_gap(model, model, groups, 2.0)[0] < 4e-5


def test_bfloat16_is_as_close_to_the_exact_policy_as_transformers():
    model = tiny_model("qwen2").bfloat16()
    exact = tiny_model("qwen2").bfloat16().float()
    groups = drawn(model, n=8, temperature=1.0, max_new_tokens=20)
    theirs = [
        np.abs(np.subtract(recomputed(model, prompt, response), recomputed(exact, prompt, response))).ravel()
        for prompt, group in zip(PROMPTS, groups, strict=True)
        for response in group
    ]
    assert 0 < largest_gap(model, exact, groups)[1] < 1.3 * np.concatenate(theirs).mean()


PROMPT = [5, 7]


def first_tokens(model, params):
    """Log-probs by token, and how often each was drawn; all that may be are among so many draws."""
    [group] = TorchSampler(model, TOKENIZER).sample([PROMPT], [derive(0, "test")], params)
    logprobs = {int(response.tokens[0]): float(response.logprobs[0]) for response in group}
    return logprobs, np.bincount([response.tokens[0] for response in group], minlength=model.config.vocab_size)


def next_logits(model):
    with torch.no_grad():
        return model(torch.tensor([PROMPT])).logits[0, -1]


@pytest.mark.parametrize("name", ["plain", *FILTERS])
def test_samples_follow_the_definition(name):
    """Which tokens may be drawn, with which probability, and how often each is: by chi-square."""
    draws = 20_000 if name == "plain" else 4000
    model, params = tiny_model(), SamplingParams(n=draws, max_new_tokens=1, **FILTERS.get(name, {"temperature": 1.3}))
    logprobs, counts = first_tokens(model, params)
    expected = np.array(distribution(next_logits(model).tolist(), params))
    assert set(logprobs) <= set(np.flatnonzero(expected)) <= set(range(29))
    assert (np.count_nonzero(expected) == 29) == (name == "plain")
    assert set(logprobs) >= set(np.flatnonzero(expected > 0.005))
    for token, logprob in logprobs.items():
        assert np.exp(logprob) == pytest.approx(expected[token], rel=1e-5)
    common = expected * draws >= 5
    statistic = ((counts - draws * expected) ** 2 / (draws * expected + 1e-9))[common].sum()
    assert statistic - common.sum() < 4 * np.sqrt(2 * common.sum())


@pytest.mark.parametrize("top_p", [0.3, 0.97])
def test_top_p_of_a_large_vocabulary(top_p):
    """Where it ends among the likeliest tokens, and where it takes in more of them than are sorted at first."""
    model, params = tiny_model(vocab_size=1500), SamplingParams(n=300, temperature=9.0, max_new_tokens=1, top_p=top_p)
    expected = np.array(distribution(next_logits(model).tolist(), params))
    assert (np.count_nonzero(expected) > 1024) == (top_p > 0.5)
    for token, logprob in first_tokens(model, params)[0].items():
        assert np.exp(logprob) == pytest.approx(expected[token], rel=1e-4)


def test_filters_apply_to_every_token_of_a_response():
    model, params = tiny_model("qwen3"), SamplingParams(n=6, max_new_tokens=20, temperature=1.2, top_k=3, top_p=0.9)
    for prompt, group in zip(PROMPTS, TorchSampler(model, TOKENIZER).sample(PROMPTS, KEYS, params), strict=True):
        for response in group:
            ids = [*prompt, *response.tokens.tolist()]
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[0, len(prompt) - 1 : -1].tolist()
            steps = [distribution(row, params) for row in logits]
            chosen = [step[token] for step, token in zip(steps, response.tokens, strict=True)]
            entropies = [-sum(p * np.log(p) for p in step if p) for step in steps]
            assert np.exp(response.logprobs) == pytest.approx(chosen, rel=1e-4)
            assert response.entropies == pytest.approx(entropies, abs=1e-4)


def test_tokens_of_equal_probability_stay_or_go_together():
    """Which of them a sort puts first says nothing about them."""
    model = tiny_model("qwen3")
    with torch.no_grad():
        model.lm_head.weight[10:20] = model.lm_head.weight[int(next_logits(model).argmax())].clone()
    logits = next_logits(model)
    tied = set((logits == logits.max()).nonzero().flatten().tolist())
    assert len(tied) >= 10
    for filters in ({"top_k": 3}, {"top_p": 0.01}, {"min_p": 1.0}):
        params = SamplingParams(n=2000, temperature=1.0, max_new_tokens=1, **filters)
        assert set(first_tokens(model, params)[0]) == tied


def test_updates_in_place_and_by_sync_are_seen():
    model, other = tiny_model(), tiny_model()
    sampler = TorchSampler(model, TOKENIZER)
    before = sampler.sample(PROMPTS, KEYS, SHORT)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    assert largest_gap(model, model, sampler.sample(PROMPTS, KEYS, SHORT))[0] < 4e-5
    assert largest_gap(model, model, before)[0] > 1e-3
    sampler.sync(other.state_dict())
    assert largest_gap(model, other, sampler.sample(PROMPTS, KEYS, SHORT))[0] < 4e-5


def test_all_stop_tokens_end_a_response():
    """Those of the model, and of the chat template around the prompts."""
    model = tiny_model()
    model.generation_config.eos_token_id = [EOS, 9]
    sampler, params = TorchSampler(model, TOKENIZER), SamplingParams(n=64, temperature=1.0, max_new_tokens=40)
    for more in ((), (12,), (9, 12)):
        [group] = sampler.sample([[5, 7]], [0], replace(params, stop=more))
        assert {int(response.tokens[-1]) for response in group if response.finished} == {EOS, 9, *more}
        assert {response.finished for response in group} == {True, False}
        for response in group:
            assert not set(response.tokens[:-1].tolist()) & {EOS, 9, *more}
            assert response.finished or len(response.tokens) == 40


@pytest.mark.parametrize(
    ("family", "changes"), [("qwen2", {"hidden_act": "gelu"}), scaled(rope_type="dynamic", factor=2.0)]
)
def test_models_it_cannot_run(family, changes):
    with pytest.raises(UserError, match=r"gelu|dynamic"):
        TorchSampler(tiny_model(family, **changes), TOKENIZER)


def test_diverged_weights_are_named_and_leave_nothing_behind():
    model, healthy = tiny_model(), tiny_model()
    sampler = TorchSampler(model, TOKENIZER)
    for module in (model.model.norm, model.model.layers[0].self_attn.v_proj):
        module.weight.data.fill_(torch.nan)
    with pytest.raises(RunFailed, match="diverged"):
        sampler.sample(PROMPTS, KEYS, SHORT)
    sampler.sync(healthy.state_dict())
    assert largest_gap(model, healthy, sampler.sample(PROMPTS, KEYS, SHORT))[0] < 4e-5


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_change_nothing_on_cuda(family, dtype):
    model = tiny_model(family, vocab_size=101).to("cuda", dtype)
    params = SamplingParams(n=12, temperature=2.0, max_new_tokens=200)
    with_graphs, without = (
        TorchSampler(model, TOKENIZER, graphs=graphs).sample(PROMPTS, KEYS, params) for graphs in (True, False)
    )
    assert dtype != torch.float32 or largest_gap(model, model, with_graphs, 2.0)[0] < 1e-4
    for one, other in zip(chain(*with_graphs), chain(*without), strict=True):
        same = min(len(one.tokens), len(other.tokens))
        differs = np.flatnonzero(one.tokens[:same] != other.tokens[:same])
        if dtype == torch.float32:
            np.testing.assert_array_equal(one.tokens, other.tokens)
        agreed = differs[0] if len(differs) else same  # bfloat16: another window may round a draw over an edge
        bound = 1e-4 if dtype == torch.float32 else 0.1
        np.testing.assert_allclose(one.logprobs[:agreed], other.logprobs[:agreed], atol=bound)


# waves ----------------------------------------------------------------------------------------------------------------
JOBS = [Job(40 + number, prompt, key) for number, (prompt, key) in enumerate(zip(PROMPTS, KEYS, strict=True))]


def texts(groups):
    return {number: [response.tokens.tolist() for response in group] for number, group in groups}


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(scope="module")
def expected(model):
    groups = TorchSampler(model, TOKENIZER).sample(PROMPTS, KEYS, SHORT)
    return texts(zip((job.number for job in JOBS), groups, strict=True))


def test_bad_jobs_are_refused_as_they_are_added():
    """A window of 16 tokens: no response may go beyond it."""
    sampler = TorchSampler(tiny_model("mistral", sliding_window=16), TOKENIZER)
    queue = sampler.start(SHORT)
    for prompt, word in (([], "prompt 7 is empty"), ([5] * 11, "16 the model can attend to")):
        with pytest.raises(UserError, match=word):
            queue.add([*JOBS, Job(7, prompt, 0)])
    assert queue.finished() == []  # none of a refused call is under way


def test_a_part_of_a_group_has_the_responses_of_the_group(model, expected):
    for index in range(SHORT.n):
        queue = TorchSampler(model, TOKENIZER).start(replace(SHORT, n=1))
        queue.add([replace(job, first=index) for job in JOBS])
        assert texts(queue.finished()) == {number: [group[index]] for number, group in expected.items()}


def test_a_wave_is_dropped_only_when_nothing_of_it_is_wanted(model, expected):
    """A smaller one would be cut into other batches."""
    queue = TorchSampler(model, TOKENIZER).start(SHORT)
    queue.add(JOBS[:2])
    queue.add(JOBS[2:])
    queue.drop([job.number for job in JOBS[1:]])
    assert texts(queue.finished()) == {job.number: expected[job.number] for job in JOBS[:2]}
    assert queue.finished() == []


# stop tokens ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def folder(tmp_path):
    """A base of 42 rows, whose response ends with 2, without its weights, which no stop token is read from."""
    for file in (PACKAGE / "assets/laptop").glob("*.json"):
        shutil.copy(file, tmp_path)
    (tmp_path / "model.safetensors").touch()
    return tmp_path


def declare(file, **changes):
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_valid_ids_are_taken(folder):
    """Of the generation settings; without them, of the configuration."""
    for declared, stop in ((None, [2]), (5, [2, 5]), ([41, 2, 0], [0, 2, 41])):
        declare(folder / "generation_config.json", eos_token_id=declared)
        assert stop_tokens_of(str(folder)) == stop
    (folder / "generation_config.json").unlink()
    declare(folder / "config.json", eos_token_id=[2, 7])
    assert stop_tokens_of(str(folder)) == [2, 7]


@pytest.mark.parametrize(
    ("file", "change"),
    [
        *(("generation_config.json", {"eos_token_id": value}) for value in (-1, 42, True, [2, None])),
        # the tokenizer gives it a number behind all others, which the model has no row for
        ("tokenizer_config.json", {"eos_token": "<|im_end|>"}),
    ],
)
def test_what_is_no_row_of_the_vocabulary_is_refused(folder, file, change):
    declare(folder / file, **change)
    with pytest.raises(UserError, match="which is no row of the vocabulary") as found:
        stop_tokens_of(str(folder))
    assert str(folder / file) in str(found.value)
