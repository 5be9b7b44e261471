"""Statements of a user's own rows: a text, or the question of a conversation. What cannot be shown to a policy as text
is refused."""

import ast
import contextlib
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tepo.common.files import parse_json

PICTURE = "with a picture or a sound, which is not read"
_PLACEHOLDER = re.compile(
    r"<\|?(?:image|img|video|audio)(?:[ _]?\d+|_pad|_start)?\|?>|<img\b|\[(?:image|img)\]|!\[[^\]\n]*\]\([^)\n]+\)"
    r"|\\includegraphics|data:image/",
    re.IGNORECASE,
)
_PICTURES = re.compile(r"(?:decoded)?(?:image|img|picture|photo|video|audio)s?(?:url|path|file|id|bytes)?\d*")
_NOTHING = ("", "[]", "{}", "none", "null", "nan", "false", "0")  # of a picture, in a table of text

_ROLES = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "bot", "chatgpt"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("tool", "function", "function_call", "observation", "ipython"), "tool"),
}
SYSTEM_LEFT_OUT = "system messages left out"
_LEFT_OUT = {"system": SYSTEM_LEFT_OUT, "tool": "turns of tools left out"}
_SAID = ("text", "input_text", "output_text")  # types of the parts of a message
_THOUGHT = ("thinking", "reasoning")


class Turn(NamedTuple):
    """A message: role (user, assistant, system, tool) and text."""

    role: str
    text: str


def spelled(name: Any) -> str:
    """The name of a column without case, blanks and signs: `Final Answer`, `finalAnswer`, ` final_answer` are one."""
    return re.sub(r"[\W_]", "", str(name).casefold())


def structure(value: Any) -> Any:
    """The list or mapping that a table keeps as text, in JSON or as Python prints it; any other value as it is."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    with warnings.catch_warnings(action="ignore"):  # about LaTeX that is no Python
        for parse in (parse_json, ast.literal_eval):
            with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
                parsed = parse(value.strip())
                return parsed if isinstance(parsed, list | dict) else value
    return value


def turns(value: Any) -> list[Turn]:
    """The messages of a conversation (`role`, `content`, or ShareGPT's `from`, `value`); none for anything else. Raises
    ValueError for a message that is not text alone, and for a role that has no meaning here."""
    messages = structure(value)
    if not isinstance(messages, list) or not all(isinstance(message, Mapping) for message in messages):
        return []
    read = []
    for message in messages:
        role, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
        if role is None:
            return []
        speaker = _ROLES.get(str(role).strip().casefold())
        if speaker is None:
            raise ValueError(f"with a message by {str(role)[:40]!r}, not by a user, an assistant, a system or a tool")
        called = message.get("tool_calls") or message.get("function_call")
        read.append(Turn("tool" if called and not content else speaker, _text(content)))
    return read


def _text(content: Any) -> str:
    """The text of a message, whose parts may be listed; reasoning is none of it."""
    if isinstance(content, str) or content is None:
        return content or ""
    texts = []
    for part in content if isinstance(content, list) else [content]:
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        text = part.get("text") if isinstance(part, Mapping) else part
        if kind in _THOUGHT:
            continue
        if kind not in _SAID or not isinstance(text, str):
            raise ValueError(PICTURE if kind not in _SAID else "with a message that is no text")
        texts.append(text)
    return "".join(texts)


def statement(value: Any, *, system_kept: bool = False) -> tuple[str, list[str]]:
    """The text of a problem, and what was left out around it, in words. system_kept: system messages are not, as
    `system_prompt` reads them. Raises ValueError with the reason why there is none."""
    left_out: list[str] = []
    if messages := turns(value):
        question_indices = [index for index, turn in enumerate(messages) if turn.role == "user"]
        if len(question_indices) != 1:
            raise ValueError("with several questions" if question_indices else "without a question")
        if any(turn.role == "assistant" for turn in messages[: question_indices[0]]):
            raise ValueError("whose question follows an answer")
        roles = {turn.role for turn in messages} - ({"system"} if system_kept else set())
        left_out = [words for role, words in _LEFT_OUT.items() if role in roles]
        value = messages[question_indices[0]].text
    if isinstance(value, bytes):
        raise ValueError(PICTURE)
    if isinstance(value, Mapping) and value:
        raise ValueError(f"whose problem has keys and values: data.fields.problem=COLUMN.KEY, as {next(iter(value))}")
    if not isinstance(value, str) or not value.strip():
        raise ValueError("without a problem")
    return value.strip(), left_out


def system_prompt(value: Any) -> str:
    """What the system says before the question: its message in a conversation, or a text; empty where there is none.
    Raises ValueError with the reason why it is none that a prompt can begin with."""
    if messages := turns(value):
        indices = [index for index, turn in enumerate(messages) if turn.role == "system"]
        if len(indices) > 1:
            raise ValueError("with several system messages")
        if indices not in ([], [0]):
            raise ValueError("whose system message is not the first")
        value = messages[0].text if indices else ""
    if not isinstance(value or "", str):
        raise ValueError("whose system prompt is no text")
    return (value or "").strip()


def is_picture_column(name: Any) -> bool:
    """Tell whether a column holds pictures or sounds, by its name."""
    return bool(_PICTURES.fullmatch(spelled(name)))


def check_text(texts: Iterable[str], pictures: Iterable[Any]) -> None:
    """Raise ValueError where a problem is not whole without a picture. texts: its statement and choices; pictures: the
    cells of columns that hold some."""
    has_picture = any(
        not (str(cell).strip().lower() in _NOTHING if isinstance(cell, str) else not cell) for cell in pictures
    )
    if has_picture or any(_PLACEHOLDER.search(text) for text in texts):
        raise ValueError(PICTURE)
