"""The fused pass of a CPU is the model's own modules in float32, or it is not taken."""

import pytest
import torch

from tepo.policy.logprobs import fused_layers
from tepo.policy.logprobs.hidden_states import fused_hidden, hidden_states, module_hidden, takes_fused
from tepo.policy.model.packed_attention import prepare
from tepo.policy.packing.block_layout import SegmentLayout
from tepo.policy.packing.packing import Packed, pack
from tests.unit.policy.tiny import make_groups, make_model

FAMILIES = [
    ("qwen2", {}),
    ("qwen2", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    ("qwen3", {}),
    ("qwen3", {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16}),
    ("llama", {"num_key_value_heads": 4}),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}}),
    ("mistral", {"sliding_window": 5}),
]


def model_of(family, changes, dtype=torch.float32):
    """A tiny model whose norms and biases are random too."""
    model = make_model(family, **changes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    prepare(model)
    return model.to(dtype)


def results(run, model, packed: Packed) -> list[torch.Tensor]:
    """Hidden states, and the gradient of every parameter for some mix of them."""
    model.zero_grad()
    hidden = run(model, packed, SegmentLayout(packed))
    (hidden * torch.linspace(-1, 1, hidden.numel()).view_as(hidden)).sum().backward()
    return [hidden.detach()] + [parameter.grad for parameter in model.get_decoder().parameters()]


def error(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """The distance of all gradients over the length of the exact one."""
    pairs = [(ours.double(), theirs.double()) for ours, theirs in zip(found[1:], exact[1:], strict=True)]
    length = torch.stack([theirs.norm() for _, theirs in pairs]).norm()
    return float(torch.stack([(ours - theirs).norm() for ours, theirs in pairs]).norm() / length)


@pytest.mark.parametrize(("family", "changes"), FAMILIES)
def test_as_near_to_the_exact_gradient_as_the_modules(family, changes) -> None:
    """The exact one is the fused pass in float64: there transformers' norms stay in float32."""
    packed = pack(make_groups(groups=6, longest=40))
    model = model_of(family, changes)
    assert takes_fused(model)
    fused, modules = (results(run, model, packed) for run in (fused_hidden, module_hidden))
    exact = results(fused_hidden, model_of(family, changes, torch.float64), packed)
    torch.testing.assert_close(fused[0], modules[0], atol=2e-5, rtol=1e-5)
    assert error(fused, exact) < 2 * error(modules, exact) + 1e-6
    assert error(fused, modules) < 1e-5


def test_the_exact_gradient_is_that_of_finite_differences() -> None:
    """In float64, in some directions: so the reference above is right itself."""
    model, packed = model_of("qwen3", {}, torch.float64), pack(make_groups(longest=8))
    _, *grads = results(fused_hidden, model, packed)
    parameters = list(model.get_decoder().parameters())
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        steps = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in parameters]
        values = []
        for way in (1e-6, -2e-6):
            with torch.no_grad():
                for parameter, step in zip(parameters, steps, strict=True):
                    parameter.add_(step, alpha=way)
                hidden = fused_hidden(model, packed, SegmentLayout(packed))
                values.append(float((hidden * torch.linspace(-1, 1, hidden.numel()).view_as(hidden)).sum()))
        with torch.no_grad():
            for parameter, step in zip(parameters, steps, strict=True):
                parameter.add_(step, alpha=1e-6)
        slope = sum(float((grad * step).sum()) for grad, step in zip(grads, steps, strict=True))
        assert (values[0] - values[1]) / 2e-6 == pytest.approx(slope, rel=1e-5, abs=1e-4)


def test_tiles_change_nothing_but_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    model, packed = model_of("qwen2", {}), pack(make_groups(groups=30, longest=40))
    one = results(fused_hidden, model, packed)
    monkeypatch.setattr(fused_layers, "_TILE", 1)  # 64 rows, the least
    assert len(packed.tokens) > 10 * 64
    many = results(fused_hidden, model, packed)
    assert error(many, one) < 1e-6
    torch.testing.assert_close(many[0], one[0], atol=1e-6, rtol=1e-6)


def test_without_a_gradient_the_values_are_the_same_bits() -> None:
    model, packed = model_of("qwen3", {}), pack(make_groups(groups=6, longest=40))
    kept = results(fused_hidden, model, packed)[0]
    with torch.no_grad():
        assert torch.equal(hidden_states(model, packed), kept)


def test_it_is_not_taken_where_it_would_differ() -> None:
    assert takes_fused(model_of("qwen2", {}))
    assert not takes_fused(model_of("llama", {"attention_bias": True}))
    assert not takes_fused(model_of("llama", {"mlp_bias": True}))
    assert not takes_fused(model_of("qwen2", {"hidden_act": "gelu"}))
    assert not takes_fused(model_of("qwen2", {}, torch.float64))
    assert not takes_fused(model_of("qwen2", {}, torch.bfloat16))
    assert not takes_fused(model_of("qwen2", {}).train())


def test_a_module_that_computes_something_else_is_noticed() -> None:
    """A model of a known family may have been changed: here a term is added to one projection, and a parameter that
    the fused pass would never see."""

    class Added(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * (1 + self.extra)

    model = model_of("qwen2", {})
    projection = model.model.layers[1].mlp.up_proj
    projection.__class__ = Added
    projection.extra = torch.nn.Parameter(torch.zeros(()))  # of no effect yet
    assert not takes_fused(model)
    packed = pack(make_groups())
    assert torch.equal(hidden_states(model, packed), module_hidden(model, packed, SegmentLayout(packed)))


def test_a_frozen_model_is_compared_by_its_values() -> None:
    model = model_of("qwen2", {}).requires_grad_(False)
    assert takes_fused(model)
    with torch.no_grad():
        model.model.layers[0].self_attn.scaling *= 2  # both see it
    packed = pack(make_groups())
    fused, modules = (run(model, packed, SegmentLayout(packed)) for run in (fused_hidden, module_hidden))
    torch.testing.assert_close(fused, modules, atol=1e-5, rtol=1e-5)
