"""One rollout step: sample groups, grade them, keep the mixed ones, refill up to a cap
(DAPO section 3.2, TEPO section 4.1)."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from tepo.config.schema import RunConfig
from tepo.errors import RunFailed
from tepo.evaluation.scores import pass_at_k
from tepo.problems.grader import Grader, given_up
from tepo.randomness import derive
from tepo.sampling.sampler import Job, Response, Sampler, SamplingParams
from tepo.training.engine import Comm
from tepo.training.flat_rollout import Group
from tepo.training.prompt_stream import Prompt, PromptStream
from tepo.training.recorder import Recorder


@dataclass
class Rollout:
    """The mixed groups of a step and what it took to get them."""

    groups: list[Group] = field(default_factory=list)
    consumed: int = 0  # prompts drawn
    rounds: int = 0
    all_right: int = 0
    all_wrong: int = 0
    sampled_tokens: int = 0
    right: list[tuple[int, int]] = field(default_factory=list)  # right answers and responses of every group drawn
    scores: list[float] = field(default_factory=list)  # mean reward of every group drawn, dropped ones too
    lengths: list[int] = field(default_factory=list)
    cut: int = 0  # responses stopped by the length limit
    timeouts: int = 0  # answers that ran out of the grader's budget

    def add(self, drawn: Sequence[Group]) -> None:
        """Count a round's groups and keep the mixed ones."""
        self.consumed += len(drawn)
        self.rounds += 1
        for group in drawn:
            mean = float(group.rewards.mean())
            self.scores.append(mean)
            self.right.append((int(group.rewards.sum()), len(group.rewards)))
            self.lengths += [len(response.tokens) for response in group.responses]
            self.timeouts += group.timeouts
            self.cut += sum(not response.finished for response in group.responses)
            self.sampled_tokens += sum(len(response.tokens) for response in group.responses)
            if mean == 1.0:
                self.all_right += 1
            elif mean == 0.0:
                self.all_wrong += 1
            else:
                self.groups.append(group)

    def metrics(self) -> dict[str, float]:
        """verl's names, and ours (rollout/, grader/);
        rewards and lengths are over all responses drawn, before the filter."""
        right, responses = np.array(self.right).T
        return {
            "critic/score/mean": float(np.mean(self.scores)),
            **{
                f"critic/score/best@{k}": float(pass_at_k(responses, right, k).mean())
                for k in _halvings(int(responses[0]))
            },
            "critic/rewards/kept_mean": float(np.mean([group.rewards.mean() for group in self.groups])),
            "response_length/mean": float(np.mean(self.lengths)),
            "response_length/max": float(np.max(self.lengths)),
            "response_length/clip_ratio": self.cut / len(self.lengths),
            "rollout/prompts": float(self.consumed),
            "rollout/rounds": float(self.rounds),
            "rollout/groups_kept": float(len(self.groups)),
            "rollout/groups_all_right": float(self.all_right),
            "rollout/groups_all_wrong": float(self.all_wrong),
            "grader/timeouts": float(self.timeouts),
            "perf/sampled_tokens": float(self.sampled_tokens),
        }


def _halvings(n: int) -> list[int]:
    """n, n/2, n/4 … down to 2."""
    return [n >> shift for shift in range(n.bit_length()) if n >> shift >= 2]


@dataclass
class Collector:
    """What draws rollouts: each rank samples and grades its part of the prompts, then all ranks hold all of them."""

    config: RunConfig
    stream: PromptStream
    sampler: Sampler
    grader: Grader
    comm: Comm | None

    def collect(self, start: int, step: int, recorder: Recorder) -> Rollout:
        """Draw prompts from number `start` until `prompts_per_step` mixed groups are there
        or `max_rounds` rounds are spent.

        Each round after the first draws as many prompts as groups are missing. Groups whose responses are all right or
        all wrong have no advantage and are dropped. Raises RunFailed when no mixed group is left.
        """
        train, rollout = self.config.train, Rollout()
        while len(rollout.groups) < train.prompts_per_step and rollout.rounds < train.max_rounds:
            prompts = self.stream.take(start + rollout.consumed, train.prompts_per_step - len(rollout.groups))
            ranks = 1 if self.comm is None else self.comm.world_size
            own = [prompts[index::ranks] for index in range(ranks)]
            groups = self.draw(own[0 if self.comm is None else self.comm.rank], step, recorder)
            if self.comm is not None:
                with recorder.time("gather"):
                    shares = self.comm.all_gather_object(groups)
                groups = [shares[index % ranks][index // ranks] for index in range(len(prompts))]
            rollout.add(groups)
        if not rollout.groups:
            raise RunFailed(
                f"step {step}: none of {rollout.consumed} prompts gave a group with both right and wrong answers "
                f"({rollout.all_right} all right, {rollout.all_wrong} all wrong)",
                where=f"{rollout.rounds} rounds of sampling (train.max_rounds)",
                fix=(
                    "raise train.max_rounds or train.samples_per_prompt, or choose easier or harder problems; "
                    "the last checkpoint is kept"
                ),
            )
        return rollout

    def draw(self, prompts: list[Prompt], step: int, recorder: Recorder) -> list[Group]:
        """Sample and grade some prompts; a rank may have none in a small refill."""
        if not prompts:
            return []
        train = self.config.train
        keys = [derive(self.config.seed, "rollout", step, prompt.number) for prompt in prompts]
        params = SamplingParams(
            n=train.samples_per_prompt, temperature=train.temperature, max_new_tokens=train.max_new_tokens
        )
        graded: dict[int, Future[Group]] = {}
        with ThreadPoolExecutor(1) as aside:  # a group is graded while others are sampled
            with recorder.time("gen"):
                queue = self.sampler.start(params)
                queue.add(
                    [Job(i, prompt.tokens, key) for i, (prompt, key) in enumerate(zip(prompts, keys, strict=True))]
                )
                while len(graded) < len(prompts):
                    for index, group in queue.finished():
                        graded[index] = aside.submit(self._grade, prompts[index], group)
            with recorder.time("reward"):
                return [graded[index].result() for index in range(len(prompts))]

    def _grade(self, prompt: Prompt, responses: list[Response]) -> Group:
        """A group with its rewards."""
        texts = self.stream.decode([response.tokens for response in responses])
        verdicts = self.grader.grade([(prompt.problem.answer, text) for text in texts])
        rewards = np.array([verdict.correct for verdict in verdicts], dtype=np.float32)
        return Group(prompt, responses, rewards, given_up(verdict.reason for verdict in verdicts))
