"""Rewards of a user's own (`data.reward`): several by name, each a function in a Python file or the grader's verdict.

The functions run in the grader's kind of workers, under its options: CPU seconds, memory, processes. A response whose
reward could not be had counts as 0; where that is the rule, `check_failures` ends the run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from tepo.common.errors import RunFailed, UserError
from tepo.config.own_reward import raise_all
from tepo.config.run_config import NamedReward
from tepo.problems.grader import Grader, GraderOptions, given_up
from tepo.problems.grader.pool import Pool, PoolOutcome
from tepo.problems.problem import Problem

_WORKER = "tepo.problems.rewards.reward_worker"
_FIX = "def reward(problem, response): return a number from 0 to 1, or a bool"
_BUDGET = "grader.timeout, grader.memory_mb and grader.workers set the budget"
_COLUMNS = "data.columns=[NAME] for columns of the data; else a keyword needs a default"
_OVER = {"timeout": "took more than grader.timeout", "stalled": "hardly ran at all", "memory": "out of memory"}

if TYPE_CHECKING:
    from tepo.problems.rewards.reward_worker import Judgement


@dataclass(frozen=True, slots=True)
class Scored:
    """Rewards of a response by name, in the order of the configuration. failure: why one could not be had, with file
    and line; it is 0. given_up: by the grader. figures: others that functions gave, by `REWARD/FIGURE`."""

    rewards: tuple[float, ...]
    failure: str
    given_up: bool
    figures: Mapping[str, float] = field(default_factory=dict)


class OwnRewards:
    """Computes the rewards of responses. A context manager, usable from any thread. weights: of each reward. columns:
    those of the data that functions are given."""

    def __init__(self, named: Mapping[str, NamedReward], grader: Grader, columns: Sequence[str] = ()):
        self.names, self._named, self._grader = tuple(named), list(named.values()), grader
        self.weights = tuple(reward.weight for reward in self._named)
        self._functions = tuple(reward for reward in self._named if reward.own)
        self._columns, self._pool = tuple(columns), _pool(self._functions, grader.options, columns)

    @cached_property
    def _grouped(self) -> list[bool]:
        """Tell of each function whether it is asked once a group, and not for each response."""
        return [bool(outcome.value) for outcome in _looked_at(self._functions, self._grader.options, self._columns)]

    @property
    def of_groups(self) -> bool:
        """Tell whether all responses of a group must be scored together."""
        return any(self._grouped)

    def score(self, groups: Sequence[tuple[Problem, Sequence[str]]]) -> list[Scored]:
        """The rewards of each response text, in order, of groups with their problem. Never raises for what a file
        does."""
        columns = [
            iter(self._judged(number, reward, groups, grouped))
            for number, (reward, grouped) in enumerate(zip(self._functions, self._grouped, strict=True))
        ]
        pairs = [(problem.answer, text) for problem, texts in groups for text in texts]
        verdicts = self._grader.grade(pairs) if len(columns) < len(self._named) else []
        scored = []
        for index in range(len(pairs)):
            judged, rewards, failure = iter(columns), [], ""
            figures: dict[str, float] = {}
            for name, reward in zip(self.names, self._named, strict=True):
                value, others, why = next(next(judged)) if reward.own else (float(verdicts[index].correct), {}, "")
                rewards.append(value or 0.0)
                figures |= {f"{name}/{key}": figure for key, figure in others.items()}
                failure = failure or why
            lost = bool(verdicts) and bool(given_up([verdicts[index].reason]))
            scored.append(Scored(tuple(rewards), failure, lost, figures))
        return scored

    def mean(self, rewards: Sequence[float]) -> float:
        """The reward that is trained on: the mean by weight, 1 exactly where all rewards are 1."""
        return sum(map(float.__mul__, self.weights, rewards)) / sum(self.weights)

    def _judged(
        self, number: int, reward: NamedReward, groups: Sequence[tuple[Problem, Sequence[str]]], grouped: bool
    ) -> "list[Judgement]":
        """A judgement of each response: what a function gives is asked for once for equal responses."""
        asked = groups if grouped else [(problem, [text]) for problem, texts in groups for text in texts]
        keys = [(problem, tuple(texts)) for problem, texts in asked]
        unlike = list(dict.fromkeys(keys))
        requests = [{"reward": number, "problem": asdict(problem), "responses": texts} for problem, texts in unlike]
        by_key: dict[tuple[Problem, tuple[str, ...]], list[Judgement]] = {}
        for key, outcome in zip(unlike, self._pool.run(requests), strict=True):
            reason = outcome.reason
            if reason in _OVER or reason == "crash":
                reason = f"{reward.file}: {reward.function} {_OVER.get(reason, 'ended its process')}"
            by_key[key] = [(None, {}, reason)] * len(key[1]) if reason else outcome.value
        return [judgement for key in keys for judgement in by_key[key]]

    def __enter__(self) -> "OwnRewards":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.close()


def _pool(functions: tuple[NamedReward, ...], options: GraderOptions, columns: Sequence[str]) -> Pool:
    """A process for each response or group: it knows of no other."""
    rewards = [(reward.file, reward.text, reward.function) for reward in functions]
    return Pool(replace(options, recycle=1), _WORKER, {"rewards": rewards, "columns": list(columns)})


def check_rewards(named: Mapping[str, NamedReward], options: GraderOptions, columns: Sequence[str] = ()) -> None:
    """Execute the files in a worker. Raises UserError that names every file that does not load and every function that
    is missing or takes something else than problem, responses and these columns."""
    functions = tuple(reward for reward in named.values() if reward.own)
    outcomes = _looked_at(functions, options, tuple(columns)) if functions else []
    raise_all([_mistake(why) for why in dict.fromkeys(outcome.reason for outcome in outcomes) if why])


@lru_cache(maxsize=64)
def _looked_at(
    functions: tuple[NamedReward, ...], options: GraderOptions, columns: tuple[str, ...]
) -> list[PoolOutcome]:
    """Look whether functions are asked once a group, and why they cannot be called; kept, as a study has many rows with
    the same files."""
    pool = _pool(functions, replace(options, workers=1), columns)
    try:
        return pool.run([{"check": number} for number in range(len(functions))])
    except RunFailed:
        files = ", ".join(dict.fromkeys(reward.file for reward in functions))
        reason = f"{files}: loading it took too much time or memory (grader.memory_mb={options.memory_mb})"
        return [PoolOutcome(False, reason, 0.0)] * len(functions)
    finally:
        pool.close()


def _mistake(why: str) -> UserError:
    where, _, what = why.partition(": ")
    fix = _BUDGET if what.endswith(tuple(_OVER.values())) else _FIX
    return UserError(what, where=where, fix=_COLUMNS if _COLUMNS.partition("=")[0] in what else fix)


def _usual(failures: Sequence[str]) -> UserError:
    """The first of those at the place where most are."""
    places = [why.partition(": ")[0] for why in failures]
    return _mistake(failures[places.index(Counter(places).most_common(1)[0][0])])


def try_out(rewards: OwnRewards, problems: Sequence[Problem]) -> None:
    """Raises UserError where a reward fails on every one of some problems, answered right and not at all: training
    would end so in its first step."""
    scored = rewards.score([(problem, (f"\\boxed{{{problem.answer}}}", "")) for problem in problems])
    if all(score.failure for score in scored):
        mistake = _usual([score.failure for score in scored])
        what = f"a reward fails on all of {len(scored)} responses: {mistake.what}"
        raise UserError(what, where=mistake.where, fix=mistake.fix)


def check_failures(failures: Sequence[str], responses: int) -> None:
    """Raise RunFailed where own rewards failed on more than half of so many responses. failures: why, of each that
    did, with file and line."""
    if 2 * len(failures) > responses:
        mistake = _usual(failures)
        what = f"own rewards failed on more than half of {responses} responses, as in: {mistake.what}"
        raise RunFailed(what, where=mistake.where, fix=mistake.fix)
