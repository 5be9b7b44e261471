"""A worker process that computes rewards of a user's own: Python files in, a number for each problem and response out.

The files are executed once a worker. What judges is a fork of that, and judges once, so that a reward depends on no
response before it: variables of the module are as after loading, the generators of `random` and numpy are seeded.
Started by the grader's pool (see `pool`), never imported by the parent."""

import contextlib
import inspect
import json
import math
import random
import signal
import sys
import types
from collections.abc import Callable
from numbers import Real
from typing import Any

from tepo.problems.grader.worker import serve
from tepo.problems.problem import Problem

_LOADING = 60.0  # CPU seconds; a large package takes about ten
_LONGEST = 200  # characters of a message


class _Broken(Exception):
    """A mistake in a file, as text that begins with its place."""


def main() -> None:
    """Serve until the parent closes the pipe. Settings: rewards, a list of [file, text, function]."""
    serve(_load, _answer)


def _load(settings: dict[str, Any]) -> list[Callable[[Problem, str], float]]:
    """A function for each reward; one that could not be loaded raises _Broken when it is called."""
    signal.setitimer(signal.ITIMER_PROF, _LOADING)  # a kill, which the parent reports
    modules: dict[tuple[str, str], types.ModuleType | _Broken] = {}
    rewards = []
    for file, text, function in settings["rewards"]:
        if (file, text) not in modules:
            modules[file, text] = _module(file, text, f"tepo_own_reward_{len(modules)}")
        rewards.append(_reward(modules[file, text], file, function))
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


def _reward(module: types.ModuleType | _Broken, file: str, name: str) -> Callable[[Problem, str], float]:
    function: Any = getattr(module, name, None)
    if isinstance(module, _Broken):
        broken = str(module)
    elif not callable(function):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        broken = f"{file}: no function {name!r}" + (f"; there are: {', '.join(functions)}" if functions else "")
    else:
        try:
            with contextlib.suppress(ValueError):  # written in C: it has no signature
                inspect.signature(function).bind(None, None)
            return lambda problem, response: _checked(function(problem, response), _place(function, file))
        except TypeError:
            signature = inspect.signature(function)
            broken = f"{_place(function, file)}: {name}{signature} does not take a problem and a response"

    def unusable(problem: Problem, response: str) -> float:
        raise _Broken(broken)

    unusable.__doc__ = broken
    return unusable


def _place(function: Any, file: str) -> str:
    code = getattr(function, "__code__", None)
    return f"{file}:{code.co_firstlineno}" if code and code.co_filename == file else file


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


def _answer(rewards: list[Callable[[Problem, str], float]], line: bytes) -> tuple[float | None, str]:
    """A number and no reason, or none and why, for a request {"reward", "problem", "response"}. {"check"}: why a
    reward cannot be called at all."""
    request = json.loads(line)
    if "check" in request:
        return None, rewards[request["check"]].__doc__ or ""
    function = rewards[request["reward"]]
    random.seed(0)  # which a fork seeds anew
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    try:
        return function(Problem(**request["problem"]), request["response"]), ""
    except _Broken as broken:
        return None, str(broken)
    except MemoryError:
        return None, "memory"
    except BaseException as error:
        return None, _said(error, request["file"])
