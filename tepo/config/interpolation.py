"""Check of the `${…}` in a configuration: references to its own values, and `oc.select`, which reads them too.

Any other resolver reads what lies outside, `${oc.env:HF_TOKEN}` above all: the value would be stored with every run, in
its card and on the page.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tepo.common.schema import Location

_INSIDE = ("oc.select",)


def check_inside(value: Any, at: Location) -> None:
    """Raises UserError naming the place of a string, in mappings and lists too, that reads what lies outside."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            check_inside(inner, at.at(str(key)))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            check_inside(inner, at.at(index))
    elif isinstance(value, str) and "${" in value:
        for name in _resolvers(value):
            if name not in _INSIDE:
                what = f"${{{name}:…}} reads what lies outside the configuration, and what it reads would be stored"
                raise at.error(what, fix="write the value; secrets stay in the environment, where their readers look")


def _resolvers(text: str) -> Iterator[str]:
    """Names of the resolvers that a string calls, at any depth."""
    from omegaconf.errors import GrammarParseError
    from omegaconf.grammar.gen.OmegaConfGrammarParser import OmegaConfGrammarParser
    from omegaconf.grammar_parser import parse

    try:
        nodes = [parse(text)]
    except GrammarParseError:  # nothing is resolved then: OmegaConf says so
        return
    while nodes:
        node = nodes.pop()
        if isinstance(node, OmegaConfGrammarParser.ResolverNameContext):
            yield node.getText()
        nodes += list(node.getChildren()) if hasattr(node, "getChildren") else []
