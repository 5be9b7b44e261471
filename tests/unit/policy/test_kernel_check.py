from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tepo.common.errors import UserError
from tepo.policy import kernel_check
from tepo.policy.kernel_check import Segments, attention_errors, check_kernels, fused, layer_errors, logprob_errors
from tepo.policy.model.compiled_layers import norm

CASE = Segments("window", ((6, (20,)), (3, (5, 9))), (4, 2), 16, 7)


def wrong(errors) -> list[str]:
    return [what for what, error, bound in errors if not error <= bound]


def test_a_window_that_is_one_too_wide_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention is compared with SDPA sequence by sequence."""
    right = kernel_check.attend
    assert wrong(attention_errors(CASE, "cpu")) == []

    def shifted(*tensors, how):
        return right(*tensors, how=replace(how, window=how.window + 1))

    monkeypatch.setattr(kernel_check, "attend", shifted)
    assert "window: error, output" in wrong(attention_errors(CASE, "cpu"))


def test_a_norm_with_another_epsilon_is_noticed() -> None:
    assert wrong(layer_errors("cpu", lambda function: function)) == []

    def changed(function):
        return (lambda *given, eps: function(*given, eps=0.1)) if function is norm else function

    assert "norm: error, output" in wrong(layer_errors("cpu", changed))


def test_kernels_that_a_run_asks_for_are_tried_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the heads and the windows of its model."""
    sizes = SimpleNamespace(num_attention_heads=4, num_key_value_heads=2, hidden_size=64, sliding_window=32)
    tried = []

    def attention(query, *rest, how):
        tried.append((query.shape[1:], how.window))
        return kernel_check.attend(query, *rest, how=how)

    monkeypatch.setattr(kernel_check, "flash4", attention)
    check_kernels(["flash4"], sizes, "cpu")
    assert tried == [((4, 16), None), ((4, 16), 50)]
    monkeypatch.setattr(kernel_check, "flash4", lambda *given, how: 1.1 * attention(*given, how=how))
    with pytest.raises(UserError, match="flash4 does not hold here against torch: all keys: error, output"):
        check_kernels(["flash4"], sizes, "cpu")
    monkeypatch.undo()
    with pytest.raises(UserError, match="No module named 'flash_attn'"):
        check_kernels(["flash4"], sizes, "cpu")


def test_a_log_prob_of_the_next_token_is_noticed() -> None:
    assert wrong(logprob_errors("cpu")) == []

    def shifted(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor):
        return fused()(hidden, weight, (targets + 1) % len(weight))

    assert "error, log-prob, rms" in wrong(logprob_errors("cpu", shifted))
