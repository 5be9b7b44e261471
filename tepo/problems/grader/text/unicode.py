r"""Unicode mathematics to LaTeX: √2, x², ½, ∞, ≤, 90°, full-width digits
and the rest of what models and people type."""

import re
import unicodedata

from tepo.problems.grader.text.brackets import PARENTHESES, closing

_SYMBOLS = {
    "π": "pi", "θ": "theta", "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "λ": "lambda",
    "μ": "mu", "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "phi", "ϕ": "phi", "ψ": "psi", "ω": "omega",
    "Ω": "Omega", "Δ": "Delta", "Σ": "Sigma", "Π": "Pi", "Γ": "Gamma", "Θ": "Theta",
    "Λ": "Lambda", "Φ": "Phi", "Ψ": "Psi",
    "∞": "infty", "≤": "leq", "⩽": "leq", "≥": "geq", "⩾": "geq", "≠": "neq", "≈": "approx", "≡": "equiv",
    "∈": "in", "∉": "notin", "∪": "cup", "∩": "cap", "∅": "emptyset", "⊂": "subset", "⊆": "subseteq",
    "×": "times", "·": "cdot", "⋅": "cdot", "∙": "cdot", "÷": "div", "±": "pm", "∓": "mp",
    "⌊": "lfloor", "⌋": "rfloor", "⌈": "lceil", "⌉": "rceil", "⟨": "langle", "⟩": "rangle", "∖": "setminus",
    "…": "ldots", "⋯": "cdots", "∑": "sum", "∏": "prod", "∫": "int",
    "∧": "wedge", "∨": "vee", "→": "to", "∣": "mid", "∤": "nmid",
}  # fmt: skip
_PLAIN = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "∶": ":", "⁄": "/", "∕": "/",
    "，": ",", "。": ".", "；": ";", "∗": "*", "’": "'", "′": "'", "“": '"', "”": '"',
    "ℝ": "\\mathbb{R}", "ℤ": "\\mathbb{Z}", "ℕ": "\\mathbb{N}", "ℚ": "\\mathbb{Q}", "ℂ": "\\mathbb{C}",
    "°": "^{\\circ}", "º": "^{\\circ}", "˚": "^{\\circ}", "℃": "^{\\circ}\\text{C}", "℉": "^{\\circ}\\text{F}",
    "‰": "\\text{permille}", "€": "\\text{euro}", "£": "\\text{pound}", "¥": "\\text{yen}", "₹": "\\text{rupee}",
}  # fmt: skip
_TABLE = str.maketrans({**{key: f"\\{name} " for key, name in _SYMBOLS.items()}, **_PLAIN})

_ROOT = re.compile(r"([√∛∜])\s*(?:\(|(\{)|(\d+(?:\.\d+)?|[a-zA-Z]|\\pi))?")
_INDEX = {"√": "", "∛": "[3]", "∜": "[4]"}
_UP = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni")
_DOWN = str.maketrans("₀₁₂₃₄₅₆₇₈₉₊₋", "0123456789+-")
_UP_RUN, _DOWN_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ]+"), re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋]+")
_VULGAR = re.compile("[¼-¾⅐-⅞↉]")


def to_latex(text: str) -> str:
    """LaTeX in ASCII where a spelling exists; other characters are left (compatibility forms folded by NFKC)."""
    if text.isascii():
        return text
    for vulgar in _VULGAR.findall(text):
        above, _, below = unicodedata.normalize("NFKC", vulgar).partition("\u2044")
        text = text.replace(vulgar, f"\\frac{{{above}}}{{{below}}}")
    text = _UP_RUN.sub(lambda run: "^{" + run.group().translate(_UP) + "}", text)
    text = _DOWN_RUN.sub(lambda run: "_{" + run.group().translate(_DOWN) + "}", text)
    text = _roots(text).translate(_TABLE)
    return unicodedata.normalize("NFKC", text).translate(_TABLE)


def _roots(text: str) -> str:
    """√2 -> \\sqrt{2}, √(x+1) -> \\sqrt{x+1}, ∛x -> \\sqrt[3]{x}."""
    while match := _ROOT.search(text):
        command, end = "\\sqrt" + _INDEX[match[1]], match.end()
        if match[3]:
            command += f"{{{match[3]}}}"
        elif match[2]:
            end -= 1
        elif match.group().endswith("("):
            close = closing(text, end - 1, PARENTHESES)
            close = len(text) if close is None else close
            command, end = f"{command}{{{text[end:close]}}}", close + 1
        text = text[: match.start()] + command + text[end:]
    return text
