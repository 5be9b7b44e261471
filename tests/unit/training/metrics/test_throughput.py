"""How well a step used its machine: each figure from what is known of the step by another way."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from tepo.policy.model.shapes import Shape
from tepo.problems.problem import Problem
from tepo.sampling.sampler import Response
from tepo.store.run_folder import RunFolder
from tepo.training.distributed import liveness
from tepo.training.distributed.liveness import ACTIVITY
from tepo.training.loop import train
from tepo.training.metrics.metrics_log import VOLATILE
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.metrics.throughput import RankFigures, _memory, _waiting, phases
from tepo.training.metrics.token_counts import Size, TokenCounts
from tepo.training.resources.gpu_cards import peak_operations
from tepo.training.rollout_batch import FlatRollout, Group, Prompt
from tests.unit.training.small import small


def rollout(*groups: tuple[int, list[int]]) -> FlatRollout:
    """Of groups, each the length of its prompt and those of its responses."""
    return FlatRollout(
        [
            Group(
                Prompt(number, Problem("", "", ""), [0] * prompt),
                [Response(zeros := np.zeros(length, np.float32), zeros, zeros, True) for length in lengths],
                np.zeros(len(lengths), np.float32),
            )
            for number, (prompt, lengths) in enumerate(groups)
        ],
        torch.device("cpu"),
    )


def test_a_run_has_the_figures_of_one_rank(tmp_path: Path) -> None:
    folder = train(small(tmp_path, "train.steps=3", "train.checkpoint_every=1"))
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
        assert not [name for name in row if name.startswith(("perf/mfu", "perf/bubble", "perf/max_memory"))]
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
    found = Size.of(rollout((3, [2, 4]), (5, [1, 7])))
    assert found.tokens == 3 + 6 + 5 + 8
    # a response's token attends to the prompt and what came before it; the prompt to itself, once
    pairs = 3**2 + (5**2 - 3**2) + (7**2 - 3**2) + 5**2 + (6**2 - 5**2) + (12**2 - 5**2)
    assert found.pairs == pairs
    assert Size.of(rollout((3, [2]))).pairs == 25


def test_work_adds_up() -> None:
    work, one = TokenCounts(), rollout((3, [2, 4]))
    work.score(one, 0)
    assert work.scored == (0, 0)
    work.score(one, 2)
    work.train(one, 3)
    assert work.scored == tuple(2 * value for value in Size.of(one))
    assert work.trained == tuple(3 * value for value in Size.of(one))
    assert work.batch == 3 + 2 + 3 + 4, "as verl counts, each response with its prompt"


RANK = RankFigures({}, 1.0, 0.0, 0.0)


def test_waiting_is_a_share_of_the_phase_and_the_slowest_waits_least() -> None:
    ranks = [
        replace(RANK, waits={"gather": 1.0, "update_actor": 0.0, "step": 0.5}),
        replace(RANK, waits={"gather": 3.0, "update_actor": 2.0}),
    ]
    seconds = phases({"gen": 6.0, "reward": 1.0, "gather": 1.0, "update_actor": 4.0, "adv": 0.0}) | {"step": 13.0}
    assert _waiting(ranks, seconds) == {
        "perf/bubble/gen": 0.25,
        "perf/bubble/update_actor": 0.25,
        "perf/bubble/step": 3.25 / 13,
        "perf/slowest_rank": 0.0,
        "perf/slowest_rank_lag_s": 3.5,
    }


def test_a_recorder_takes_the_waits_of_its_own_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(liveness, "time", SimpleNamespace(monotonic=lambda: now))
    for seconds in (3.0, 4.0):
        recorder = StepMetrics()
        with recorder.time("sync"), ACTIVITY.meeting():
            now += seconds
        assert recorder.waits["sync"] == seconds


def test_memory_is_that_of_the_rank_with_the_most() -> None:
    assert _memory([RANK]) == {"perf/cpu_memory_used_gb": 1.0}
    assert _memory([RANK, replace(RANK, resident=2.0)]) == {"perf/cpu_memory_used_gb": 2.0, "perf/max_memory_rank": 1.0}
    gpus = [replace(RANK, allocated=9.0, reserved=10.0), replace(RANK, resident=2.0, allocated=8.0, reserved=12.0)]
    assert _memory(gpus) == {
        "perf/cpu_memory_used_gb": 2.0,
        "perf/max_memory_allocated_gb": 9.0,
        "perf/max_memory_reserved_gb": 12.0,
        "perf/max_memory_rank": 0.0,
    }


def test_no_peak_is_made_up() -> None:
    assert peak_operations("NVIDIA H100 80GB HBM3", "bfloat16") == 989e12
    assert peak_operations("NVIDIA H100 80GB HBM3", "float32") is None
    assert peak_operations("a card that nobody knows", "bfloat16") is None


def test_every_figure_of_the_machine_is_among_those_that_differ() -> None:
    found = _waiting([RANK, RANK], {"step": 1.0}) | _memory([replace(RANK, reserved=1.0), RANK])
    assert all(name.startswith(VOLATILE) for name in found)
    assert all(name.startswith(("timing_s/", "timing_per_token_ms/", "perf/")) for name in VOLATILE)
