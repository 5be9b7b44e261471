from dataclasses import replace

import pytest
import torch

from tepo.policy import kernel_check
from tepo.policy.kernel_check import Segments, attention_errors, fused, logprob_errors

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


def test_a_log_prob_of_the_next_token_is_noticed() -> None:
    assert wrong(logprob_errors("cpu")) == []

    def shifted(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor):
        return fused()(hidden, weight, (targets + 1) % len(weight))

    assert "error, log-prob, rms" in wrong(logprob_errors("cpu", shifted))
