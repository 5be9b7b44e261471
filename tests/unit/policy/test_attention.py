"""Sequences side by side in micro-batches, attention over them, its kernels, compiled layers, and their check."""

import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from tepo.common.errors import UserError
from tepo.policy import kernel_check
from tepo.policy.kernel_check import Segments, attention_errors, check_kernels, fused, layer_errors, logprob_errors
from tepo.policy.logprobs.softmax_at_temperature import StatisticsOptions
from tepo.policy.logprobs.token_statistics import token_statistics
from tepo.policy.model import kernel_attention, packed_attention
from tepo.policy.model.compiled_layers import FAMILIES, compile_layers, norm
from tepo.policy.model.kernel_attention import sdpa_blocks, varlen
from tepo.policy.packing.block_layout import Attention, SegmentLayout
from tepo.policy.packing.load_balance import Sequences, deal
from tepo.policy.packing.packing import pack, split_by_tokens
from tests.support.models import gradients, make_groups, make_model, plain_statistics


@pytest.mark.parametrize("short", [True, False], ids=["block", "sdpa"])
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen2", {}),
        ("qwen2", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
        ("qwen3", {}),
        ("llama", {"num_key_value_heads": 4}),
        ("mistral", {"sliding_window": 5}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    ],
)
def test_packed_equals_plain(family, changes, short, monkeypatch):
    monkeypatch.setattr(packed_attention, "_SHORT", 10**6 if short else 0)
    model, plain = (make_model(family, torch.float64, **changes) for _ in range(2))
    packed = pack(groups := make_groups(groups=4, longest=40))
    assert len(SegmentLayout(packed).blocks) >= 2
    found = token_statistics(model, packed, StatisticsOptions(entropy_gradient=True, temperature=0.7))
    logprobs, entropies = plain_statistics(plain, groups, temperature=0.7)
    torch.testing.assert_close(found.logprobs.double(), logprobs, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.entropies.double(), entropies, atol=1e-5, rtol=0)
    weights = torch.linspace(-1, 1, len(logprobs), dtype=torch.float64)
    ours = gradients(model, (weights * (found.logprobs + 0.3 * found.entropies)).sum())
    theirs = gradients(plain, (weights * (logprobs + 0.3 * entropies)).sum())
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-5)


def test_a_prepared_model_behaves_as_before_elsewhere():
    model, plain = make_model("qwen2"), make_model("qwen2")
    token_statistics(model, pack(make_groups()))
    ids, mask = torch.tensor([[0, 0, 3, 4], [7, 8, 9, 10]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    logits = [one(input_ids=ids, attention_mask=mask).logits for one in (model, plain)]
    torch.testing.assert_close(*logits)


# kernels --------------------------------------------------------------------------------------------------------------
@pytest.mark.gpu
def test_varlen_kernel_against_blocks():
    packed = pack(make_groups(longest=60)).to("cuda")
    layout = SegmentLayout(packed)
    torch.manual_seed(0)
    tensors = [torch.randn(len(packed.tokens), heads, 64, device="cuda").bfloat16() for heads in (4, 2, 2)]
    values = [way(*tensors, Attention(layout, 0.125)) for way in (varlen, sdpa_blocks)]
    torch.testing.assert_close(*values, atol=2e-2, rtol=2e-2)


@pytest.fixture
def torchs_varlen(monkeypatch):
    """Let torch have another `varlen_attn`."""
    from torch.nn.attention import varlen as module

    def have(function):
        kernel_attention._varlen_attn.cache_clear()
        monkeypatch.setattr(module, "varlen_attn", function)

    yield have
    kernel_attention._varlen_attn.cache_clear()


def segments(query, key, value, queries, keys, scale, window):
    """Attention of each segment, causal from the end, written out: what the flash kernel does with offsets and a
    window."""
    for (q0, q1), (k0, k1) in zip(pairwise(queries.tolist()), pairwise(keys.tolist()), strict=True):
        q, k, v = query[q0:q1], *(t[k0:k1].repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (key, value))
        back = torch.arange(k1 - k0 - (q1 - q0), k1 - k0)[:, None] - torch.arange(k1 - k0)
        seen = (back >= 0) & ((back <= window[0]) | (window[0] < 0))
        scores = torch.einsum("qhd,khd->hqk", q, k).mul(scale).masked_fill(~seen, -torch.inf)
        yield torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def torch_2_11(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):
    """torch 2.11's signature: no `enable_gqa`; grouped heads are taken as they are."""
    return torch.cat(list(segments(query, key, value, cu_seq_q, cu_seq_k, scale, window_size)))


def torch_2_13(query, key, value, *offsets, scale=None, window_size=(-1, -1), enable_gqa=False):
    """The signature from 2.12 on, which refuses grouped heads unless it is told of them."""
    assert enable_gqa == (query.shape[1] != key.shape[1])
    return torch.cat(list(segments(query, key, value, *offsets[:2], scale, window_size)))


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("version", [torch_2_11, torch_2_13])
def test_varlen_is_called_as_each_torch_wants_it(torchs_varlen, version, window):
    """Outputs and gradients are those of sdpa."""
    torchs_varlen(version)
    layout = SegmentLayout(packed := pack(make_groups(longest=30)))
    torch.manual_seed(0)
    wide = {"dtype": torch.float64, "requires_grad": True}
    tensors = [torch.randn(len(packed.tokens), heads, 8, **wide) for heads in (4, 2, 2)]
    outputs = [way(*tensors, Attention(layout, 0.3, window)) for way in (varlen, sdpa_blocks)]
    weight = torch.randn_like(outputs[0])
    torch.testing.assert_close(*((out, *torch.autograd.grad((out * weight).sum(), tensors)) for out in outputs))


def flash_attn_varlen_func(
    q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, min_seqlen_k=None,
    seqused_q=None, seqused_k=None, gather_kv_indices=None, page_table=None, softmax_scale=None, causal=False,
    window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False,
):  # fmt: skip
    """flash-attn-4 4.0.0b36: its names and their order, and what it returns. Causal with a window is local."""
    assert causal
    assert (max_seqlen_q, max_seqlen_k) == tuple(int(ends.diff().max()) for ends in (cu_seqlens_q, cu_seqlens_k))
    assert {cu_seqlens_q.dtype, cu_seqlens_k.dtype} == {torch.int32}
    left = -1 if window_size[0] is None else window_size[0]
    out = torch.cat(list(segments(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale, (left, 0))))
    return out, torch.zeros(q.shape[1], len(q))


@pytest.fixture
def flash_attn_4(monkeypatch):
    cute = SimpleNamespace(flash_attn_varlen_func=mock.Mock(side_effect=flash_attn_varlen_func))
    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(cute=cute))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", cute)
    return cute.flash_attn_varlen_func


@pytest.mark.parametrize(("window", "checkpointing"), [(None, False), (5, True)])
def test_a_model_that_was_told_to_takes_flash_attn_4_and_keeps_it(flash_attn_4, monkeypatch, window, checkpointing):
    monkeypatch.setattr(packed_attention, "_SHORT", 0)  # on a CPU even short segments
    plain, told = (make_model("mistral", sliding_window=window) for _ in range(2))
    packed_attention.choose_kernels(told, ["flash4"])
    packed = pack(make_groups(longest=40))
    if checkpointing:
        told.gradient_checkpointing_enable({"use_reentrant": False})
        told.train()
    found, expected = (gradients(model, token_statistics(model, packed).logprobs.sum()) for model in (told, plain))
    assert flash_attn_4.call_count == (4 if checkpointing else 2)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_functions_that_are_compiled_are_those_of_every_family(family):
    """Uncompiled they have the same bits. Each is called, and another model of the family keeps its own."""
    plain, ours, packed = make_model(family), make_model(family), pack(make_groups())
    called = Counter()
    compile_layers(ours, lambda function: lambda *given: called.update([function.__name__]) or function(*given))
    values = [token_statistics(model, packed).logprobs for model in (ours, plain)]
    assert torch.equal(*values)
    assert called == {"norm": 9 if family == "qwen3" else 5, "gated": 2, "rotated": 2}
    found, expected = (gradients(model, value.sum()) for model, value in zip((ours, plain), values, strict=True))
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize(
    ("dtype", "old", "fix"), [(torch.float32, False, "model.dtype=bfloat16"), (torch.bfloat16, True, "torch 2.11")]
)
def test_dense_masks_of_long_sequences_are_refused_on_a_gpu(torchs_varlen, dtype, old, fix):
    """Not on a CPU, where nothing else exists. The GPU here is torch's pretence: no tensor of it holds numbers."""
    if old:
        torchs_varlen(lambda query, key, value, is_causal=False: None)
    layout = SegmentLayout(pack([([3] * 2000, [[5] * 3000])]))
    with FakeTensorMode(), mock.patch("torch.cuda.get_device_capability", return_value=(9, 0)):
        rows = torch.empty(4999, 1, 8, device="cuda", dtype=dtype)
        with pytest.raises(UserError, match=f"(?s)4999 tokens need the variable-length kernel.*{fix}"):
            kernel_attention.attend(rows, rows, rows, Attention(layout, 1.0))


# the check of kernels -------------------------------------------------------------------------------------------------
def wrong(errors) -> list[str]:
    return [what for what, error, bound in errors if not error <= bound]


def test_a_fault_of_a_kernel_is_noticed(monkeypatch):
    """A window that is one too wide, a norm with another epsilon, the log-prob of the next token."""
    case, right = Segments("window", ((6, (20,)), (3, (5, 9))), (4, 2), 16, 7), kernel_check.attend
    assert wrong([*attention_errors(case, "cpu"), *layer_errors("cpu", lambda it: it), *logprob_errors("cpu")]) == []
    other_norm = layer_errors("cpu", lambda it: (lambda *given, eps: it(*given, eps=0.1)) if it is norm else it)
    assert "norm: error, output" in wrong(other_norm)
    shifted = logprob_errors("cpu", lambda *given: fused()(*given[:2], (given[2] + 1) % len(given[1])))
    assert "error, log-prob, rms" in wrong(shifted)
    wider = mock.Mock(side_effect=lambda *given, how: right(*given, how=replace(how, window=how.window + 1)))
    monkeypatch.setattr(kernel_check, "attend", wider)
    assert "window: error, output" in wrong(attention_errors(case, "cpu"))


def test_kernels_that_a_run_asks_for_are_tried_before_it_begins(monkeypatch):
    """With the heads and the windows of its model."""
    sizes = SimpleNamespace(num_attention_heads=4, num_key_value_heads=2, hidden_size=64, sliding_window=32)
    attention = mock.Mock(side_effect=kernel_check.attend)
    monkeypatch.setattr(kernel_check, "flash4", attention)
    check_kernels(["flash4"], sizes, "cpu")
    tried = [(call.args[0].shape[1:], call.kwargs["how"].window) for call in attention.call_args_list]
    assert tried == [((4, 16), None), ((4, 16), 50)]
    monkeypatch.setattr(kernel_check, "flash4", lambda *given, how: 1.1 * attention(*given, how=how))
    with pytest.raises(UserError, match="flash4 does not hold here against torch: all keys: error, output"):
        check_kernels(["flash4"], sizes, "cpu")


# micro-batches --------------------------------------------------------------------------------------------------------
def test_layout_of_two_groups():
    """An empty response trains nothing."""
    packed = pack([([5, 6], [[1, 2, 3], [], [4]]), ([7], [[8, 9]])])
    assert packed.tokens.tolist() == [5, 6, 1, 2, 7, 8]
    assert packed.positions.tolist() == [0, 1, 2, 3, 0, 1]
    assert packed.targets.tolist() == [1, 2, 3, 4, 8, 9]
    assert packed.rows.tolist() == [1, 2, 3, 1, 4, 5]
    assert packed.lengths.tolist() == [3, 0, 1, 2]
    with pytest.raises(ValueError, match="at least one"):
        pack([([], [[1]])])


sequences = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(0, 12), min_size=1, max_size=5)), min_size=1, max_size=6
)


@settings(max_examples=60, deadline=None)
@given(sequences, st.integers(1, 60))
def test_every_sequence_once_in_order_within_the_budget(groups, budget):
    prompts = [prompt for prompt, lengths in groups for _ in lengths]
    lengths = [length for _, lengths in groups for length in lengths]
    owners = [number for number, (_, lengths) in enumerate(groups) for _ in lengths]
    batches = split_by_tokens(prompts, lengths, owners, budget)
    assert [index for batch in batches for index in batch] == list(range(len(lengths)))

    def pushed(batch: list[int]) -> int:
        return sum(max(lengths[i] - 1, 0) for i in batch) + sum(groups[g][0] for g in {owners[i] for i in batch})

    assert all(pushed(batch) <= budget or len(batch) == 1 for batch in batches)
    for number, (prompt, own) in enumerate(groups):
        if prompt + sum(max(length - 1, 0) for length in own) <= budget:
            assert sum(any(owners[i] == number for i in batch) for batch in batches) == 1, "a group that fits was cut"


@pytest.mark.parametrize("ranks", [2, 16, 100])
@pytest.mark.parametrize("budget", [1, 3000, 10**7])
def test_every_sequence_is_in_one_micro_batch_that_fits(ranks: int, budget: int) -> None:
    """A mini-batch of the paper: 16 groups of 8; lognormal responses of 2k tokens on average, at most 8,192."""
    rng = np.random.default_rng(7)
    responses = np.minimum(rng.lognormal(np.log(2000) - 0.32, 0.8, 128).astype(np.int64) + 1, 8192)
    given = Sequences(np.repeat(rng.integers(60, 400, 16), 8), responses, np.repeat(np.arange(16), 8))
    whole = [part.tolist() for part in (given.prompts, given.responses, given.groups)]
    shares = deal(*whole, budget, ranks)
    parts = [part for rank in shares for part in rank]
    assert sorted(index for part in parts for index in part) == list(range(128))
    assert all(len(part) < 2 or given.pushed(part) <= budget for part in parts)
    assert all(part == sorted(part) for part in parts), "a group's responses must lie side by side"
    assert len(shares) == ranks
    assert len({len(rank) for rank in shares}) == 1
    assert shares == deal(*whole, budget, ranks)
