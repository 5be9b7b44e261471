"""Charts as they are drawn: their marks, texts and scales, and labels that a study may give its rows."""

import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any
from xml.etree import ElementTree

import vl_convert

from tepo.reporting.charts.style import Chart, specification, svg

LONG = "On chains of 200 tokens tight bounds of a sequence ratio end 2 points above the paper's, each at its own rate"
HOSTILE = ("</script><b>&amp;", "\"two\" 'one'", "a\nb", "\x07\x1b[2J\ufffe", "$x$", "=cmd", '\\"] || alert(1)//')
LABELS = (*HOSTILE, "a \\n ${b}", "datum.method", "x" * 150, LONG, f"{LONG}, too")


def plain(label: str) -> str:
    """A label as it is drawn, without what parts its lines."""
    for character in "\x07\x1b\ufffe":
        label = label.replace(character, character.encode("unicode_escape").decode())
    return re.sub(r"\s", "", label)


def unread(chart: Chart, labels: Sequence[str], width: int | None = None) -> list[str]:
    """Labels that cannot be read in full in an SVG of that width, which must be XML; texts that were cut, and pixels
    beyond the width."""
    tree = ElementTree.fromstring(svg(chart, width))
    texts = [plain("".join(one.itertext())) for one in tree.iter("{http://www.w3.org/2000/svg}text")]
    lacking = [label for label in labels if not any(plain(label) in text for text in texts)]
    wide = width is not None and float(tree.attrib["width"]) > width
    return lacking + [text for text in texts if "…" in text] + [f"{tree.attrib['width']} pixels"] * wide


def items(chart: Chart, kind: str, panel: int | None = None) -> list[dict[str, Any]]:
    """All that is drawn by marks of a kind (symbol, rule, rect, area, text). panel: of several, counted from 0."""
    return [item for mark in marks(chart, kind, panel) for item in mark]


def marks(chart: Chart, kind: str, panel: int | None = None) -> list[list[dict[str, Any]]]:
    """As `items`, a list a mark: a line is the list of its points."""
    root = _scene(json.dumps(specification(chart)))
    if panel is not None:
        root = [group for group in root["items"] if (group.get("name") or "").startswith("concat_")][panel]["items"][0]
    return list(_marks(root, kind))


@lru_cache(maxsize=2)
def _scene(made: str) -> Any:
    return vl_convert.vegalite_to_scenegraph(made)["scenegraph"]["items"][0]


def _marks(item: dict[str, Any], kind: str) -> Iterator[list[dict[str, Any]]]:
    for mark in item["items"]:
        if mark["role"] == "mark" and mark["marktype"] == kind:
            yield mark["items"]
        elif mark["marktype"] == "group" and mark["role"] in ("mark", "scope"):
            for one in mark["items"]:
                yield from _marks(one, kind)


def said(item: dict[str, Any]) -> dict[str, str]:
    """Words of the tooltip."""
    return dict(part.split(": ", 1) for part in item["description"].split("; "))


def parts(made: Any, key: str) -> Iterator[Any]:
    """All values of a key anywhere in a specification, but in its data."""
    for name, value in made.items() if isinstance(made, dict) else ():
        if name == key:
            yield value
        if name not in ("datasets", "values"):
            yield from parts(value, key)
    for value in made if isinstance(made, list) else ():
        yield from parts(value, key)


def scales(chart: Chart, channel: str) -> list[dict[str, Any]]:
    """The scales of a channel, those of each panel in its order."""
    return [one["scale"] for one in parts(specification(chart), channel) if "scale" in one]
