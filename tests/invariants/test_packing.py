"""What packing must not change:
micro-batch borders, cut groups, neighbours and order leave every value and gradient as it was."""

from itertools import pairwise

import pytest
import torch

from tepo.policy.logprobs.softmax_at_temperature import StatisticsOptions
from tepo.policy.logprobs.token_statistics import token_statistics
from tepo.policy.packing.packing import pack, split_by_tokens
from tests.unit.policy.tiny import gradients, make_groups, make_model


def _sequences(groups):
    return [(number, prompt, response) for number, (prompt, responses) in enumerate(groups) for response in responses]


def _pack(sequences):
    """Sequences side by side, those of one group sharing their prompt."""
    held = {}
    for number, prompt, response in sequences:
        held.setdefault(number, (prompt, []))[1].append(response)
    return pack(list(held.values()))


@pytest.fixture(scope="module")
def whole():
    model, sequences = make_model("qwen2", torch.float64), _sequences(make_groups(seed=2, groups=5, longest=25))
    weights = torch.linspace(-1, 2, sum(len(s[2]) for s in sequences), dtype=torch.float64)
    statistics = token_statistics(model, _pack(sequences), StatisticsOptions(entropy_gradient=True))
    return (
        model,
        sequences,
        weights,
        statistics,
        gradients(model, (weights * (statistics.logprobs - statistics.entropies)).sum()),
    )


@pytest.mark.parametrize("budget", [1, 17, 60, 10**6])
def test_micro_batches_add_up(whole, budget):
    model, sequences, weights, statistics, expected = whole
    batches = split_by_tokens(
        [len(s[1]) for s in sequences], [len(s[2]) for s in sequences], [s[0] for s in sequences], budget
    )
    if budget == 17:
        assert any(sequences[a[-1]][0] == sequences[b[0]][0] for a, b in pairwise(batches)), "no group was cut"
    options = StatisticsOptions(entropy_gradient=True)
    parts = [token_statistics(model, _pack([sequences[i] for i in batch]), options) for batch in batches]
    logprobs, entropies = torch.cat([part.logprobs for part in parts]), torch.cat([part.entropies for part in parts])
    torch.testing.assert_close(logprobs, statistics.logprobs, atol=2e-6, rtol=0)
    torch.testing.assert_close(entropies, statistics.entropies, atol=2e-6, rtol=0)
    found = gradients(model, (weights * (logprobs - entropies)).sum())
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=2e-5, rtol=1e-5)


def test_neighbours_and_padding_are_invisible(whole):
    model, sequences, _, statistics, _ = whole
    offset = 0
    for sequence in sequences:
        alone = token_statistics(model, _pack([sequence])).logprobs
        torch.testing.assert_close(alone, statistics.logprobs[offset : offset + len(sequence[2])], atol=2e-6, rtol=0)
        offset += len(sequence[2])


def test_order_of_the_tokens_follows_the_order_of_the_sequences(whole):
    model, sequences, _, statistics, _ = whole
    pieces = dict(zip(range(len(sequences)), statistics.logprobs.split([len(s[2]) for s in sequences]), strict=True))
    turned = sorted(range(len(sequences)), key=lambda i: (-sequences[i][0], -i))
    found = token_statistics(model, _pack([sequences[i] for i in turned])).logprobs
    torch.testing.assert_close(found, torch.cat([pieces[i] for i in turned]), atol=2e-6, rtol=0)
