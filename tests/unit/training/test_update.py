import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tepo.common.errors import Diverged, RunFailed, UserError
from tepo.config.compose import compose
from tepo.objectives import Objective, load_objective
from tepo.policy.logprobs.softmax_at_temperature import softmax_statistics
from tepo.policy.logprobs.token_statistics import hidden_states, output_matrix, reference_logprobs, token_statistics
from tepo.policy.packing.packing import pack
from tepo.sampling.gap import GapAlarm
from tepo.store.run_folder import RunFolder
from tepo.training import loop
from tepo.training.engine.torch_engine import TorchEngine
from tepo.training.loop import scheduled_learning_rate, train
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.rollout_batch import FlatRollout, Group, even_chunks, mini_batches
from tepo.training.run import Run
from tepo.training.update import Updater
from tests.invariants.pipeline import LIMIT, WHOLE, KeepingEngine, configuration, make_groups, make_policy
from tests.support.models import VOCABULARY
from tests.support.runs import small

GROUPS = make_groups()


def updater_of(source: str | Objective, engine: Any, budget: int = WHOLE) -> Updater:
    config = configuration(len(GROUPS))
    config = replace(config, engine=replace(config.engine, micro_batch_tokens=budget))
    objective = load_objective(source) if isinstance(source, str) else source
    return Updater(config, objective, engine, GapAlarm(1e9, temperature=1.0, dtypes=("float32", "float32")))


def update(updater: Updater, rollout: FlatRollout, step: int, recorder: StepMetrics) -> dict[str, float]:
    """A rollout of the policy as it is: its old values, and all updates."""
    updater.compute_old_logprobs(rollout)
    return loop.update(updater, rollout, step, recorder)


def rollout_of(groups: list[Group] = GROUPS) -> FlatRollout:
    return FlatRollout(groups, torch.device("cpu"))


def changed(**values: Any) -> list[Group]:
    """The groups with other values in every response."""
    return [replace(group, responses=[replace(response, **values) for response in group.responses]) for group in GROUPS]


def weights_of(engine: TorchEngine) -> dict[str, bytes]:
    return {name: value.detach().numpy().tobytes() for name, value in engine.weights().items()}


def first_mini_batch(updater: Updater, rollout: FlatRollout) -> Any:
    advantages = torch.zeros_like(rollout.sampler_logprobs)
    return next(mini_batches(rollout, advantages, updater.config.train, updater.dealer, 1))


@pytest.mark.parametrize("budget", [WHOLE, 20])
def test_a_mini_batch_with_nothing_in_the_loss_moves_nothing(budget: int) -> None:
    """AdamW's momentum would move the weights on a gradient of zeros."""
    engine = TorchEngine(make_policy(torch.float32), configuration(len(GROUPS)).train)
    updater = updater_of(load_objective("grpo_dapo", {"keep": "finished"}), engine, budget)
    assert update(updater, rollout_of(), 1, StepMetrics())["actor/skipped"] == 0
    before = weights_of(engine)
    metrics = update(updater, rollout_of(changed(finished=False)), 2, StepMetrics())
    assert (metrics["actor/skipped"], metrics["actor/grad_norm"], metrics["actor/pg_loss"]) == (1, 0, 0)
    assert weights_of(engine) == before
    update(updater, rollout_of(), 3, StepMetrics())
    assert weights_of(engine) != before


def test_the_same_weights_in_bfloat16_have_no_entropy_change() -> None:
    """The old distribution is made from logits as wide as the current ones:
    rounded to bfloat16, every entropy would seem to have changed."""
    model = make_policy(torch.float32).to(torch.bfloat16)
    packed = pack([(group.prompt.tokens, [response.tokens for response in group.responses]) for group in GROUPS])
    with torch.no_grad():
        old = reference_logprobs(model, packed)
        entropies = softmax_statistics(hidden_states(model, packed), output_matrix(model), packed.targets)[1]
    torch.testing.assert_close(-(old.exp() * old).sum(1), entropies, rtol=0, atol=1e-6)


def test_the_pass_shared_with_the_first_update_is_the_one_it_would_have_made() -> None:
    """The old distribution of the first mini-batch and its first update come from one pass: the same bits as from two,
    and no graph is left behind."""
    objective = load_objective("tepo", {"kl": "kl_old"})
    bits = []
    for shared in (True, False):
        engine = TorchEngine(make_policy(torch.float32), configuration(len(GROUPS)).train)
        updater, rollout = updater_of(objective, engine), rollout_of()
        updater.compute_old_logprobs(rollout)
        assert rollout.kept is not None
        if not shared:
            rollout.kept = None
        loop.update(updater, rollout, 1, StepMetrics())
        assert rollout.kept is None
        bits.append(weights_of(engine))
    assert bits[0] == bits[1]


def test_the_learning_rate_rises_linearly_and_stays() -> None:
    for warm_up, parts in ((0, [1.0] * 6), (4, [1 / 4, 2 / 4, 3 / 4, 1.0, 1.0, 1.0])):
        train = replace(configuration(len(GROUPS)).train, warmup_steps=warm_up, learning_rate=3e-6)
        found = [scheduled_learning_rate(train, step) for step in range(1, 7)]
        assert found == pytest.approx([3e-6 * part for part in parts])


@pytest.mark.parametrize(
    ("source", "groups", "dtype", "own"),
    [
        ("gtpo", GROUPS, "float32", True),  # old entropies alone: nothing to compare them with
        ("entropy_advantage", GROUPS, "float32", True),  # current entropies alone
        ("tepo", GROUPS, "float32", False),
        ("tis", GROUPS, "float32", False),
        ("grpo_dapo", changed(entropies=None), "float32", False),
        ("grpo_dapo", GROUPS, "bfloat16", False),
    ],
)
def test_whose_log_probs_are_the_old_ones(source: str, groups: list[Group], dtype: str, own: bool) -> None:
    """The sampler's own where nothing is compared with them, else the trainer's, of every token in its order."""
    policy = make_policy(torch.float32)
    updater, rollout = updater_of(source, KeepingEngine(policy), 20), rollout_of(groups)
    updater.config = replace(updater.config, model=replace(updater.config.model, dtype=dtype))
    updater.compute_old_logprobs(rollout)
    assert torch.equal(rollout.old_logprobs, rollout.sampler_logprobs) == own
    assert not rollout.old_logprobs.requires_grad
    if not own:
        with torch.no_grad():
            ours = token_statistics(policy, rollout.pack(range(rollout.sequence_count)))
        torch.testing.assert_close(rollout.old_logprobs, ours.logprobs)
        torch.testing.assert_close(rollout.old_entropies, ours.entropies)


@pytest.mark.parametrize("anchor", ["old", "initial"])
def test_an_exact_kl_is_to_the_policy_that_is_named(anchor: str) -> None:
    objective = load_objective("tepo_kl_all", {"kl": f"kl_{anchor}"})
    current, initial = make_policy(torch.float32), make_policy(torch.float32, spread=0.2)
    updater, rollout = updater_of(objective, KeepingEngine(current)), rollout_of()
    updater.initial = initial if anchor == "initial" else None
    updater.compute_old_logprobs(rollout)
    with torch.no_grad():
        packed = rollout.pack(range(rollout.sequence_count))
        expected = reference_logprobs(current if anchor == "old" else initial, packed)
    torch.testing.assert_close(rollout.old_distribution, expected)
    first = first_mini_batch(updater, rollout)
    kl = updater.log_probs(first, range(len(first.sequences))).full_kl
    assert (kl.abs().max() < 1e-6) == (anchor == "old")  # before the first update


def test_a_distribution_that_the_memory_does_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept until the updates: log-probs of all words at each token. A quarter of what is free may hold them."""
    objective, rollout = load_objective("tepo_kl_all", {"kl": "kl_old"}), rollout_of()
    updater = updater_of(objective, KeepingEngine(make_policy(torch.float32)))
    size = 4 * VOCABULARY * len(rollout.sampler_logprobs)
    monkeypatch.setattr("tepo.training.update.free_bytes", lambda device: 4.1 * size)
    updater.compute_old_logprobs(rollout)
    monkeypatch.setattr("tepo.training.update.free_bytes", lambda device: 3.9 * size)
    with pytest.raises(UserError, match="of log-probs"):
        updater.compute_old_logprobs(rollout)


def test_draws_change_with_seed_step_and_mini_batch() -> None:
    """And with nothing else: a resumed run must draw what an undisturbed one did."""
    objective = load_objective("clip_cov", {"share": 0.3, "alpha": 0})

    def drawn(step: int, seed: int = 0) -> list[list[float]]:
        updater, rollout = updater_of(objective, KeepingEngine(make_policy(torch.float32))), rollout_of()
        updater.config = replace(updater.config, seed=seed)
        advantages = updater.objective.advantages(rollout.for_advantages(LIMIT))
        batches = mini_batches(rollout, advantages, updater.config.train, updater.dealer, step)
        return [updater.prepare(batch).values[objective.planned[-1].number].tolist() for batch in batches]

    first, second = drawn(1)
    assert first != second
    assert drawn(1) == [first, second]
    for others in (drawn(2), drawn(1, seed=1)):
        assert not {tuple(first), tuple(second)} & {tuple(other) for other in others}


def test_the_alarm_gets_the_first_log_probs_and_the_metrics_the_last_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two updates on one mini-batch: log-probs of all tokens before the first, diagnostics of the second alone."""
    engine, rollout, recorder = KeepingEngine(make_policy(torch.float32)), rollout_of(), StepMetrics(keep_tokens=True)
    updater, seen = updater_of("grpo_dapo", engine, 40), []
    check = updater.alarm.check

    def checked(sampler: torch.Tensor, trainer: torch.Tensor, *rest: Any, **more: Any) -> dict[str, float]:
        seen.append((sampler, trainer, len(engine.kept)))
        return check(sampler, trainer, *rest, **more)

    monkeypatch.setattr(updater.alarm, "check", checked)
    metrics = update(updater, rollout, 1, recorder)
    ((sampler, trainer, updates),) = seen
    assert updates == 0
    assert sorted(sampler.tolist()) == sorted(rollout.sampler_logprobs.tolist())
    assert not trainer.requires_grad
    first = first_mini_batch(updater, rollout)
    assert (recorder.updates, metrics["actor/updates"], engine.backwards) == (2, 2.0, 2 * len(first.micro_batches))
    kept = [sequence for sequences, _ in recorder.tokens for sequence in sequences]
    assert sorted(kept) == list(range(rollout.sequence_count))
    assert metrics["actor/lr"] == pytest.approx(0.05)
    apart = float((trainer.exp() - sampler.exp()).abs().mean())
    assert metrics["training/rollout_probs_diff_mean"] == pytest.approx(apart, rel=1e-4)


def test_a_loss_that_is_not_finite_on_another_rank_stops_this_one() -> None:
    """Otherwise the ranks would not end alike."""

    class Two:
        rank, world_size = 0, 2

        def all_sum(self, value: torch.Tensor) -> torch.Tensor:
            return value + torch.nan

    engine = KeepingEngine(make_policy(torch.float32), Two())  # type: ignore[arg-type]
    with pytest.raises(Diverged, match="step 3: the loss is nan"):
        updater_of("grpo_dapo", engine).check_finite([torch.tensor(0.5)], torch.tensor(1.0, dtype=torch.float64), 3)


def test_a_recorder_adds_up_blocks_and_averages_updates() -> None:
    recorder = StepMetrics()
    for name in ("gen", "sync", "gen"):
        with recorder.time(name):
            time.sleep(0.01)
    found = recorder.timings()
    assert found["timing_s/gen"] == recorder.seconds["gen"] >= 0.02
    assert sum(recorder.seconds.values()) <= found["timing_s/step"]
    assert found["perf/cpu_core_s"] <= found["perf/cpu_s"]  # of sampling and updates alone
    update(updater_of("grpo_dapo", KeepingEngine(make_policy(torch.float32))), rollout_of(), 1, recorder)
    for norm in (1.0, 4.0):
        recorder.add_update({"actor/grad_norm": norm})
    assert recorder.means(None)["actor/grad_norm"] == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("name", "broken"), [("tepo", "rewards"), ("dr_grpo", "sampler_logprobs"), ("gtpo_v2", "old_entropies")]
)
def test_a_nan_stops_the_run_before_the_weights_move(name: str, broken: str) -> None:
    """In one reward, or in what the sampler reports of one token and the row reads."""
    engine = TorchEngine(make_policy(torch.float32), configuration(len(GROUPS)).train)
    updater, rollout = updater_of(name, engine), rollout_of()
    getattr(rollout, broken)[0] = torch.nan
    before = weights_of(engine)
    with pytest.raises(RunFailed, match="step 1: the loss is nan"):
        update(updater, rollout, 1, StepMetrics())
    assert weights_of(engine) == before


@pytest.mark.parametrize(("size", "expected"), [(16, [16, 16, 16, 16]), (24, [21, 21, 22]), (100, [64]), (1, [1] * 64)])
def test_mini_batches_are_even_and_no_larger_than_asked(size: int, expected: list[int]) -> None:
    settings = compose([f"train.mini_batch_prompts={size}"]).train
    assert [len(part) for part in even_chunks(settings.prompts_per_step, settings.mini_batches)] == expected


def test_before_the_first_update_nothing_is_clipped(tmp_path: Path) -> None:
    """In bfloat16 sampler and trainer differ by more than GSPO's bounds of 3e-4 and 4e-4:
    with the sampler's log-probs a third was clipped."""
    one = ("train.steps=1", "train.epochs=1", "train.mini_batch_prompts=8")
    config = small(tmp_path, "objective=gspo", "model.dtype=bfloat16", *one)
    train(Run(config))
    (row,) = RunFolder.of(config).metrics()
    assert row["actor/pg_clipfrac"] == 0
    assert row["actor/ratio_max"] == pytest.approx(1, abs=1e-5)
