"""Records hold counts of right answers alone, made under revision 7. What procedural benchmarks ask for and what their
policies can write is judged now as it was then, so those counts stand."""

import hashlib
import random
import re

from tepo.common.paths import names
from tepo.policy.warmstart import CHARACTERS
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.grader import Grader, GraderOptions

COUNT = 2500
RIGHT_UNDER_REVISION_7 = (635, "80b9b8944afe5146")


def drawn(golds: list[str]) -> list[tuple[str, str]]:
    """Golds and answers in the characters of the laptop bases: near misses, sums, lists, remarks, noise."""
    draw = random.Random(7)
    pairs = []
    for _ in range(COUNT):
        gold = draw.choice(golds)
        near = str(int(gold) + draw.choice((0, 0, 0, 1, -1, 10)))
        a, b = draw.randint(1, 99), draw.choice("acdgilmnorstux")
        forms = (near, f" {near} ", f"0{near}",
                 f"x={near}", f"{b}={near}", f"{near}={near}", f"{near}/1", f"{near}/{a}",
                 f"{int(near) - a}+{a}", f"{int(near) + a}-{a}", f"{a}*{near}/{a}", f"{near},{a}", f"{near};{a}",
                 f"{near}:1", f"{near}:{a}", f"{near} {a}", f"({near})", f"{near}{b}", f"{b}{near}", f"{near}%{a}",
                 f"{near}%", f"{near} or {a}", f"{near} (or {a})", f"{near} and {a}", f"not {near}", f"{near}+{b}-{b}",
                 f"{near}{b}/{b}", f"x+{b}={near}", f"{near} mod {a}", f"gcd({near},{a})", f"-{near}", f"+{near}",
                 f"{a}:30", "".join(draw.choices(CHARACTERS, k=draw.randint(1, 6))),
                 "".join(draw.choices("0123456789+-*/=,: ", k=draw.randint(1, 8))))  # fmt: skip
        pairs.append((gold, draw.choice(forms)))
    return pairs


def test_golds_are_integers_and_what_a_policy_can_write_is_judged_as_before() -> None:
    """The pairs judged right under revision 7, counted and hashed; they were printed by that revision."""
    told = {"words2", "words3", "otherwords2", "largewords2"}  # to another model, which has all characters
    procedural = [one for one in map(load_benchmark, names("evals")) if one.procedural and one.name not in told]
    golds = [problem.answer for one in procedural for problem in one.load_problems()]
    assert len(procedural) >= 13
    assert all(re.fullmatch(r"[0-9]{1,18}", gold) for gold in golds)
    assert {one.grader for one in procedural} == {GraderOptions()}
    pairs = drawn(golds)
    with Grader(GraderOptions(workers=1, timeout=20)) as grader:
        verdicts = grader.grade([(gold, f"\\boxed{{{answer}}}") for gold, answer in pairs])
    right = [f"{gold} {answer}" for (gold, answer), verdict in zip(pairs, verdicts, strict=True) if verdict.correct]
    assert (len(right), hashlib.sha256("\n".join(right).encode()).hexdigest()[:16]) == RIGHT_UNDER_REVISION_7
