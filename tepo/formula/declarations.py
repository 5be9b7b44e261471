"""Functions of a user's own, for what a formula cannot say: what a Python file that a row names under `functions:`
declares. It is read as text and not executed; `tepo.objectives.own_functions` does that where numbers are computed.

    @function(takes="token number", gives="number")
    def quantile_b(layout, x, share): ...

takes: a word for each argument behind the layout: `token`, `response` (in a rollout), `condition`, `number` (a
constant; `number?` may be left out), `any` (whatever it is of, with gives="same"). gives: one of the first three,
`number` or `same`. The end of the name says where it is computed, as with those that ship: `_g` and `_r` once a
rollout, `_b` once a mini-batch, over all ranks, both without a gradient; all others wherever their arguments are, in
the loss with one."""

import ast
from collections.abc import Iterable, Mapping
from functools import lru_cache

from tepo.common.errors import UserError, unknown_name
from tepo.formula.graph import Function
from tepo.formula.language import FUNCTIONS, GIVEN, stage_of

SHAPE = '@function(takes="token number", gives="token") above def name(layout, values, most): …'
_TAKES = ("token", "response", "condition", "number", "any")
_GIVES = ("token", "response", "condition", "number", "same")


def functions_of(files: Mapping[str, str]) -> dict[str, Function]:
    """The functions of files (name -> text). Raises UserError, with its line, for what cannot be declared, and for a
    name that is there already."""
    functions: dict[str, Function] = {}
    for file, text in files.items():
        for name, function in _of_file(file, text).items():
            if name in functions:
                what = f"{name} is declared in {functions[name].file}:{functions[name].line} too"
                raise UserError(what, where=f"{file}:{function.line}", fix="give one of them a name of its own")
            functions[name] = function
    return functions


@lru_cache(maxsize=256)
def _of_file(file: str, text: str) -> Mapping[str, Function]:
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        what, line = getattr(error, "msg", None) or error, getattr(error, "lineno", None) or 1
        raise UserError(f"not valid Python: {what}", where=f"{file}:{line}", fix=SHAPE) from None
    functions: dict[str, Function] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                called = decorator.func if isinstance(decorator, ast.Call) else decorator
                if ast.unparse(called).rpartition(".")[2] == "function":
                    functions |= {node.name: _declared(node, decorator, file, text)}
    if not functions:
        raise UserError("the file declares no function", where=file, fix=SHAPE)
    return functions


def _declared(node: ast.FunctionDef, decorator: ast.expr, file: str, text: str) -> Function:
    name, stage = node.name, stage_of(node.name)

    def wrong(what: str, fix: str = SHAPE) -> UserError:
        return UserError(f"the function {name} {what}", where=f"{file}:{node.lineno}", fix=fix)

    def check(word: str, choices: Iterable[str]) -> None:
        if word not in choices:
            raise unknown_name(f"word for what {name} takes or gives", word, choices, where=f"{file}:{node.lineno}")

    named = {word.arg: getattr(word.value, "value", None) for word in getattr(decorator, "keywords", ())}
    takes, gives = named.get("takes"), named.get("gives")
    if set(named) != {"takes", "gives"} or not isinstance(takes, str) or not isinstance(gives, str):
        raise wrong("does not say what it takes and gives, in plain text")
    for names, what in ((GIVEN, "a given value"), (FUNCTIONS, "a shipped function")):
        if name in names:
            raise wrong(f"has the name of {what}", "give it a name of its own")
    if not name.isascii() or name.endswith(("_t", "_k")):
        raise wrong("has a name that cannot be", "letters, digits and _ of ASCII, without _t or _k as its end")
    words = takes.split()
    for word in words or [""]:
        check(word.removesuffix("?"), _TAKES)
    check(gives, _GIVES)
    optional = [word == "number?" for word in words]
    if optional != sorted(optional) or any(word.endswith("?") and word != "number?" for word in words):
        raise wrong("leaves out what cannot be", "number? behind all others")
    plain = {word.removesuffix("?") for word in words}
    if ("any" in plain) != (gives == "same") or ("any" in plain and not plain <= {"any", "number"}):
        raise wrong("takes `any` without giving `same`, or the other way round", 'takes="any number", gives="same"')
    if "response" in (*plain, gives) and stage != "rollout":
        fix = "tokens(x) in a line makes it one per token; a name that ends with _g or _r is of the rollout"
        raise wrong("is of the loss, where it takes and gives values of tokens", fix)
    if gives == "number" and not stage:
        raise wrong("gives a number of its micro-batch", "a name that ends with _b or _r looks at everything")
    if gives == "same" and stage == "mini-batch":
        raise wrong("is of the mini-batch, and gives `same`", "token, condition or number")
    parameters = [*node.args.posonlyargs, *node.args.args]
    least, most = len(parameters) - len(node.args.defaults), len(parameters) if not node.args.vararg else len(words) + 1
    if None in node.args.kw_defaults or not least <= optional.count(False) + 1 <= len(words) + 1 <= most:
        has = ast.unparse(node.args)
        raise wrong(f'takes "{takes}", and has the arguments ({has})', "the layout first, then these")
    doc = (ast.get_docstring(node) or "").partition("\n")[0]
    return Function(tuple(words), "" if gives == "number" else gives, stage, doc, file, node.lineno, text)
