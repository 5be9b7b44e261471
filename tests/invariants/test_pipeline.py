"""Objectives that reach every function, through the real batching pipeline:
micro-batch size, cut groups, the order of prompts and two ranks change nothing."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tepo.formula.language import AVERAGES, FUNCTIONS, GIVEN, GROUPS
from tepo.objectives import load_objective
from tepo.objectives.testing.case import distance
from tepo.objectives.testing.simulated_ranks import on_ranks
from tepo.sampling.gap import GapAlarm
from tepo.training.distributed.process_group import start
from tepo.training.rollout_batch import FlatRollout
from tepo.training.update import Updater
from tests.invariants.pipeline import WHOLE, KeepingEngine, configuration, make_groups, make_policy, run, turned
from tests.invariants.rows import covering, variants
from tests.invariants.rows import parts as parts_of
from tests.support.commands import ranks as started

ROWS = variants()
FEW = covering()


@pytest.fixture(scope="module")
def groups():
    return make_groups()


def assert_same(outcome, expected) -> None:
    """Gradients of both updates, and metrics."""
    (gradients, metrics), (others, means) = outcome, expected
    assert [distance(*pair) <= 1e-12 for pair in zip(gradients, others, strict=True)] == [True, True]
    assert metrics == pytest.approx(means, rel=1e-5, abs=1e-7)


def test_few_objectives_reach_every_name_and_function():
    """Every row is asked by tests/unit/objectives/test_formula_check.py, without the path."""
    reached = set().union(*map(parts_of, FEW.values()))
    assert reached == set().union(*map(parts_of, ROWS.values()))
    assert reached >= {*FUNCTIONS, *GIVEN} - {"N", "B"}  # which averages read
    assert reached >= {f"average {name}" for name in (*AVERAGES, GROUPS)}
    assert len(FEW) <= len(ROWS) / 3


@pytest.mark.parametrize("label", FEW)
def test_micro_batches_and_order(label, groups):
    expected, metrics, parts = run(FEW[label], groups, WHOLE, torch.float64)
    assert parts == 2, "one micro-batch an update"
    assert all(gradient.norm() > 0 for gradient in expected)
    for budget, given in ((17, groups), (60, turned(groups))):
        *outcome, parts = run(FEW[label], given, budget, torch.float64)
        assert parts > 2
        assert_same(outcome, (expected, metrics))


@pytest.mark.parametrize("label", FEW)
def test_float32(label, groups):
    expected, _, _ = run(FEW[label], groups, WHOLE, torch.float32)
    for budget in (17, 60):
        gradients, _, _ = run(FEW[label], groups, budget, torch.float32)
        assert distance(gradients[0], expected[0]) <= 1e-6, budget


def run_all(file: Path) -> None:
    """As a gloo rank, each objective on its share of the rollout."""
    torch.set_num_threads(1)
    comm = start(torch.device("cpu"))
    found = {label: run(one, make_groups(), 40, torch.float64, comm)[:2] for label, one in FEW.items()}
    if comm.rank == 0:
        torch.save(found, file)


def test_two_ranks(groups, tmp_path: Path):
    for rank in started(run_all, tmp_path / "gradients.pt"):
        rank.end(240)
    found = torch.load(tmp_path / "gradients.pt")
    assert set(found) == set(FEW)
    for label, outcome in found.items():
        assert_same(outcome, run(FEW[label], groups, WHOLE, torch.float64)[:2])


@pytest.mark.parametrize(
    ("label", "ranks"),
    [("grpo", 3), ("tepo, exact KL", 3), ("kl_cov, many", 3), ("grpo_dapo, group means", 3), ("kl_cov, many", 24)],
)
def test_groups_cut_between_ranks(label, ranks, groups):
    """Of three ranks each has parts of several groups; of 24 some have none of the 20 sequences."""
    expected = run(ROWS[label], groups, WHOLE, torch.float64)[:2]
    found = on_ranks(lambda rank: run(ROWS[label], groups, 17, torch.float64, rank), ranks)
    assert len({backwards for _, _, backwards in found}) == 1, "sharded engines need as many passes on every rank"
    for *outcome, _ in found:
        assert_same(outcome, expected)


def test_old_and_initial_values_are_shared_out(groups):
    """Ranks push together little more than one alone: a prompt for each rank that has a part of its group. A rank
    without a sequence pushes the shortest."""
    alone = run_old_values(groups, None)
    shares = on_ranks(lambda rank: run_old_values(groups, rank), 4)
    for _, logprobs, initial in shares:
        torch.testing.assert_close(logprobs, alone[1], rtol=0, atol=1e-12)
        torch.testing.assert_close(initial, alone[2], rtol=0, atol=1e-12)
    assert sum(pushed for pushed, _, _ in shares) <= 1.3 * alone[0]
    shortest = min(len(group.prompt.tokens) + len(row.tokens) - 1 for group in groups[:2] for row in group.responses)
    idle = [pushed for pushed, _, _ in on_ranks(lambda rank: run_old_values(groups[:2], rank), 12)]
    assert min(idle) == 2 * shortest


def run_old_values(groups, comm):
    """Tokens pushed through both models, log-probs of the policy and of the initial one."""
    objective, config = load_objective("grpo"), configuration(len(groups))
    models = make_policy(torch.float64), make_policy(torch.float64)
    pushed = []
    for model in models:
        model.get_input_embeddings().register_forward_hook(lambda _, given, out: pushed.append(given[0].numel()))
    alarm = GapAlarm(1e9, temperature=1.0, dtypes=("float32", "float32"))
    config = replace(config, model=replace(config.model, dtype="bfloat16"))  # the trainer's own values are computed
    rollout = FlatRollout(groups, torch.device("cpu"))
    Updater(config, objective, KeepingEngine(models[0], comm), alarm, models[1]).compute_old_logprobs(rollout)
    return sum(pushed), rollout.old_logprobs, rollout.initial_logprobs
