r"""The signs \pm and \mp: the lists that an answer with them stands for."""

import re

SIGN = re.compile(r"\\pm(?![a-zA-Z])|\\mp(?![a-zA-Z])|\+ ?/ ?-")
_MAX_SIGNS = 4


def expansions(parts: list[str]) -> list[list[str]]:
    r"""The lists a list with \pm stands for: signs taken together, and, with several of them, each by itself."""
    if not any(SIGN.search(part) for part in parts):
        return [list(dict.fromkeys(parts))]
    together: list[str] = []
    apart: list[str] = []
    for part in parts:
        signs = SIGN.findall(part)[:_MAX_SIGNS]
        if not signs:
            together.append(part)
            apart.append(part)
            continue
        pieces = SIGN.split(part, maxsplit=len(signs))
        together += [
            _woven(pieces, ["+" if (sign == "\\mp") == flip else "-" for sign in signs]) for flip in (False, True)
        ]
        apart += [
            _woven(pieces, ["+-"[number >> index & 1] for index in range(len(signs))])
            for number in range(2 ** len(signs))
        ]
    return [together] if len(apart) == len(together) else [together, apart]


def _woven(pieces: list[str], signs: list[str]) -> str:
    text = pieces[0]
    for sign, piece in zip(signs, pieces[1:], strict=True):
        leading = sign == "+" and re.search(r"(?:^|[=(,{])\s*$", text)
        text += ("" if leading else sign) + piece.lstrip()
    return text
