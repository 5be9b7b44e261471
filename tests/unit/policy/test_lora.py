from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from tepo.config.compose import compose
from tepo.policy.logprobs.token_statistics import token_statistics
from tepo.policy.model import lora
from tepo.policy.model.lora import adapters_off, add_adapters, full_state, merge, save_adapters
from tepo.policy.packing.packing import pack
from tepo.sampling.embedded.torch_sampler import TorchSampler
from tepo.sampling.sampler import SamplingParams
from tepo.training.engine.torch_engine import TorchEngine
from tests.support.models import FAMILIES, KEYS, PROMPTS, TOKENIZER, gradients, make_groups, tiny_model
from tests.unit.sampling.test_torch_sampler import largest_gap

pytestmark = pytest.mark.peft

RANK = 3
PACKED = pack(make_groups(groups=3, longest=8))


def adapted(family: str = "qwen2", dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A tiny model whose adapters have learnt something."""
    model = tiny_model(family).to(dtype)
    add_adapters(model, RANK, 6.0, seed=1)
    torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0.0, 0.1)
    return model


def merged(model: PreTrainedModel, family: str = "qwen2") -> PreTrainedModel:
    """A plain model of the merged weights."""
    plain = tiny_model(family).to(model.dtype)
    plain.load_state_dict(full_state(model))
    return plain


def logprobs(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return token_statistics(model, PACKED).logprobs


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_and_unmerged_are_one_policy_and_only_adapters_have_gradients(family: str) -> None:
    model = adapted(family)
    plain = merged(model, family)
    assert float((logprobs(plain) - logprobs(tiny_model(family))).abs().max()) > 0.1  # they do change it
    torch.testing.assert_close(logprobs(model), logprobs(plain), atol=1e-5, rtol=0)
    found = gradients(model, token_statistics(model, PACKED).logprobs.square().mean())
    assert found.keys() == {name for name, _ in model.named_parameters() if ".lora_" in name}
    assert len(found) == 2 * 7 * 2  # A and B, seven matrices, two layers
    assert all(float(gradient.abs().max()) > 0 for gradient in found.values())


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_the_embedded_sampler_draws_from_the_merged_policy(dtype: torch.dtype, bound: float) -> None:
    model, params = adapted(dtype=dtype), SamplingParams(n=4, temperature=1.0, max_new_tokens=12)
    groups = TorchSampler(model, TOKENIZER).sample(PROMPTS, KEYS, params)
    assert largest_gap(model, model, groups)[1] < bound  # against peft's own forward pass
    assert largest_gap(model, merged(model), groups)[0] < (1e-4 if dtype == torch.float32 else 1.0)
    assert largest_gap(model, tiny_model().to(dtype), groups)[1] > bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_after_a_hundred_merges_the_frozen_weights_have_the_same_bits(dtype: torch.dtype) -> None:
    """Tied embeddings among them. The initial policy is asked between a forward and its backward."""
    model = tiny_model().to(dtype)
    add_adapters(model, RANK, 6.0, seed=1)
    before, start = {name: value.clone() for name, value in model.state_dict().items()}, logprobs(model)
    engine, sampler = TorchEngine(model, compose([]).train), TorchSampler(model, TOKENIZER)
    for number in range(100):
        full_state(model)
        if number % 10 == 0:
            loss = token_statistics(model, PACKED).logprobs.mean()
            with adapters_off(model):
                initial = logprobs(model)
            engine.backward(loss)
            metrics = engine.step(1e-2)
    sampler.sample(PROMPTS[:1], KEYS[:1], SamplingParams(n=1, temperature=1.0, max_new_tokens=1))
    assert metrics["actor/grad_norm"] > 0
    assert float((logprobs(model) - start).abs().mean()) > 0.1
    assert torch.equal(initial, start)
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if ".lora_" in name}
    assert {master.dtype for master in engine.masters.values()} == {torch.float32}
    assert engine.weights()["lm_head.weight"].data_ptr() == engine.weights()["model.embed_tokens.weight"].data_ptr()


def test_the_first_adapters_change_nothing_and_depend_on_the_seed_alone() -> None:
    def drawn(seed: int, before: int) -> dict[str, Tensor]:
        model = tiny_model()
        torch.manual_seed(before)
        add_adapters(model, RANK, 6.0, seed)
        assert torch.equal(logprobs(model), logprobs(tiny_model()))
        return {name: value for name, value in model.named_parameters() if "lora_A" in name}

    one, same, other = drawn(1, 0), drawn(1, 5), drawn(2, 0)
    for name, value in one.items():
        assert torch.equal(value, same[name])
        assert not torch.equal(value, other[name])
        assert 0.5 * value.shape[1] ** -0.5 < float(value.detach().abs().max()) <= value.shape[1] ** -0.5


def test_peft_alone_reads_what_is_saved(tmp_path: Path) -> None:
    from peft import AutoPeftModelForCausalLM

    model = adapted()
    tiny_model().save_pretrained(tmp_path / "base")
    save_adapters(model, tmp_path / "adapter", str(tmp_path / "base"), "abc")
    assert lora.base_revision(tmp_path / "adapter") == "abc"
    ids = torch.tensor([[3, 4, 5, 6, 7]])
    read = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter")
    torch.testing.assert_close(read(ids).logits, model(ids).logits, atol=1e-6, rtol=0)
    read.merge_and_unload().save_pretrained(tmp_path / "merged")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").state_dict()
    for name, value in full_state(model).items():
        torch.testing.assert_close(value, theirs[name], atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_merge_has_the_same_bits_whatever_the_threads_and_the_order(dtype: torch.dtype) -> None:
    """Those of Python's exact fractions, rounded once to float64 and then to the type of the weight."""
    draw = torch.Generator().manual_seed(4)
    weight = torch.randn(48, 96, generator=draw).to(dtype)
    a, b = (torch.randn(*size, generator=draw).bfloat16() / 8 for size in ((8, 96), (48, 8)))
    order, results, threads = torch.randperm(8, generator=draw), [], torch.get_num_threads()
    for count, ranks in ((1, slice(None)), (4, slice(None)), (2, order)):
        torch.set_num_threads(count)
        state = {"layer.weight": weight.clone()}
        merge(state, {"layer.lora_A": a[ranks], "layer.lora_B": b[:, ranks]}, 2.5)
        results.append(state["layer.weight"])
    torch.set_num_threads(threads)
    for row, column in ((0, 0), (17, 40), (47, 95)):
        terms = (Fraction(float(x)) * Fraction(float(y)) for x, y in zip(b[row], a[:, column], strict=True))
        exact = float(Fraction(float(weight[row, column])) + Fraction(5, 2) * sum(terms))
        assert results[0][row, column] == torch.tensor(exact, dtype=torch.float64).to(dtype)
    assert all(torch.equal(result, results[0]) for result in results[1:])
    assert not torch.equal(results[0], weight)


def test_a_model_without_its_adapters_computes_what_it_did_with_them() -> None:
    model = adapted()
    before = logprobs(model)
    with adapters_off(model):
        assert (logprobs(model) - before).abs().max() > 0.1
    adapter = lora.unload(model)
    assert not any("lora" in name for name in model.state_dict())
    torch.testing.assert_close(logprobs(model), before, atol=1e-2, rtol=0)  # the adapters are in bfloat16 now
    plain = tiny_model()
    merge(dict(plain.named_parameters()), adapter, 2.0)
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in model.state_dict().items())
