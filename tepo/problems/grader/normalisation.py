r"""One spelling for answers that are written differently: delimiters, spaces, Unicode, decoration."""

import re

_DROPPED = re.compile(r"\\(?:left|right|displaystyle|textstyle|limits|bigl|bigr|Bigl|Bigr|big|Big)(?![a-zA-Z])|\\[!,;: ]|\\q?quad(?![a-zA-Z])|~|\{\}")
_FRAC = re.compile(r"\\[dtc]frac(?![a-zA-Z])")
_SHORT_FRAC = re.compile(r"\\frac\s*(?:(\d)\s*(\d)(?!\d)|(\d)\s*(\{)|(\{[^{}]*\})\s*(\d))")
_DELIMITERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))


def strip_delimiters(text: str) -> str:
    """Take off dollar signs, `\\( \\)`, `\\[ \\]`, Markdown bold and a final full stop, however nested."""
    while True:
        before = text
        text = text.strip().strip("\u200b\ufeff")
        if text.endswith(".") and not text.endswith(".."):
            text = text[:-1].rstrip()
        for left, right in (*_DELIMITERS, ("**", "**")):
            inner = text[len(left) : -len(right)]
            if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right) and left not in inner and not inner.endswith("\\"):
                text = inner
        if text == before:
            return text


def _spell_fraction(match: re.Match[str]) -> str:
    if match[1]:
        return f"\\frac{{{match[1]}}}{{{match[2]}}}"
    return f"\\frac{{{match[3]}}}{{" if match[3] else f"\\frac{match[5]}{{{match[6]}}}"


def normalise(text: str) -> str:
    """The text without delimiters, decoration and spaces, fractions spelt `\\frac{a}{b}`."""
    text = strip_delimiters(text).replace("{,}", ",").replace("−", "-").replace(",\\!", ",")
    text = _DROPPED.sub("", text)
    if "\\" in text:
        text = _SHORT_FRAC.sub(_spell_fraction, _FRAC.sub(r"\\frac", text))
    return re.sub(r"\s+", "", text)
