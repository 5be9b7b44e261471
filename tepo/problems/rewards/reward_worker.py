"""A worker process that computes rewards of a user's own: Python files in, numbers for a problem and responses out.

The files are executed once a worker. What judges is a fork of that, and judges once, so that a reward depends on no
call before it: variables of the module are as after loading, the generators of `random` and numpy are seeded.
Started by the grader's pool (see `pool`), never imported by the parent.

A function takes `(problem, response)`, or `(problem, responses)` for the responses of a group at once, or TRL's
keywords (`prompts`, `completions`, columns of the data) and then gives a list. It may be `async`: of a group all
responses are then awaited together."""

import asyncio
import inspect
import json
import math
import random
import re
import signal
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from tepo.problems.grader.worker import serve
from tepo.problems.problem import Problem

_LOADING = 60.0  # CPU seconds; a large package takes about ten
_LONGEST = 200  # characters of a message
_TRL = ("prompts", "completions")  # keywords that TRL always gives

Judgement = tuple[float | None, Mapping[str, float], str]
"""Reward, other figures by name, and why there is none."""


class _Broken(Exception):
    """A mistake in a file, as text that begins with its place."""


@dataclass(frozen=True, slots=True)
class _Function:
    """A reward as it is called. broken: why it cannot be. keywords: those of TRL's form that it takes. whole: it takes
    all responses of a group."""

    call: Callable[..., Any]
    file: str
    broken: str = ""
    keywords: tuple[str, ...] = ()
    whole: bool = False

    @property
    def grouped(self) -> bool:
        """Tell whether it is asked once a group."""
        return bool(self.keywords) or self.whole or inspect.iscoroutinefunction(self.call)

    @property
    def place(self) -> str:
        code = getattr(self.call, "__code__", None)
        return f"{self.file}:{code.co_firstlineno}" if code and code.co_filename == self.file else self.file

    def judge(self, problem: Problem, responses: Sequence[str]) -> list[Judgement]:
        """A judgement of each response. Raises what the function raises for all of them."""
        if self.broken:
            raise _Broken(self.broken)
        if not self.keywords and not self.whole:
            if inspect.iscoroutinefunction(self.call):
                values = asyncio.run(self._awaited(problem, responses))
            else:
                values = [self.call(problem, text) for text in responses]
        else:
            values = self._of_group(problem, responses)
        return [self._judgement(value) for value in values]

    async def _awaited(self, problem: Problem, responses: Sequence[str]) -> list[Any]:
        return await asyncio.gather(*(self.call(problem, text) for text in responses), return_exceptions=True)

    def _of_group(self, problem: Problem, responses: Sequence[str]) -> list[Any]:
        if self.keywords:
            row = {"answer": problem.answer, **problem.columns}
            known = {key: [value] * len(responses) for key, value in row.items()}
            known |= {"prompts": [problem.prompt] * len(responses), "completions": list(responses)}
            value = self.call(**{key: known[key] for key in self.keywords})
        else:
            value = self.call(problem, list(responses))
        if inspect.isawaitable(value):
            value = asyncio.run(_result(value))
        try:
            values = list(value)
        except TypeError:
            raise _Broken(f"{self.place}: returned {type(value).__name__}, not a list of numbers") from None
        if len(values) != len(responses):
            raise _Broken(f"{self.place}: returned {len(values)} values for {len(responses)} responses")
        return values

    def _judgement(self, value: Any) -> Judgement:
        """A number, or a mapping that has it as `reward` beside other numbers."""
        if isinstance(value, BaseException):
            return None, {}, _said(value, self.file)
        figures: dict[str, float] = {}
        if isinstance(value, Mapping):
            if "reward" not in value:
                return None, {}, f"{self.place}: returned a mapping without the key reward"
            for name, figure in value.items():
                if name != "reward":
                    if not re.fullmatch(r"\w+", str(name)) or name == "mean":
                        return None, {}, f"{self.place}: returned {name!r} as a name, which no metric can have"
                    if not isinstance(figure, Real) or not math.isfinite(figure):
                        return None, {}, f"{self.place}: returned {figure!r} as {name}, which is no finite number"
                    figures[str(name)] = float(figure)
            value = value["reward"]
        try:
            return _checked(value, self.place), figures, ""
        except _Broken as broken:
            return None, figures, str(broken)


async def _result(value: Any) -> Any:
    return await value


def main() -> None:
    """Serve until the parent closes the pipe. Settings: rewards, a list of [file, text, function], and columns."""
    serve(_load, _answer)


def _load(settings: dict[str, Any]) -> list[_Function]:
    """A function for each reward."""
    signal.setitimer(signal.ITIMER_PROF, _LOADING)  # a kill, which the parent reports
    modules: dict[tuple[str, str], types.ModuleType | _Broken] = {}
    rewards = []
    for file, text, function in settings["rewards"]:
        if (file, text) not in modules:
            modules[file, text] = _module(file, text, f"tepo_own_reward_{len(modules)}")
        rewards.append(_reward(modules[file, text], file, function, settings["columns"]))
    signal.setitimer(signal.ITIMER_PROF, 0)
    return rewards


def _module(file: str, text: str, name: str) -> types.ModuleType | _Broken:
    module = types.ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module  # where dataclasses look up the names in their annotations
    try:
        exec(compile(text, file, "exec"), module.__dict__)  # the user's own program
    except BaseException as error:
        return _Broken(_said(error, file))
    return module


def _reward(module: types.ModuleType | _Broken, file: str, name: str, columns: Sequence[str]) -> _Function:
    call: Any = getattr(module, name, None)
    if isinstance(module, _Broken):
        return _Function(call, file, str(module))
    if not callable(call):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        return _Function(
            call, file, f"{file}: no function {name!r}" + (f"; there are: {', '.join(functions)}" if functions else "")
        )
    function = _Function(call, file)
    try:
        signature = inspect.signature(call)
    except ValueError:  # written in C: it has none
        return function
    parameters = list(signature.parameters.values())
    if "completions" in signature.parameters:
        known = dict.fromkeys([*_TRL, "answer", *columns])
        needed = [
            parameter.name
            for parameter in parameters
            if parameter.default is parameter.empty
            and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        ]
        if unknown := [key for key in needed if key not in known]:
            what = f"{function.place}: {name}{signature} takes {', '.join(unknown)}, which data.columns does not name"
            return _Function(call, file, what)
        every = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        return _Function(call, file, keywords=tuple(key for key in known if every or key in signature.parameters))
    try:
        signature.bind(None, None)
    except TypeError:
        what = f"{function.place}: {name}{signature} does not take a problem and a response"
        return _Function(call, file, what)
    return _Function(call, file, whole=len(parameters) > 1 and parameters[1].name == "responses")


def _checked(value: Any, place: str) -> float:
    """The value as a number in [0, 1]."""
    truth = isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")  # numpy's is no number
    if not truth and not isinstance(value, Real):
        raise _Broken(f"{place}: returned {type(value).__name__}, not a number or a bool")
    number = float(value)
    if not 0 <= number <= 1:
        what = "NaN" if math.isnan(number) else f"{number:g}, which is outside [0, 1]"
        raise _Broken(f"{place}: returned {what}")
    return number


def _said(error: BaseException, file: str) -> str:
    """`FILE:LINE: ValueError: what it says`, of the innermost line in the file."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return f"{file}:{error.lineno}: not valid Python: {error.msg}"
    line, trace = 0, error.__traceback__
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == file else line
        trace = trace.tb_next
    return f"{file}:{line}: {type(error).__name__}: {error}"[: len(file) + _LONGEST]


def _answer(rewards: list[_Function], line: bytes) -> tuple[Any, str]:
    """Judgements and no reason, or none and why, for a request {"reward", "problem", "responses"}. {"check"}: whether a
    reward is asked once a group, and why it cannot be called at all."""
    request = json.loads(line)
    if "check" in request:
        function = rewards[request["check"]]
        return function.grouped, function.broken
    function = rewards[request["reward"]]
    random.seed(0)  # which a fork seeds anew
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    try:
        return function.judge(Problem(**request["problem"]), request["responses"]), ""
    except _Broken as broken:
        return None, str(broken)
    except MemoryError:
        return None, "memory"
    except BaseException as error:
        return None, _said(error, function.file)
