# ruff: noqa: E501
"""Answers made to hang, crash or fool the grader, ordinary answers beside them, and random ones from hypothesis."""

import contextlib
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tepo.problems.grader import Grader, GraderOptions
from tepo.problems.grader.options import FALLBACKS
from tepo.problems.grader.text.extraction import NoAnswer, extract_answer

T = TypeVar("T")
LIMIT = 1.0
MEMORY_MB = 700

TOWERS = [
    r"9^{9^{9^9}}", r"9^{9^9}", r"10^{10^{10}}", r"(9^9)^{9^9}", r"2^{2^{2^{2^{2^{2}}}}}", r"e^{e^{e^{e^{e}}}}", r"9^{9^{9^9}}-9^{9^{9^9}}", r"\sqrt{9^{9^9}}",
    r"(10^{9})!", r"(((9!)!)!)!", r"9!!!!!!!!", r"\binom{10^9}{10^8}", r"\binom{10^{20}}{10^{19}}", r"10^{-10^{10}}", r"1e999999999", r"1e-999999999", r"5E+88888888",
    r"\frac{1}{9^{9^{9}}}", r"x^{9^{9^9}}", r"(x+1)^{100000}", r"(x+y+z)^{5000}", r"(a+b+c+d+e)^{300}", r"\prod_{k=1}^{100000} k", r"F_{10^{100}}", r"10^{100000000}",
    r"7^{7^{7}} \mod 1000", r"\gcd(10^{10^{9}}, 7)", r"2^{1000000000} - 1", r"3^{3^{3^3}} + \pi", r"0.1^{10^{10}}", r"1.0000001^{10^{12}}",
]  # fmt: skip
ENDLESS = [
    r"\sum_{k=1}^{\infty} \frac{\sin(k^3)}{k^k}", r"\sum_{n=1}^{10^{9}} \frac{1}{n}", r"\sum_{k=1}^{\infty} \frac{1}{k^5+k+1}", r"\int_0^\infty \frac{\sin(x^x)}{\ln(x)+e^x} dx",
    r"\int_0^1 \int_0^1 \int_0^1 \sin(xyz)^{xyz} dx dy dz", r"\lim_{x \to 0} \frac{\sin(\tan(x)) - \tan(\sin(x))}{x^7}", r"\lim_{n\to\infty} (1+1/n)^{n^2}",
    r"\int \sqrt{\tan x + \sqrt{\sin x}} dx", r"\prod_{p=2}^{\infty} \frac{1}{1-p^{-2}}", r"\sum_{i=1}^{1000}\sum_{j=1}^{1000}\sum_{k=1}^{1000} \frac{ijk}{i+j+k}",
    r"\int_{-\infty}^{\infty} e^{-x^4+\cos(x)} dx", r"\frac{d^{50}}{dx^{50}} \tan(x)^{20}", r"x^5+x+1=0", r"\sin(x)+x^x=e^{x}", r"x^{x^x} = 2", r"\Gamma(\Gamma(\Gamma(10)))",
    r"\zeta(\frac12 + 10^{10} i)", r"\cos(\cos(\cos(\cos(\cos(\cos(x))))))=x", r"|x|^{|x|^{|x|}} < 3", r"x^7-x^5+\sin x < 1", r"\lfloor 10^{50} \pi \rfloor", r"\sin(10^{10000})",
    r"\begin{pmatrix} a&b&c\\d&e&f\\g&h&i\end{pmatrix}^{50}", r"\begin{vmatrix} a&b&c&d\\e&f&g&h\\i&j&k&l\\m&n&o&p \end{vmatrix}", r"\sqrt{2+\sqrt{2+\sqrt{2+\sqrt{2+\sqrt{2+\sqrt{2+\sqrt{2}}}}}}}",
]  # fmt: skip
CODE = [
    r"__import__('os').system('sleep 30')", r"().__class__.__bases__[0].__subclasses__()", r"exec('while True: pass')", r"open('/etc/passwd').read()", r"lambda: (yield)",
    r"eval(compile('1/0','','exec'))", r"{{7*7}}", r"${jndi:ldap://x}", r"'; DROP TABLE answers; --", r"\input{/etc/passwd}", r"\write18{sleep 30}", r"\def\x{\x\x}\x", r"%s%s%s%n", r"{0.__class__}",
]  # fmt: skip
BYTES = [
    "\x00", "5\x00", "\x00" * 500, "\ud800", "1\udfff2", "\ud83d\ude00", "é́́́" * 100, "‮5", "\u200b" * 300 + "5", "٣", "５", "﷽" * 50, "𝟓", "½" * 100, "√" * 500, "√(" * 300, "²" * 500, "\x0c" * 400,
    "\r\n\t" * 200, "\x1b[31m5", "\\" * 999, "\\" * 1000, "$" * 1000, "`" * 500, "\\u0000", "\N{BYTE ORDER MARK}5", "a\u0301" * 300, "\\$" * 400, "%" * 900, "&" * 500, "~" * 1000, "^" * 500, "_" * 500, "^{_{" * 100,
]  # fmt: skip
SHAPES = [
    "{" * 10_000 + "}" * 10_000, "(" * 39 + "x" + ")" * 39, "[" * 1000, ")" * 1000, r"\frac{" * 35 + "1" + "}{2}" * 35, r"\sqrt{" * 39 + "2" + "}" * 39, r"\frac12" * 250, r"\left(" * 200, "-" * 1900 + "1", "+" * 1000,
    "1+" * 900 + "1", "x*" * 800 + "x", "1," * 900 + "2", "(1,2)," * 300, "a<" * 500 + "b", "x=" * 600 + "5", r"x\neq " * 200, "1:" * 500 + "2", r"\pm " * 300 + "1", r"1\pm2\pm3\pm4\pm5\pm6\pm7\pm8\pm9", "1/" * 900 + "2", "2^" * 900 + "2",
    "!" * 500, "5" + "!" * 300, "9" * 1999, "0." + "3" * 1900, "1" + "0" * 1900, "1e" + "9" * 100, r"\overline{" * 30 + "3" + "}" * 30, r"0.\overline{" + "123" * 300 + "}", r"\ldots," * 200, "1,2," + r"\ldots," * 100 + "9",
    r"\begin{pmatrix}" + "&".join(["1"] * 500) + r"\end{pmatrix}", r"\begin{pmatrix}" + r"1&2\\" * 240 + r"\end{pmatrix}", r"\begin{pmatrix}" * 50, r"\begin{array}" * 80, r"\text{" * 30 + "a" + "}" * 30, r"\text{a}" * 250,
    r"\cup " * 300, "(1,2)" + r"\cup(1,2)" * 150, r"x\in" * 300, r"\mid " * 300, "|" * 1000, "|x" * 400, r"\log" * 400, r"\log_" * 300, r"\sum" * 300, r"\int" * 300, r"\binom" * 200, r"_{" * 35 + "1" + "}" * 35, "x_1" * 500,
    "abcdefghijklmnopqrstuvwxyz" * 70, "and " * 400, " or ".join(["x"] * 300), "word " * 390, r"\unknowncommand" * 100, r"\boxed{" * 30 + "5" + "}" * 30, "5 " + "cm^2 " * 300, "5" + "%" * 500, r"^\circ" * 300, "1 2 3 " * 300, "0x" + "f" * 500,
]  # fmt: skip
HOSTILE = [f"\\boxed{{{text}}}" for text in TOWERS + ENDLESS + CODE + BYTES + SHAPES] + [
    "\\boxed{" * 100_000, "\\boxed{1}" * 50_000, "\\boxed{1}," * 50_000 + "\\boxed{1}", "x" * 10_000_000, "\\boxed{" + "1" * 10_000_000 + "}", "{" * 5_000_000, "\\" * 3_000_000, "\\boxed{\\boxed{" + "5" + "}" * 1_000_000, "$" * 2_000_000 + "answer is " * 100,
]  # fmt: skip
GOLDS = [
    "17",
    r"\frac{1}{2}",
    r"x^2+1",
    r"(1,2)",
    r"\sqrt{2}",
    r"x=17",
    r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
    r"(-\infty,3)\cup(5,\infty)",
    "1,2,3",
    r"90^\circ",
    r"\text{east}",
    r"x^5+x=3",
]


def _memory_of_workers(grader: Grader) -> int:
    """Peak resident memory in MiB over the pool's living workers."""
    peak = 0
    for pid in grader.worker_pids():
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                peak = max(peak, int(line.split()[1]) // 1024)
    return peak


@pytest.mark.slow
def test_hostile_answers_get_a_verdict_and_a_thousand_ordinary_ones_are_unharmed() -> None:
    """Every verdict within twice the limit of CPU time (half of it at first, all of it alone), memory bounded, no crash of the grader, the ordinary answers all judged right."""
    assert len(HOSTILE) >= 170
    ordinary = [(str(index), f"so \\boxed{{{index + index % 2}}}", index % 2 == 0) for index in range(900)]
    ordinary += [(f"x^2+{index}", f"\\boxed{{{index + index % 2}+x\\cdot x}}", index % 2 == 0) for index in range(100)]
    hostile = [(GOLDS[index % len(GOLDS)], response) for index, response in enumerate(HOSTILE)]
    step = len(ordinary) // len(hostile) + 1
    pairs: list[tuple[str, str]] = []
    for index, pair in enumerate(hostile):
        pairs += [pair, *((gold, response) for gold, response, _ in ordinary[index * step : (index + 1) * step])]
    with Grader(GraderOptions(timeout=LIMIT, workers=2, memory_mb=MEMORY_MB)) as grader:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        verdicts = dict(zip(pairs, grader.grade(pairs), strict=True))
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 400
        assert _memory_of_workers(grader) < MEMORY_MB
        late = [(pair, verdict.seconds) for pair, verdict in verdicts.items() if verdict.seconds > 2 * LIMIT]
        assert not late
        fooled = [(gold, response[:60]) for gold, response in hostile if verdicts[gold, response].correct]
        assert fooled == []
        harmed = [
            (gold, response, verdicts[gold, response].reason)
            for gold, response, expected in ordinary
            if verdicts[gold, response].correct != expected
        ]
        assert harmed == []


def quickly(work: Callable[[], T], response: str) -> T:
    """What runs in the caller's process has no clock over it, so it must be quick by itself."""
    started = time.process_time()
    try:
        return work()
    finally:
        assert time.process_time() - started < 2.0, response[:80]


def extracted(response: str) -> str | None:
    with contextlib.suppress(NoAnswer):
        return extract_answer(response, FALLBACKS)
    return None


@pytest.mark.slow
def test_extraction_and_the_cheap_comparison_are_quick_on_hostile_text() -> None:
    grader = Grader()
    for response in HOSTILE:
        answer = quickly(lambda response=response: extracted(response), response)
        for gold in GOLDS if answer is not None else ():
            found = quickly(lambda gold=gold, answer=answer: grader._cheap(gold, answer), response)
            assert found is None or found[1] != "unreadable", response[:80]


_SIGNS = r"0123456789xyzabi+-*/^_=<>(){}[]|,.;:!%$&~ \ '"
_COMMANDS = (
    r"\frac \sqrt \boxed \text \pm \cup \in \neq \leq \infty \pi \ldots \cdot \times \left( \right) \{ \} \\ \begin{pmatrix} \end{pmatrix} "
    r"\overline \binom \log \sin ^\circ \% \$ \mathrm and or cm √ ² ½ ∞ °"
)
LATEX = st.lists(st.sampled_from([*_SIGNS, *_COMMANDS.split()]), max_size=40).map("".join)
ANY = st.text(alphabet=st.characters(blacklist_categories=()), max_size=120)


@pytest.mark.slow
@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)
@given(gold=LATEX | ANY, answer=LATEX | ANY)
def test_any_text_gets_a_verdict(gold: str, answer: str, fuzzed: Grader) -> None:
    first, second = fuzzed.grade([(gold, f"\\boxed{{{answer}}}"), (gold, answer)])
    assert isinstance(first.correct, bool)
    assert isinstance(second.correct, bool)
    assert max(first.seconds, second.seconds) <= 2 * LIMIT
    assert {first.reason, second.reason}.isdisjoint({"crash", "error"})


@pytest.fixture(scope="module")
def fuzzed():  # type: ignore[no-untyped-def]
    with Grader(GraderOptions(timeout=LIMIT, workers=1, memory_mb=MEMORY_MB)) as grader:
        yield grader
