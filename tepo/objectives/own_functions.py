"""Functions of a user's own at work: the Python that a row names under `functions:`, and what it is given.

A file is executed when a number is computed with it for the first time. An exception in it, and a value of another
shape, dtype or device than it declares (`tepo.formula.declarations`), is a UserError with file, line and function."""

import sys
import types
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.common.files import content_hash
from tepo.common.plugin_files import located
from tepo.formula.declarations import SHAPE
from tepo.formula.graph import Function
from tepo.objectives.batch import Collectives, all_sum, gather
from tepo.objectives.scope import Scope

Call = TypeVar("Call", bound=Callable[..., Any])


@dataclass(frozen=True)
class Layout:
    """The places of the values in one call: S responses, of N tokens together, one after the other."""

    _scope: Scope
    _stage: str

    @property
    def dtype(self) -> torch.dtype:
        """That of values of tokens; those of responses, and all of a rollout, are float64."""
        return self._scope.dtype

    @property
    def lengths(self) -> Tensor:
        """Tokens of each response, int64 [S]."""
        return self._scope.lengths

    @property
    def sequence(self) -> Tensor:
        """The response of each token, from 0, int64 [N]."""
        return self._scope.source.sequence

    @property
    def positions(self) -> Tensor:
        """The place of each token in its response, from 0, int64 [N]."""
        return self._scope.source.positions

    @property
    def groups(self) -> Tensor:
        """The group of each response, from 0, int64 [S]. Raises RuntimeError outside of a rollout."""
        if self._stage != "rollout":
            raise RuntimeError("only a function whose name ends with _g or _r sees groups")
        return self._scope.groups(self.lengths)[0]

    def all_sum(self, value: Tensor) -> Tensor:
        """The sum over all ranks. Raises RuntimeError in a micro-batch."""
        return all_sum(value, self._wide())

    def gather(self, values: Tensor) -> Tensor:
        """The values [N] or [S] of all ranks, one after the other. Raises RuntimeError in a micro-batch."""
        return gather(values, self._wide())

    def _wide(self) -> Collectives | None:
        if not self._stage:
            raise RuntimeError("only a function whose name ends with _r or _b looks beyond its micro-batch")
        return self._scope.comm


def function(*, takes: str, gives: str) -> Callable[[Call], Call]:
    """Declare a function that the lines of a formula may call: `tepo.formula.declarations` says how. It stays what it
    is, so that it can be called with a `Layout` by itself."""
    return lambda call: call


def run(made: Function, name: str, layout: Layout, given: list[Any]) -> Tensor:
    """The value that a function gives, checked."""
    where = f"{made.file}:{made.line}"
    with located({made.file: made.text}, SHAPE, f"{name}: "):
        call = _module(made.file, made.text).get(name)
        if not callable(call):
            raise UserError(f"{name} is {call!r} once its file has run", where=where, fix="one `def` of that name")
        value = call(layout, *given)
    if isinstance(value, int | float) and not made.gives:
        value = layout.lengths.new_tensor(value, dtype=torch.float64)
    if wrong := _wrong(value, made.gives, layout, [argument for argument in given if isinstance(argument, Tensor)]):
        per_response = isinstance(value, Tensor) and value.shape == layout.lengths.shape
        fix = "values[layout.sequence] gives each token the number of its response" if per_response else SHAPE
        raise UserError(f"{name} gives {wrong}", where=where, fix=fix)
    return value


@lru_cache(maxsize=256)
def _module(file: str, text: str) -> Mapping[str, Any]:
    module = types.ModuleType(f"tepo_own_functions_{content_hash([file, text])}")
    module.__file__ = file
    sys.modules[module.__name__] = module  # where dataclasses look up the names in their annotations
    exec(compile(text, file, "exec", dont_inherit=True), module.__dict__)  # the user's own program
    return module.__dict__


def executed_anew(files: Mapping[str, str]) -> Callable[[], dict[tuple[str, str], Any]]:
    """Execute files (name -> text) again, and return what tells, by file and name, what they hold: values at the top of
    a file, with what is in them, and below them attributes, defaults and closures. It is there to be compared. Raises
    UserError, with its line, for an exception."""
    _module.cache_clear()
    with located(files, SHAPE):
        modules = {file: _module(file, text) for file, text in files.items()}

    def held() -> dict[tuple[str, str], Any]:
        return {
            (file, name): _plain(value, str(module["__name__"]), ())
            for file, module in modules.items()
            for name, value in module.items()
            if not name.startswith("__")
        }

    return held


def _plain(value: Any, module: str, within: tuple[int, ...]) -> Any:
    """A value as lists of texts. within: the ids of what it stands in, so that a circle ends."""
    inside: list[Any]
    if id(value) in within or isinstance(value, types.ModuleType):
        inside = []
    elif isinstance(value, types.FunctionType | type):
        if value.__module__ != module:
            return value.__qualname__
        inside = [vars(value)]
        if isinstance(value, types.FunctionType):
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            inside += [value.__defaults__, value.__kwdefaults__, cells]
    elif hasattr(value, "tolist"):  # a tensor or an array
        return repr(value.tolist())
    elif isinstance(value, Mapping):
        inside = [part for pair in value.items() for part in pair]
    elif isinstance(value, list | tuple | set | frozenset | deque):
        inside = list(value)
    elif hasattr(value, "__dict__"):
        inside = [vars(value)]
    else:
        return repr(value)
    return [_plain(part, module, (*within, id(value))) for part in inside]


def _wrong(value: Any, gives: str, layout: Layout, arguments: list[Tensor]) -> str:
    """The value that came and the one that is expected, in words; empty where they are alike. Asks for no number, so
    that no device is waited for."""
    device, widest = layout.lengths.device, max(arguments, key=lambda tensor: tensor.dim(), default=layout.lengths)
    shape, dtype, what = {
        "token": (layout.sequence.shape, layout.dtype, ", one per token"),
        "condition": (layout.sequence.shape, torch.bool, ", one per token"),
        "response": (layout.lengths.shape, torch.float64, ", one per response"),
        "": (torch.Size(), torch.float64, ", a single number"),
        "same": (torch.broadcast_shapes(*(tensor.shape for tensor in arguments)), widest.dtype, ", as its arguments"),
    }[gives]
    kind = type(value).__name__
    if isinstance(value, Tensor):
        fits = value.dtype == dtype or (not gives and value.is_floating_point())
        if fits and value.shape == shape and value.device == device:
            return ""
        kind = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)} on {value.device}"
    return f"{kind}; expected: {str(dtype).removeprefix('torch.')} {list(shape)} on {device}{what}"
