"""The grader: extraction, cheap comparison in this process, sympy in worker processes, and a cache over all of it."""

import math
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tepo.common.files import content_hash
from tepo.problems.grader.brackets import deepest
from tepo.problems.grader.comparer import Comparer, Undecided, unread
from tepo.problems.grader.extraction import NoAnswer, extract_answer, gold_answers
from tepo.problems.grader.options import GraderOptions
from tepo.problems.grader.pool import OUT_OF_BUDGET, Pool
from tepo.problems.grader.spelling import canonical

_CACHED = 200_000
_AT_ONCE = 16  # golds given to the workers
_READ = 1e-4  # CPU seconds that a gold takes here, about: counted, as a clock would make it a matter of chance
NOT_TRIED = "not tried"
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_GARBLED = re.compile(r"-?[0-9]*(?:[a-df-hj-zA-DF-HJ-Z]|%)[0-9]+")  # 1a4, m3, 13%1: no spelling of an integer


def given_up(reasons: Iterable[str]) -> int:
    """Count the reasons that say that the grader gave an answer up: nobody knows whether it was right, it counts as
    wrong."""
    return sum(reason in OUT_OF_BUDGET for reason in reasons)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason` says how the verdict was reached (exact, number, symbolic …) or why the answer is wrong (different, no
    answer, unclosed box, timeout …; OUT_OF_BUDGET: it was given up); `extracted` is the answer in the response, None
    without one; `seconds` of a worker's CPU time, both tries together, or of wall clock where it took no worker."""

    correct: bool
    reason: str
    extracted: str | None
    seconds: float


class Grader:
    """Grades responses against golds; the same object serves rewards and evaluation. A context manager, usable from any
    thread. Workers start when the first answer needs sympy; `close` (or leaving the context) stops them."""

    def __init__(self, options: GraderOptions | None = None):
        self.options = options or GraderOptions()
        self.fingerprint = self.options.fingerprint()
        self._tolerant = bool(self.options.relative_tolerance or self.options.absolute_tolerance)
        self._cache: dict[tuple[str, str], tuple[bool, str]] = {}
        tolerances = {"relative": self.options.relative_tolerance, "absolute": self.options.absolute_tolerance}
        self._pool = Pool(self.options, "tepo.problems.grader.worker", tolerances)

    def grade(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """A verdict for each (gold, response text), in order. Never raises for what a response holds."""
        verdicts: list[Verdict | None] = [None] * len(pairs)
        undecided: dict[tuple[str, str], list[int]] = {}
        for index, (gold, response) in enumerate(pairs):
            started = time.perf_counter()
            try:
                answer = extract_answer(response, self.options.fallbacks)
            except NoAnswer as missing:
                verdicts[index] = Verdict(False, str(missing), None, time.perf_counter() - started)
                continue
            result = self._cheap(gold, answer)
            if result is None:
                undecided.setdefault((gold, answer), []).append(index)
            else:
                verdicts[index] = Verdict(*result, answer, time.perf_counter() - started)
        requests = [(key, {"gold": option, "answer": key[1]}) for key in undecided for option in gold_answers(key[0])]
        outcomes = self._pool.run([request for _, request in requests]) if requests else []
        best: dict[tuple[str, str], Verdict] = {}
        for (key, _), outcome in zip(requests, outcomes, strict=True):
            verdict = Verdict(outcome.value, outcome.reason, key[1], outcome.seconds)
            # of a gold's alternatives one that is met, then one that was given up, then the others
            best[key] = max(
                best.get(key, verdict), verdict, key=lambda choice: (choice.correct, choice.reason in OUT_OF_BUDGET)
            )
        for key, indices in undecided.items():
            if best[key].reason != "stalled":  # of the machine, not of the answer
                self._remember(key, (best[key].correct, best[key].reason))
            for index in indices:
                verdicts[index] = best[key]
        return [verdict for verdict in verdicts if verdict]

    def _cheap(self, gold: str, answer: str) -> tuple[bool, str] | None:
        """A verdict that takes no sympy: cached, too long, too deep, or decided by the structure. None otherwise."""
        if gold == answer and answer.strip():
            return True, "exact"
        if _INTEGER.fullmatch(gold) and _INTEGER.fullmatch(answer) and not self._tolerant:
            return (True, "exact") if int(gold) == int(answer) else (False, "different")
        if _INTEGER.fullmatch(gold) and _GARBLED.fullmatch(answer):
            return False, "different"
        if len(answer) > self.options.max_chars:  # before the cache: neither text nor verdict is kept
            return False, "too long"
        result = self._cache.get((gold, answer))
        if result is not None:
            return result
        if len(answer) > self.options.max_depth and deepest(answer) > self.options.max_depth:
            result = (False, "too deep")
        else:
            comparer = Comparer(None, self.options.relative_tolerance, self.options.absolute_tolerance)
            undecided = False
            for option in gold_answers(gold):
                try:
                    if comparer.equal(option, answer):
                        result = (True, "exact")
                        break
                except Undecided:
                    undecided = True
                except Exception:  # an answer nobody foresaw must not end a run; tests look for this reason
                    comparer.note = "unreadable"
            if result is None and undecided:
                return None
            result = result or (False, comparer.note)
        return self._remember((gold, answer), result)

    def check_golds(self, golds: Sequence[str], seconds: float = math.inf) -> list[tuple[int, str]]:
        """(index, why) of every gold that cannot be read, so that only the same text would match it; of a gold with
        alternatives where one cannot. seconds: of CPU time after which no gold more is read but plain integers: why is
        NOT_TRIED then. Which ones those are does not depend on their order."""
        indices: dict[str, list[int]] = {}
        for index, gold in enumerate(golds):
            for option in gold_answers(gold):
                indices.setdefault(option, []).append(index)
        reasons: dict[str, str] = {}
        waiting = []
        for option in sorted((option for option in indices if not _INTEGER.fullmatch(option)), key=content_hash):
            why = self._unread(option) if seconds > 0 else NOT_TRIED
            seconds -= _READ
            if why is None:
                waiting.append(option)
            reasons[option] = NOT_TRIED if why is None else why
        while waiting and seconds > 0:
            chunk, waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
            outcomes = self._pool.run([{"check": option} for option in chunk])
            reasons |= {option: "" if of.value else of.reason for option, of in zip(chunk, outcomes, strict=True)}
            seconds -= sum(outcome.seconds for outcome in outcomes)
        reason_by_index = {index: why for option, why in reasons.items() if why for index in indices[option]}
        return sorted(reason_by_index.items())

    def _unread(self, gold: str) -> str | None:
        """Reason why a gold cannot be read, "" for one that can; None where it takes sympy to tell."""
        if len(gold) > self.options.max_chars:
            return "too long"
        if len(gold) > self.options.max_depth and deepest(gold) > self.options.max_depth:
            return "too deep"
        if not canonical(gold):
            return "empty"
        try:
            unread(gold)
            return ""
        except Exception:  # Undecided, or of a gold that nobody foresaw: a worker says why
            return None

    def worker_pids(self) -> list[int]:
        """Process ids of the living workers (for measurements)."""
        return self._pool.pids()

    def _remember(self, key: tuple[str, str], result: tuple[bool, str]) -> tuple[bool, str]:
        if len(self._cache) >= _CACHED:
            self._cache.clear()
        return self._cache.setdefault(key, result)

    def close(self) -> None:
        """Stop the workers; the cache stays."""
        self._pool.close()

    def __enter__(self) -> "Grader":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
