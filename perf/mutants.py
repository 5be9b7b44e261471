"""Random mutants of a part, each against the tests that enter its function: python -m perf.house mutants PART.

A mutant is one change of a comparison, a calculation, and/or/not, a number, a bool, a return value, min/max and the
like, or a statement left out. Text, type hints, decorators, messages, `__repr__` and what is raised stay. The tests are
the files of tests/unit/PART and tests/invariants without slow tests and engines. A look without mutants finds which
functions each file enters, in any process, and its CPU seconds. A mutant meets the files that enter its function: those
that know most of its module per second come first, and `SECONDS` is the end. It is caught when a test fails, dies or
takes far longer than it did. One process imports what is heavy and forks for each mutant.
"""

import ast
import contextlib
import inspect
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FIRST = 3  # files that a mutant meets alone: most of what is caught is caught there, and collecting takes time
SECONDS = 90.0  # of tests for one mutant, as the look measured them
LEFT_OUT = "not slow and not vllm and not deepspeed and not verl and not lm_eval and not bitsandbytes and not gpu"
HEAVY = ("torch", "pandas", "scipy.stats", "sympy", "hydra", "pyarrow.parquet", "pytest", "peft")
HEAVY += ("transformers.models.qwen2.modeling_qwen2", "transformers.generation")
_OPERATORS = "Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, Add Sub, Mult Div, And Or, BitAnd BitOr"
_CALLS = "min max, minimum maximum, amin amax, argmin argmax, any all, floor ceil, mean sum, exp log"


def both_ways(pairs: str) -> dict[str, str]:
    """Each name of a pair to the other."""
    return {one: other for pair in pairs.split(", ") for one, other in (pair.split(), pair.split()[::-1])}


OPERATORS = {getattr(ast, one): getattr(ast, other) for one, other in both_ways(_OPERATORS).items()}
OPERATORS |= {ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.MatMult: ast.Mult}
CALLS = both_ways(_CALLS)
DROPPED = {"detach", "clamp", "abs", "round", "sqrt", "square"}  # x.detach() becomes x
SAID = {"print", "warn", "warning", "info", "debug"}  # and whatever ends in Error or Warning
TYPES = {"annotation", "returns", "decorator_list", "exc", "cause", "msg"}  # fields where nothing changes
Look = tuple[bool, float, list[tuple[str, ...]]]  # passes; CPU seconds; (file, function) of what it enters


@dataclass(frozen=True)
class Mutant:
    """One change: `new` in place of the bytes from `start` to `end`; `owner` is the function or class it is in."""

    file: str
    line: int
    start: int
    end: int
    old: str
    new: str
    owner: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.owner}: {self.old} -> {self.new}"

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]


def but(node: Any, **fields: object) -> Any:
    """Copy of a node with other fields."""
    return type(node)(**{**vars(node), **fields})


def stays(node: object) -> bool:
    """True of text, of a call that shows or makes a message, and of a representation."""
    called = node.func if isinstance(node, ast.Call) else None
    name = getattr(called, "id", getattr(called, "attr", getattr(node, "name", None))) or ""
    said = name in SAID or name.endswith(("Error", "Warning"))
    return isinstance(node, ast.JoinedStr) or (called is not None and said) or name in ("__repr__", "__str__")


def changes(node: ast.AST) -> Iterator[tuple[Any, Any]]:
    """Pairs of what goes and what stands in its place."""
    match node:
        case ast.Compare(ops=ops):
            for at, op in enumerate(ops):
                yield node, but(node, ops=[*ops[:at], OPERATORS[type(op)](), *ops[at + 1 :]])
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op) if type(op) in OPERATORS:
            sides = [getattr(node, side, None) for side in ("left", "right", "value")]
            if not any(stays(side) or isinstance(getattr(side, "value", 0), str) for side in sides):
                yield node, but(node, op=OPERATORS[type(op)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield node, operand
        case ast.Constant(value=bool(value)):
            yield node, ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield node, ast.Constant(value + 1)
            yield node, ast.Constant(value - 1 if isinstance(value, int) else value / 2)
        case ast.Call(func=ast.Name(id=name)) if name in CALLS and name != "sum":  # Python has no mean
            yield node, but(node, func=ast.Name(CALLS[name]))
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in CALLS or name in DROPPED:
            yield node, value if name in DROPPED else but(node, func=ast.Attribute(value, CALLS[name]))
        case ast.Return(value=value) if value and not isinstance(value, ast.Constant):
            yield value, ast.Constant(None)
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if not isinstance(test, ast.UnaryOp | ast.Compare):  # these have changes of their own
                yield test, ast.UnaryOp(ast.Not(), test)
        case ast.Break() | ast.Continue():
            yield node, ast.Continue() if isinstance(node, ast.Break) else ast.Break()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign() | ast.Raise() | ast.Assert():
            yield node, ast.Pass()
        case ast.Expr(value=ast.Call() as call) if not stays(call):
            yield node, ast.Pass()


def walk(node: ast.AST, owner: str = "<module>") -> Iterator[tuple[ast.AST, str]]:
    """Every node that may change, with the qualified name of the code that it runs in."""
    yield node, owner
    inner = owner
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        inner = node.name if owner == "<module>" else f"{owner}.{node.name}"
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and field not in TYPES and not stays(child):
                yield from walk(child, inner if field == "body" else owner)


def mutants_of(file: str, source: bytes) -> list[Mutant]:
    """All mutants of a module."""
    begins = [0, *(at + 1 for at, byte in enumerate(source) if byte == ord("\n"))]
    found = {}
    for node, owner in walk(ast.parse(source)):
        for old, new in changes(node):
            start, end = begins[old.lineno - 1] + old.col_offset, begins[old.end_lineno - 1] + old.end_col_offset
            text = ast.unparse(new)
            text = text if isinstance(new, ast.stmt) else f"({text})"
            found[Mutant(file, old.lineno, start, end, ast.unparse(old), text, owner)] = None
    return list(found)


def drawn(tree: Path, part: str, seed: int) -> list[Mutant]:
    """All mutants of tepo/PART, shuffled; those of a folder `testing`, which users call, left out."""
    paths = [path for path in sorted((tree / "tepo" / part).rglob("*.py")) if "testing" not in path.parts]
    found = [one for path in paths for one in mutants_of(str(path.relative_to(tree)), path.read_bytes())]
    random.Random(seed).shuffle(found)
    return found


def record(tree: str, log: str) -> None:
    """Write each (file, function) of `tree` that this process enters into `log`, once. Its text also runs alone."""
    import contextlib
    import sys
    import threading

    known = set()

    def trace(frame, event, argument):  # type: ignore[no-untyped-def]
        code = frame.f_code
        if (key := (code.co_filename, code.co_qualname)) not in known:
            known.add(key)
            if code.co_filename.startswith(tree):
                with contextlib.suppress(OSError), open(log, "a") as out:
                    out.write(f"{code.co_filename[len(tree) :]}\t{code.co_qualname.replace('.<locals>', '')}\n")

    threading.settrace(trace)
    sys.settrace(trace)


def run_tests(tree: Path, files: list[str], usual: float, log: Path | None = None) -> tuple[int, float]:
    """(pytest's exit status in a fork, which is killed when it takes far longer than `usual`; its CPU seconds). Its
    output lies beside the tree. With a log, `record` watches it and what it starts."""
    sys.stdout.flush()
    if not (child := os.fork()):
        try:
            os.setsid()
            for limit, most in ((resource.RLIMIT_CPU, int(30 + 3 * usual)), (resource.RLIMIT_DATA, 8 << 30)):
                resource.setrlimit(limit, (most, most + 9))
            output = os.open(tree.parent / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(output, stream)
            os.chdir(tree)
            sys.path.insert(0, str(tree))
            os.environ["PYTHONPATH"] = str(tree)
            sys.modules["__main__"] = ModuleType("__main__")  # which processes that tests spawn would import again
            if log:
                watch = f"{inspect.getsource(record)}\nrecord({f'{tree}/'!r}, {str(log)!r})\n"
                log.with_name("sitecustomize.py").write_text(watch)
                os.environ["PYTHONPATH"] += f":{log.parent}"  # for new processes
                record(f"{tree}/", str(log))
            plain = ["-x", "-q", "-p", "no:cacheprovider", f"--basetemp={tree.parent / 'tests'}"]
            status = int(pytest.main([*files, *plain, "-m", LEFT_OUT]))
            sys.stdout.flush()
            os._exit(status)
        except BaseException:
            traceback.print_exc()
            os._exit(99)
    deadline = time.monotonic() + 120 + 10 * usual
    while not (done := os.wait4(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it left behind
    return os.waitstatus_to_exitcode(done[1]), done[2].ru_utime + done[2].ru_stime


def look(tree: Path, part: str, looks: dict[str, Look]) -> list[str]:
    """Run the part's files of tests without a mutant, each by itself, into `looks`. Returns those that pass."""
    folders = tree / "tests/unit" / part, tree / "tests/invariants"
    names = [str(path.relative_to(tree)) for folder in folders for path in sorted(folder.rglob("test_*.py"))]
    log = tree.parent / "look/entered.tsv"
    log.parent.mkdir(exist_ok=True)
    for name in (name for name in names if name not in looks):
        log.write_text("")
        status, spent = run_tests(tree, [name], 100, log)
        looks[name] = status == 0, spent, [tuple(line.split("\t")) for line in log.read_text().splitlines()]
        print(f"a look at {name}: {spent:.0f} CPU s, status {status}", flush=True)
        if status not in (0, 5):  # 5: nothing to run
            print(f"left out, it fails without a mutant:\n{(tree.parent / 'output').read_text()[-1500:]}")
    return [name for name in names if looks[name][0]]


def try_mutants(tree: Path, mutants: list[Mutant], files: list[str], looks: dict[str, Look]) -> Iterator[str]:
    """Say of each mutant in turn whether the tests catch it."""
    for number, one in enumerate(mutants):
        known = {name: {code for file, code in looks[name][2] if file == one.file} for name in files}
        able = [name for name in files if one.owner in known[name]]
        able.sort(key=lambda name: looks[name][1] / len(known[name]))
        before = accumulate((looks[name][1] for name in able), initial=0.0)
        chosen = [name for name, spent in zip(able, before, strict=False) if spent < SECONDS]
        path = tree / one.file
        source, stat = path.read_bytes(), path.stat()
        path.write_bytes(one.applied(source))
        os.utime(path, (number, number))  # bytecode goes by time and size
        status, spent = 0, 0.0
        for names in (chosen[:FIRST], chosen[FIRST:]):
            if names and not status:
                status, more = run_tests(tree, names, sum(looks[name][1] for name in names))
                spent += more
        path.write_bytes(source)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        verdict = "caught" if status else "survived" if chosen else "not entered"
        yield f"{verdict}: {one} ({len(chosen)} of {len(able)} files, {spent:.0f} CPU s, status {status})"
