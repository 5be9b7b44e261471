from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from tepo.policy.model.shapes import Shape
from tepo.store.run_folder import RunFolder
from tepo.training.loop import train
from tepo.training.metrics.throughput import Size, TokenCounts, phases
from tepo.training.rollout_batch import Group
from tepo.training.run import Run
from tests.support.rollouts import graded, rollout
from tests.support.runs import small


def of_lengths(prompt: int, *responses: int) -> Group:
    return graded([0] * len(responses), responses, prompt=prompt)


def test_a_run_has_the_figures_of_one_rank(tmp_path: Path) -> None:
    folder = train(Run(small(tmp_path, "train.steps=2", "train.checkpoint_every=1")))
    rows = RunFolder(folder).metrics()
    for row in rows:
        seconds = phases({name[9:]: value for name, value in row.items() if name.startswith("timing_s/")})
        total = row["perf/total_num_tokens"]
        assert total > row["perf/trained_tokens"], "prompts too"
        assert row["perf/throughput"] == pytest.approx(total / row["timing_s/step"])
        assert row["perf/throughput_gen"] == pytest.approx(row["perf/sampled_tokens"] / seconds["gen"])
        assert row["timing_per_token_ms/gen"] == pytest.approx(1000 * seconds["gen"] / row["perf/sampled_tokens"])
        assert row["timing_per_token_ms/update_actor"] == pytest.approx(1000 * row["timing_s/update_actor"] / total)
        assert 0.05 < row["perf/cpu_memory_used_gb"] < 64
        assert not [name for name in row if name.startswith(("perf/mfu", "perf/max_memory"))]
    assert "timing_s/save_checkpoint" not in rows[0]
    assert all(row["timing_s/save_checkpoint"] > 0 for row in rows[1:])


def test_operations_are_those_of_the_products_of_a_model() -> None:
    """Against torch's own count, of a model whose attention does the other half too."""
    from torch.utils.flop_counter import FlopCounterMode

    config = Qwen2Config(
        hidden_size=32, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=96, attn_implementation="eager", tie_word_embeddings=True,
    )  # fmt: skip
    model, length = Qwen2ForCausalLM(config), 40
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        model(torch.zeros(1, length, dtype=torch.long))
    shape = Shape.of_config(config)
    half = 2 * shape.layers * shape.heads * shape.head_dim * length**2
    assert shape.forward_operations(length, length**2) + half == counted.get_total_flops()


def test_a_prompt_counts_once_a_group() -> None:
    found = Size.of(rollout(of_lengths(3, 2, 4), of_lengths(5, 1, 7)))
    assert found.tokens == 3 + 6 + 5 + 8
    # a response's token attends to the prompt and what came before it; the prompt to itself, once
    pairs = 3**2 + (5**2 - 3**2) + (7**2 - 3**2) + 5**2 + (6**2 - 5**2) + (12**2 - 5**2)
    assert found.pairs == pairs
    assert Size.of(rollout(of_lengths(3, 2))).pairs == 25


def test_work_adds_up() -> None:
    work, one = TokenCounts(), rollout(of_lengths(3, 2, 4))
    work.score(one, 0)
    assert work.scored == (0, 0)
    work.score(one, 2)
    work.train(one, 3)
    assert work.scored == tuple(2 * value for value in Size.of(one))
    assert work.trained == tuple(3 * value for value in Size.of(one))
    assert work.batch == 3 + 2 + 3 + 4, "as verl counts, each response with its prompt"
