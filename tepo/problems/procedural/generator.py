"""Seeded problem sets made by rule: splits are disjoint by construction, prompts unique within a set.

Problem i of a set is a function of (seed, split, tasks, i): a longer set starts with the shorter one."""

import bisect
import itertools
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from random import Random

from tepo.common.errors import UserError, unknown_name
from tepo.common.randomness import derive
from tepo.problems.problem import Problem
from tepo.problems.procedural.task import Operands, Slip, Task, exact
from tepo.problems.procedural.tasks import TASKS
from tepo.problems.splits import HASH_RANGES, SPLITS, Split, split_of

_GOES_ON = re.compile(r"=\d+(?=\+\d+=)")  # a result in the middle of a step
_TRIES = 160  # draws that fall into the split, about, before its unused prompts count as used up


@dataclass(frozen=True, slots=True)
class Example:
    """A problem with the operands behind it, from which chains of thought can be written."""

    problem: Problem
    operands: Operands

    def solution(self, slip: Slip = exact) -> str:
        """A chain of thought that ends in `\\boxed{answer}`; the answer is the gold one unless `slip` spoils a step."""
        text, answer = TASKS[self.problem.family].chain(self.operands, slip)
        return f"{text}\\boxed{{{answer}}}"

    def wording(self, random: Random) -> str:
        """A right chain in wordings and orders that are drawn."""
        tell = TASKS[self.problem.family].wording
        assert tell
        text, answer = tell(self.operands, random)
        return f"{text}\\boxed{{{answer}}}"

    def terse(self, random: Random, skip: float) -> str:
        """A right chain without some of its steps: each is left out with probability `skip`, as by one who does it in
        the head. A step is a part between commas (where there are several), or a result that a part goes on from
        (`4+8=12+3=15` without `=12`)."""
        chain, box = self.solution().split("\\boxed")
        parts = chain.split(",")[:-1]
        steps = [step for step in parts if random.random() >= skip] if len(parts) > 1 else parts
        pieces = [
            _GOES_ON.sub(lambda match: "" if random.random() < skip else match.group(), step) + "," for step in steps
        ]
        return f"{''.join(pieces)}\\boxed{box}"

    def results(self) -> int:
        """Number of results in a chain."""
        values: list[int] = []

        def count(value: int, wrong: Sequence[int]) -> int:
            values.append(value)
            return value

        self.solution(count)
        return len(values)

    def guess(self) -> str:
        """The gold answer without the chain."""
        return f"\\boxed{{{self.problem.answer}}}"


def generate_examples(tasks: Mapping[str, float], count: int, seed: int, split: Split) -> list[Example]:
    """`count` examples with tasks drawn in proportion to their weights. Prompts repeat only where a task has no unused
    ones left. Raises UserError for an unknown task or split, a weight that is negative, or weights that sum to zero."""
    names, thresholds = check_tasks(tasks, split)
    prompts: set[str] = set()
    examples = []
    for index in range(count):
        random = Random(derive(seed, "problem", split, index))
        name = names[bisect.bisect_right(thresholds, random.random() * thresholds[-1], hi=len(names) - 1)]
        task = TASKS[name]
        operands, prompt = _draw(task, random, split, prompts)
        prompts.add(prompt)
        answer = task.chain(operands, exact)[1]
        examples.append(Example(Problem(f"{name}-{split}-{seed}-{index}", prompt, str(answer), name), operands))
    return examples


def _draw(task: Task, random: Random, split: Split, prompts: Set[str]) -> tuple[Operands, str]:
    """Operands and prompt in the split, unseen where one turns up within the redraws."""
    result = None
    low, high = HASH_RANGES[split]
    for _ in range(round(_TRIES / (high - low))):
        operands = task.draw(random)
        prompt = task.form(*operands)
        if split_of(prompt) == split:
            result = operands, prompt
            if prompt not in prompts:
                break
    if result is None:
        what = f"the task of {prompt!r} has no prompt in the {split} split"
        raise UserError(what, fix="choose a larger size of the task")
    return result


def generate(tasks: Mapping[str, float], count: int, seed: int, split: Split) -> list[Problem]:
    """The problems of `generate_examples`, without what is needed to solve them."""
    return [example.problem for example in generate_examples(tasks, count, seed, split)]


def check_tasks(tasks: Mapping[str, float], split: Split) -> tuple[list[str], list[float]]:
    """Task names and the running sum of their weights. Raises UserError as `examples` does."""
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    for name, weight in tasks.items():
        if name not in TASKS:
            raise unknown_name("task", name, TASKS)
        if not 0 <= weight < float("inf"):
            raise UserError(f"the weight of task {name!r} is {weight}", fix="give a number that is not negative")
    names = [name for name, weight in tasks.items() if weight > 0]
    if not names:
        raise UserError("no task has a positive weight", fix=f"name at least one of {', '.join(TASKS)}")
    return names, list(itertools.accumulate(tasks[name] for name in names))
