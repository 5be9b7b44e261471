import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from tepo.common.errors import RunFailed
from tepo.config.run_config import RunConfig
from tepo.policy.logprobs.token_statistics import token_statistics
from tepo.policy.model.load_policy import load_policy
from tepo.problems.grader import Grader, GraderOptions
from tepo.sampling.embedded.torch_sampler import TorchSampler
from tepo.store.run_folder import RunFolder
from tepo.training.loop import train
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.rollout.collector import Collector
from tepo.training.rollout.prompt_stream import PromptStream
from tepo.training.rollout.run_progress import read_pending
from tepo.training.rollout_batch import FlatRollout, Group, even_chunks
from tepo.training.run import Run
from tests.support.runs import assert_same_run, interrupted, small

CPU = torch.device("cpu")
WORDS = ("train.steps=5", "train.staleness=2", "train.learning_rate=1e-3", "objective=tepo")


@dataclass
class Kept:
    config: RunConfig
    run: RunFolder
    folder: Path

    def checkpoint(self, step: int) -> Path:
        return self.folder / str(step)

    def pending(self, step: int) -> dict[int, FlatRollout]:
        policy = load_policy(self.config.model.path)
        rollouts = read_pending(self.checkpoint(step), PromptStream(self.config, policy.tokenizer), CPU)
        return {waiting.step: waiting for waiting in rollouts}


@pytest.fixture(scope="module")
def stale(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    store = tmp_path_factory.mktemp("stale")
    config = small(store / "runs", *WORDS)
    run = RunFolder.of(config)

    def keep(step: int, row: dict) -> None:
        """That of the step before; the last one is being written."""
        if step > 1:
            shutil.copytree(run.checkpoint(step - 1), store / "kept" / str(step - 1))

    train(Run(config), keep)
    keep(config.train.steps + 1, {})
    return Kept(config, run, store / "kept")


def tokens(groups: list[Group]) -> list[tuple[int, list[list[int]], list[float]]]:
    return [
        (group.prompt.number, [response.tokens.tolist() for response in group.responses], group.rewards.tolist())
        for group in groups
    ]


@pytest.mark.parametrize(("step", "finished"), [(3, 0), (4, 1)])
def test_a_step_trains_what_the_policy_of_two_steps_before_drew(stale: Kept, step: int, finished: int) -> None:
    """Step t: the policy after max(0, t - 3) steps. The rollouts lie in the checkpoint after the step that drew them.
    Sampled again from the weights of that policy, they have the same tokens, and log-probs that another's lack."""
    found = stale.pending(finished + 1)[step]
    policy = load_policy(str(stale.checkpoint(finished)) if finished else stale.config.model.path)
    consumed = [int(row["rollout/prompts"]) for row in stale.run.metrics()][: step - 1]
    with Grader(GraderOptions()) as grader:
        stream, sampler = PromptStream(stale.config, policy.tokenizer), TorchSampler(policy.model, policy.tokenizer)
        collector = Collector(stale.config, stream, sampler, grader, None)
        again = collector.collect(sum(consumed), step, consumed[-1], StepMetrics())
    assert tokens(found.groups) == tokens(again.groups)
    np.testing.assert_array_equal(found.sampler_logprobs, FlatRollout(again.groups, CPU).sampler_logprobs)

    def apart(folder: Path | str) -> float:
        """The old values from those of a policy."""
        with torch.no_grad():
            own = token_statistics(load_policy(str(folder)).model, found.pack(range(found.sequence_count)))
        differences = (own.logprobs - found.old_logprobs, own.entropies - found.old_entropies)
        return max(float(values.abs().max()) for values in differences)

    assert apart(policy.model.name_or_path) < 1e-4
    assert apart(stale.checkpoint(finished + 1)) > 1e-2


def test_the_last_steps_draw_nothing_beyond_the_end(stale: Kept) -> None:
    assert [sorted(stale.pending(step)) for step in range(1, 6)] == [[2, 3], [3, 4], [4, 5], [5], []]
    assert not (stale.checkpoint(5) / "rollouts").exists()
    rows = stale.run.metrics()
    drawn = np.cumsum([row["rollout/prompts"] for row in rows])
    assert [row["training/prompts"] for row in rows] == [drawn[2], drawn[3], drawn[4], drawn[4], drawn[4]]
    assert [row["training/staleness"] for row in rows] == [0, 1, 2, 2, 2]
    assert rows[0]["training/stale_log_ratio"] < 1e-5


def test_the_first_update_has_the_weights_of_its_own_step(stale: Kept) -> None:
    """The ratio's numerator is the policy after the step before: not the one that sampled, and no pass kept of it."""
    step = 3
    waiting = stale.pending(step - 1)[step]
    first = waiting.sequences_of(even_chunks(waiting.group_count, 2)[0])  # of two mini-batches
    with torch.no_grad():
        now = token_statistics(load_policy(str(stale.checkpoint(step - 1))).model, waiting.pack(first)).logprobs
    moved = float((now - waiting.old_logprobs[waiting.tokens_of(first)]).abs().mean())
    assert stale.run.metrics()[step - 1]["training/stale_log_ratio"] == pytest.approx(moved, rel=1e-3)


@pytest.mark.parametrize(("every", "stop"), [(1, 3), (2, 3)])
def test_a_killed_run_goes_on_with_the_rollouts_that_waited(stale: Kept, tmp_path: Path, every: int, stop: int) -> None:
    config = small(tmp_path, *WORDS, f"train.checkpoint_every={every}")
    interrupted(config, stop)
    train(Run(config))
    assert_same_run(RunFolder.of(config).path, stale.run.path)


def test_a_sampler_that_disagrees_stops_the_run_when_it_has_drawn(tmp_path: Path) -> None:
    config = small(tmp_path, *WORDS, "sampler.gap_bound=1e-12")
    with pytest.raises(RunFailed, match="step 1"):
        train(Run(config))
    assert RunFolder.of(config).metrics() == []
