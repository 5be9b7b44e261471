"""A worker process that renders chat templates, which are programs of strangers: endless loops and all of the memory
end it and not the command. Started by the grader's pool (see `pool`), never imported by the parent."""

import json
import random
from collections.abc import Callable
from datetime import datetime
from typing import Any

from tepo.problems.grader.worker import serve

_TODAY = datetime(2024, 7, 26)  # on every day, lest a run ask otherwise after midnight; Llama's own without a clock
_ROOM = 1_000_000  # characters that a template may write beside what it is given
_LONGEST = 300  # characters of a message


def main() -> None:
    """Serve until the parent closes the pipe."""
    serve(_load, _answer)


def _load(settings: dict[str, Any]) -> Callable[..., Any]:
    from transformers.utils.chat_template_utils import render_jinja_template

    return render_jinja_template


def _answer(render: Callable[..., Any], line: bytes) -> tuple[list[str] | None, str]:
    """Texts and no reason, or none and why, for a request {"template", "chats", "given"}."""
    request = json.loads(line)
    texts = []
    try:
        for chat in request["chats"]:
            random.seed(0)  # of jinja's filter
            variables = {"strftime_now": _TODAY.strftime, **request["given"]}
            text = render([chat], chat_template=request["template"], **variables)[0][0]
            if len(text) > len(json.dumps(chat)) + _ROOM:
                return None, f"it writes {len(text):,} characters around a message"
            texts.append(text)
    except MemoryError:
        return None, "memory"
    except BaseException as error:  # a template raises whatever it likes
        place = f"line {number}: " if (number := getattr(error, "lineno", None)) else ""
        return None, f"{place}{' '.join(str(error).split()) or type(error).__name__}"[:_LONGEST]
    return texts, ""
