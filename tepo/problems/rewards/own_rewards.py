"""Rewards of a user's own (`data.reward`): several by name, each a function in a Python file or the grader's verdict.

The functions run in the grader's kind of workers, under its options: CPU seconds, memory, processes. A response whose
reward could not be had counts as 0; where that is the rule, `check_failures` ends the run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

from tepo.common.errors import RunFailed, UserError
from tepo.config.own_reward import raise_all
from tepo.config.run_config import NamedReward
from tepo.problems.grader import Grader, GraderOptions, given_up
from tepo.problems.grader.pool import Pool
from tepo.problems.problem import Problem

_WORKER = "tepo.problems.rewards.reward_worker"
_FIX = "def reward(problem, response): return a number from 0 to 1, or a bool"
_BUDGET = "grader.timeout, grader.memory_mb and grader.workers set the budget"
_OVER = {"timeout": "took more than grader.timeout", "stalled": "hardly ran at all", "memory": "out of memory"}


@dataclass(frozen=True, slots=True)
class Scored:
    """Rewards of a response by name, in the order of the configuration. failure: why one could not be had, with file
    and line; it is 0. given_up: by the grader."""

    rewards: tuple[float, ...]
    failure: str
    given_up: bool


class OwnRewards:
    """Computes the rewards of responses. A context manager, usable from any thread. weights: of each reward."""

    def __init__(self, named: Mapping[str, NamedReward], grader: Grader):
        self.names, self._named, self._grader = tuple(named), list(named.values()), grader
        self.weights = tuple(reward.weight for reward in self._named)
        self._pool = _pool(tuple(self._named), grader.options)

    def score(self, responses: Sequence[tuple[Problem, str]]) -> list[Scored]:
        """The rewards of each (problem, response text), in order. Never raises for what a file does."""
        columns = [self._own(number, reward, responses) for number, reward in enumerate(self._named) if reward.own]
        verdicts = []
        if len(columns) < len(self._named):
            verdicts = self._grader.grade([(problem.answer, text) for problem, text in responses])
        scored = []
        for index in range(len(responses)):
            own_outcomes = iter([column[index] for column in columns])
            outcomes = [
                next(own_outcomes) if reward.own else (float(verdicts[index].correct), "") for reward in self._named
            ]
            lost = bool(verdicts) and bool(given_up([verdicts[index].reason]))
            scored.append(
                Scored(tuple(value for value, _ in outcomes), next((why for _, why in outcomes if why), ""), lost)
            )
        return scored

    def mean(self, rewards: Sequence[float]) -> float:
        """The reward that is trained on: the mean by weight, 1 exactly where all rewards are 1."""
        return sum(map(float.__mul__, self.weights, rewards)) / sum(self.weights)

    def _own(
        self, number: int, reward: NamedReward, responses: Sequence[tuple[Problem, str]]
    ) -> list[tuple[float, str]]:
        """Value and no failure, or 0 and why, of each response; equal ones are asked for once."""
        unlike = list(dict.fromkeys(responses))
        base_request = {"reward": number, "file": reward.file}
        requests = [{**base_request, "problem": asdict(problem), "response": text} for problem, text in unlike]
        by_response = {}
        for response, outcome in zip(unlike, self._pool.run(requests), strict=True):
            reason = outcome.reason
            if reason in _OVER or reason == "crash":
                reason = f"{reward.file}: {reward.function} {_OVER.get(reason, 'ended its process')}"
            by_response[response] = (0.0 if reason else outcome.value, reason)
        return [by_response[response] for response in responses]

    def __enter__(self) -> "OwnRewards":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.close()


def _pool(named: tuple[NamedReward, ...], options: GraderOptions) -> Pool:
    """A process for each response: it knows of no other."""
    rewards = [(reward.file, reward.text, reward.function) for reward in named]
    return Pool(replace(options, recycle=1), _WORKER, {"rewards": rewards})


def check_rewards(named: Mapping[str, NamedReward], options: GraderOptions) -> None:
    """Execute the files in a worker. Raises UserError that names every file that does not load and every function that
    is missing or takes something else."""
    own_rewards = tuple(reward for reward in named.values() if reward.own)
    raise_all([_mistake(why) for why in _broken(own_rewards, options)] if own_rewards else [])


@lru_cache(maxsize=64)
def _broken(rewards: tuple[NamedReward, ...], options: GraderOptions) -> list[str]:
    """Reasons why rewards cannot be called; kept, as a study has many rows with the same files."""
    pool = _pool(rewards, replace(options, workers=1))
    try:
        outcomes = pool.run([{"check": number} for number in range(len(rewards))])
    except RunFailed:
        files = ", ".join(dict.fromkeys(reward.file for reward in rewards))
        return [f"{files}: loading it took too much time or memory (grader.memory_mb={options.memory_mb})"]
    finally:
        pool.close()
    return list(dict.fromkeys(outcome.reason for outcome in outcomes if outcome.reason))


def _mistake(why: str) -> UserError:
    where, _, what = why.partition(": ")
    return UserError(what, where=where, fix=_BUDGET if what.endswith(tuple(_OVER.values())) else _FIX)


def _usual(failures: Sequence[str]) -> UserError:
    """The first of those at the place where most are."""
    places = [why.partition(": ")[0] for why in failures]
    return _mistake(failures[places.index(Counter(places).most_common(1)[0][0])])


def try_out(rewards: OwnRewards, problems: Sequence[Problem]) -> None:
    """Raises UserError where a reward fails on every one of some problems, answered right and not at all: training
    would end so in its first step."""
    tried = [(problem, text) for problem in problems for text in (f"\\boxed{{{problem.answer}}}", "")]
    scored = rewards.score(tried)
    if all(score.failure for score in scored):
        mistake = _usual([score.failure for score in scored])
        what = f"a reward fails on all of {len(tried)} responses: {mistake.what}"
        raise UserError(what, where=mistake.where, fix=mistake.fix)


def check_failures(failures: Sequence[str], responses: int) -> None:
    """Raise RunFailed where own rewards failed on more than half of so many responses. failures: why, of each that
    did, with file and line."""
    if 2 * len(failures) > responses:
        mistake = _usual(failures)
        what = f"own rewards failed on more than half of {responses} responses, as in: {mistake.what}"
        raise RunFailed(what, where=mistake.where, fix=mistake.fix)
