"""Formulas as `tepo explain` prints them, read back as numbers: one value a response token.

Side by side means times, `|x|` is a size; `sum_s`, `sum_t` and `mean_s` go over the response, `sum_(u>=t)` over the
rest of it. A symbol that has no given value is looked up in the definitions (`x = 2 where A > 0, 1 elsewhere`)."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

Cases = list[tuple[str, str]]  # condition ("" elsewhere) and formula
_NAME = r"log pi_old,t|log pi_t|pi_old,t|sum_\([us]<?>?=t\)|[A-Za-z][\w']*"
_TOKEN = re.compile(rf"\s*({_NAME}|\d+\.?\d*(?:e[+-]?\d+)?|\*\*|[<>=!]=|[-+*/^(),|<>=]|\[|\])")
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "sign": torch.sign,
    "abs": torch.abs,
    "min": torch.minimum,
    "max": torch.maximum,
    "clip": torch.clamp,
    "sg": torch.detach,
}
_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "<": torch.lt,
    ">": torch.gt,
    "<=": torch.le,
    ">=": torch.ge,
    "=": torch.eq,
}


class UnreadableError(Exception):
    """A formula with words in it, or with a symbol that nothing defines."""


class Reader:
    """values: symbol -> [N]; sequence: int64 [N], the response of each token; definitions: lines of an explanation."""

    def __init__(self, values: Mapping[str, Tensor], sequence: Tensor, definitions: Iterable[str]):
        self._given, self._lines, self._values, self._sequence = values, tuple(definitions), dict(values), sequence
        self._defined: dict[str, Cases] = {}
        for line in self._lines:
            self._define(line)

    def instead(self, **values: Tensor) -> "Reader":
        """The same with other values of these symbols."""
        return Reader({**self._given, **values}, self._sequence, self._lines)

    def number(self, text: str) -> Tensor:
        """The formula's value at each token [N]; `x A, x = exp(d_t)` says what its symbol is itself.
        Raises UnreadableError."""
        head, *own = re.split(r", (?=[\w']+ = )", text)
        for line in own:
            self._define(line)
        found = _Parser(head, self).all()
        return found if found.shape else found.expand(self._sequence.shape)

    def symbol(self, name: str) -> Tensor:
        """A symbol's value; with the index of a sum (s, u) it is that of the token."""
        bare = re.sub(r"_[suk]$", "", name)
        for known in (name, f"{bare}_t", bare):
            if known in self._values:
                return self._values[known]
        for known in (name, f"{bare}_t", bare):
            if known in self._defined:
                found: Tensor | None = None
                for condition, formula in reversed(self._defined.pop(known)):
                    value = _Parser(formula, self).all()
                    if found is not None and condition:
                        parts = [_Parser(part, self).comparison() for part in condition.strip("()").split(" and ")]
                        held = torch.stack([part.expand(self._sequence.shape) for part in parts]).all(0)
                        value = torch.where(held, value, found)
                    found = value
                assert found is not None
                self._values[known] = found
                return found
        raise UnreadableError(f"{name!r} is not defined by a formula")

    def over_response(self, values: Tensor, mean: bool) -> Tensor:
        """The sum, or the mean, of each response on its tokens."""
        values = values.expand(self._sequence.shape)
        number = int(self._sequence.max()) + 1
        total = values.new_zeros(number).index_add(0, self._sequence, values)
        count = values.new_zeros(number).index_add(0, self._sequence, torch.ones_like(values))
        return (total / count.clamp(min=1) if mean else total)[self._sequence]

    def onwards(self, values: Tensor, up_to: bool) -> Tensor:
        """The sum over the tokens u >= t of the response, or (up_to) over s <= t."""
        values = values.expand(self._sequence.shape)
        running = torch.empty_like(values)
        for one in self._sequence.unique().tolist():
            own = self._sequence == one
            running[own] = values[own].cumsum(0) if up_to else values[own].flip(0).cumsum(0).flip(0)
        return running

    def _define(self, line: str) -> None:
        for statement in line.split("; "):
            one = re.fullmatch(r"([\w']+) = (.+?) where (.+?), (?:else (.+)|(.+) elsewhere)", statement)
            if one:
                self._defined[one[1]] = [(one[3], one[2]), ("", one[4] or one[5])]
                continue
            body, _, condition = statement.removesuffix(" elsewhere").partition(" where ")
            for part in re.split(r", (?=[\w']+ = )", body):
                name, _, formula = part.partition(" = ")
                if formula and re.fullmatch(r"[\w']+", name):
                    self._defined.setdefault(name, []).append((condition, formula))


class _Parser:
    """Recursive descent over the tokens of one formula."""

    def __init__(self, text: str, reader: Reader):
        self._reader, self._text, self._tokens, place = reader, text, [], 0
        while text[place:].strip():
            found = _TOKEN.match(text, place)
            if not found:
                raise UnreadableError(f"{text!r} is no formula")
            self._tokens.append(found[1])
            place = found.end()
        self._tokens.append("")

    def all(self) -> Tensor:
        value = self._sum()
        self._take("")
        return value

    def comparison(self) -> Tensor:
        left = self._sum()
        sign = self._tokens.pop(0)
        if sign not in _COMPARED:
            raise UnreadableError(f"{self._text!r} is no condition")
        right = self._sum()
        self._take("")
        held: Tensor = _COMPARED[sign](left, right)
        return held

    def _take(self, token: str) -> None:
        if self._tokens.pop(0) != token:
            raise UnreadableError(f"{self._text!r} is no formula")

    def _sum(self) -> Tensor:
        sign = self._tokens.pop(0) if self._tokens[0] in ("+", "-") else "+"
        value = self._product()
        value = -value if sign == "-" else value
        while self._tokens[0] in ("+", "-"):
            sign = self._tokens.pop(0)
            term = self._product()
            value = value + term if sign == "+" else value - term
        return value

    def _product(self) -> Tensor:
        value = self._power()
        while (token := self._tokens[0]) in ("*", "/", "(") or token[:1].isalnum() or token == "|":
            if token == "|" and self._tokens.count("|") % 2:  # an even number left, this one among them: it opens
                break
            if token in ("*", "/"):
                self._tokens.pop(0)
            factor = self._power()
            value = value / factor if token == "/" else value * factor
        return value

    def _power(self) -> Tensor:
        value = self._atom()
        if self._tokens[0] in ("^", "**"):
            self._tokens.pop(0)
            value = value ** (-self._atom() if self._tokens[0] == "-" and self._tokens.pop(0) else self._atom())
        return value

    def _atom(self) -> Tensor:
        token = self._tokens.pop(0)
        if token in ("(", "|"):
            value = self._sum()
            self._take(")" if token == "(" else "|")
            return value.abs() if token == "|" else value
        if token[:1].isdigit():
            return torch.tensor(float(token), dtype=torch.float64)
        if token in ("sum_s", "sum_t"):
            return self._reader.over_response(self._product(), mean=False)
        if token.startswith("sum_("):
            return self._reader.onwards(self._product(), up_to="<" in token)
        if self._tokens[0] in ("(", "[") and (token in _FUNCTIONS or token == "mean_s"):
            return self._call(token)
        if not token[:1].isalpha():
            raise UnreadableError(f"{self._text!r} is no formula")
        return self._reader.symbol(token)

    def _call(self, name: str) -> Tensor:
        close = {"(": ")", "[": "]"}[self._tokens.pop(0)]
        values = [self._sum()]
        while self._tokens[0] == ",":
            self._tokens.pop(0)
            values.append(self._sum())
        self._take(close)
        if name == "mean_s":
            return self._reader.over_response(values[0], mean=True)
        try:
            result: Tensor = _FUNCTIONS[name](*values)
        except TypeError:
            raise UnreadableError(f"{name} has other arguments in {self._text!r}") from None
        return result
