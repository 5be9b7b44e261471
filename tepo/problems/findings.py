"""Mistakes of a problem set whose rows can all be read: golds that no response matches, and two golds for one problem.
A run on it would only show them as a low reward."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tepo.common.text import counted, some_of
from tepo.problems.grader import Grader, GraderOptions
from tepo.problems.grader.brackets import TEXT
from tepo.problems.grader.extraction import gold_answers
from tepo.problems.grader.grader import NOT_TRIED
from tepo.problems.own_data.golds import is_worked
from tepo.problems.problem import Problem

SECONDS = 10.0  # CPU seconds of the grader's workers on the golds of a file that is about to be used
_COMPARED = 10  # golds of one problem
# what people and programs write where there is no answer; no solution, \infty and \emptyset are answers
_NOTHING = re.compile(
    r"(?:(?i:none|null|nil|nan|n/a|#n/a|<na>|unknown|missing|tbd|todo|no answer|not available)|NA"
    r"|[+-]?(?:inf|Infinity)|[-–—?_.…\s]+)\.?"
)
_OTHER_FORM = re.compile(  # verl's GSM8K, DAPO, R1
    r"\b(?:answer|result)\b[^\n]{0,80}(?P<marks>####)|(?P<tags><answer>)|(?P<line>Answer:\s*\\?\$\\?Answer)",
    re.IGNORECASE,
)
_NOISE = re.compile(r"-?(?=(?:\.?\d){16})\d+\.\d*?(?:0{8,}|9{8,})\d{1,3}")  # of 0.1 + 0.2 in binary


@dataclass(frozen=True)
class Findings:
    """Problems by their ids, each with what is wrong. golds: how many there are; tried: how many of them the grader
    tried to read. unread: those that only the same text matches, or that are no answers. several: problems with golds
    that differ. repeated: problems that are there again with the same gold, which does no harm but counts twice."""

    golds: int
    tried: int
    unread: Sequence[str]
    several: Sequence[str]
    repeated: Sequence[str]

    @property
    def useless(self) -> bool:
        """Tell whether no gold can be read."""
        return len(self.unread) == self.tried > 0

    def __str__(self) -> str:
        """One line with the numbers and the first problems of each kind; empty where nothing is wrong."""
        part = "" if self.tried == self.golds else f" that were tried, of {self.golds:,},"
        unread = f"{len(self.unread):,} of {self.tried:,} golds{part} cannot be read"
        several = f"{counted(len(self.several), 'problem')} with golds that differ"
        kinds = (f"{unread}, so that only the same text is right", self.unread), (several, self.several)
        return ". ".join(f"{what}: {some_of(entries)}" for what, entries in kinds if entries)


def find(problems: Sequence[Problem], grader: Grader, seconds: float = math.inf) -> Findings:
    """Look through a problem set. seconds: as in `Grader.check_golds`, and after as many answers to one problem are
    compared as texts."""
    reasons = dict(grader.check_golds([problem.answer for problem in problems], seconds))
    for index, problem in enumerate(problems):
        if not _is_answer(problem.answer):
            reasons[index] = f"{problem.answer.strip()} is no answer"
        elif _NOISE.fullmatch(problem.answer.strip()):
            reasons[index] = f"{problem.answer.strip()} is a number with rounding noise"
        elif not re.search(r"\\boxed|####", problem.answer) and is_worked(problem.answer):
            reasons[index] = f"{problem.answer.strip()} is a worked solution, not an answer"
    unread = [f"{problems[index].id} ({why})" for index, why in sorted(reasons.items()) if why != NOT_TRIED]
    same: dict[str, list[Problem]] = {}
    for problem in problems:
        same.setdefault(" ".join(problem.prompt.split()), []).append(problem)
    several, repeated = [], []
    for members in (members for members in same.values() if len(members) > 1):
        ids = ", ".join(problem.id for problem in members)
        first, *others = list(dict.fromkeys(problem.answer.strip() for problem in members))[:_COMPARED]
        pairs = [pair for other in others for pair in ((first, other), (other, first))]
        verdicts = grader.grade([(gold, f"\\boxed{{{answer}}}") for gold, answer in pairs if seconds > 0])
        seconds -= sum(verdict.seconds for verdict in verdicts)
        right = {frozenset(pair) for pair, verdict in zip(pairs, verdicts, strict=False) if verdict.correct}
        if len(right) == len(others):
            repeated.append(f"{ids}: the same problem with the answer {first}")
        else:
            several.append(f"{ids}: the same problem with the answers {', '.join([first, *others])}")
    tried = len(problems) - sum(why == NOT_TRIED for why in reasons.values())
    return Findings(len(problems), tried, unread, several, repeated)


def other_forms(problems: Sequence[Problem], options: GraderOptions) -> str:
    r"""A line on statements, or system prompts, that ask for the answer in another form than a box; empty where none
    does, or where the grader reads any form."""
    forms = [
        (problem.id, match[match.lastgroup or 0])
        for problem in problems
        if (match := _OTHER_FORM.search(f"{problem.system}\n{problem.prompt}"))
    ]
    if not forms or "phrase" in options.fallbacks:
        return ""
    named = some_of([f"{name} ({form})" for name, form in forms])
    fix = "take that out of them, or set grader.fallbacks=[phrase], which reads answers without a box"
    asks = "ask" if len(forms) > 1 else "asks"
    return f"{counted(len(forms), 'problem')} {asks} for the answer in another form than \\boxed{{}}: {named}: {fix}"


def _is_answer(gold: str) -> bool:
    return not any(_NOTHING.fullmatch(TEXT.sub(r"\1", option).strip(" $\"'`")) for option in gold_answers(gold))
