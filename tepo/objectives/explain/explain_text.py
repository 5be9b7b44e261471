"""An explanation as terminal text and as LaTeX."""

import re
from functools import partial
from textwrap import wrap

from tepo.objectives.explain.explain import Explanation

_wrap = partial(wrap, break_long_words=False, break_on_hyphens=False)


def to_text(explanation: Explanation, width: int = 110) -> str:
    """Plain text of at most `width` columns where words allow."""
    title = f"{explanation.name}: {explanation.title}" if explanation.title else explanation.name
    lines = [*_wrap(title, width), ""]
    if explanation.departure:
        lines += ["Departs from its paper", *_block(explanation.departure, width), ""]
    lines += ["To maximise", *_block(explanation.formula.text, width), ""]
    lines += ["where", *(part for line in explanation.definitions for part in _block(line.text, width)), ""]
    lines += ["Coefficient of ∇log π_t in J, before the weights of the sums"]
    lines += [
        *_block(explanation.coefficient.text, width),
        *_block(f"zero when {explanation.coefficient.zero}", width),
        "",
    ]
    lines += ["Detached", *_block("; ".join(explanation.detached), width), ""]
    lines += ["Constants", *_constants(explanation, width), ""]
    lines += [
        "The trainer must compute",
        *_block(", ".join(explanation.needs) or "log-probs and old log-probs alone", width),
        "",
    ]
    return "\n".join(lines + _differences(explanation, width))


def to_latex(explanation: Explanation) -> str:
    """An `align*` environment (needs amsmath and amssymb)."""
    lines = [explanation.formula.latex, *(line.latex for line in explanation.definitions)]
    body = " \\\\\n".join("  & " + line for line in lines)
    return f"% {explanation.name}: {explanation.title}\n\\begin{{align*}}\n{body}\n\\end{{align*}}\n"


SYMBOLS = {
    r"\bsum_": "Σ_",
    r"\bpi(?=\b|_)": "π",
    r"\blambda_": "λ_",
    r"\bOmega(?=\b|_)": "Ω",
    r"\btau\b": "τ",
    r"\brho_": "ρ_",
    r"\bgrad ": "∇",
    r"\bdH\b": "ΔH",
    r"\beps\b": "ε",
    r"\+-": "±",
}


def _symbols(text: str) -> str:
    """Words for Greek letters as the letters."""
    for word, letter in SYMBOLS.items():
        text = re.sub(word, letter, text)
    return text


def _block(text: str, width: int) -> list[str]:
    return _wrap(_symbols(text), width, initial_indent="  ", subsequent_indent="      ")


def _constants(explanation: Explanation, width: int) -> list[str]:
    rows = [(part.key, part.value, part.source or "a choice, see docs/paper.md") for part in explanation.constants]
    if not rows:
        return ["  none"]
    first, second = max(len(row[0]) for row in rows), min(max(len(row[1]) for row in rows), 36)
    result = []
    for key, value, source in rows:
        head = f"  {key:{first}}  {value:{second}}  "
        result += _wrap(head + source, width, subsequent_indent=" " * min(len(head), width // 2))
    return result


def _differences(explanation: Explanation, width: int) -> list[str]:
    if not explanation.differences:
        return [f"No difference from {explanation.other}."]
    other = f"{explanation.other} as shipped" if explanation.other == explanation.name else explanation.other
    rows = [("", explanation.name, other), *explanation.differences]
    first, second, third = (max(len(row[index]) for row in rows) for index in range(3))
    result = [f"Differs from {other}"]
    if first + second + third + 6 <= width:
        result += [f"  {key:{first}}  {this:{second}}  {that}" for key, this, that in rows]
    else:
        names = max(len(explanation.name), len(other))
        for key, this, that in rows[1:]:
            result += [f"  {key}", f"      {explanation.name:{names}}  {this}", f"      {other:{names}}  {that}"]
    if explanation.coefficient != explanation.other_coefficient:
        result += _block(
            f"coefficient there: {explanation.other_coefficient.text}; zero when {explanation.other_coefficient.zero}",
            width,
        )
    return result
