"""A reward and a prompt of a user's own: `data.reward` and `data.prompt`, with the text of the files that they name.

reward: FILE.py                                      # its function `reward(problem, response)`
reward: {correct: grader, short: {file: FILE.py, function: short, weight: 0.2}}
prompt: FILE                                         # or text, with {problem} where the statement goes
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tepo.common.errors import UserError, unknown_name
from tepo.common.plugin_files import foreign, read_python
from tepo.common.schema import Location
from tepo.config.run_config import GRADER, DataConfig

FORMS = ("raw", "boxed")  # prompts with a name
PLACE = "{problem}"
VERDICT = "the grader's verdict"
_EXAMPLE = "reward: FILE.py, or reward: {correct: grader, short: {file: FILE.py, weight: 0.2}}"


def read_rewards(value: Any, folder: Path, at: Location) -> dict[str, dict[str, Any]]:
    """Name -> settings of each reward with the text of its file, for a file or a mapping of such settings.

    folder: where a relative path starts. Raises UserError that names all that is wrong."""
    if not value:
        return {}
    named = {re.sub(r"\W", "_", Path(value).stem): value} if isinstance(value, str) else value
    if not isinstance(named, Mapping):
        raise at.error(f"reward names a Python file, or several by name, not {value!r}", fix=_EXAMPLE)
    rewards, mistakes = {}, []
    for name, reward in named.items():
        try:
            rewards[str(name)] = _reward(str(name), reward, folder, at.at(str(name)))
        except UserError as error:
            mistakes.append(error)
    raise_all(mistakes)
    return rewards


def raise_all(mistakes: list[UserError]) -> None:
    """Raise a UserError that names them all; nothing where there is none."""
    if mistakes:
        first, *others = mistakes
        more = "".join(f"\nand {error.what}\nin: {error.where}" for error in others)
        raise UserError(first.what, where=f"{first.where}{more}", fix=first.fix)


def _reward(name: str, value: Any, folder: Path, at: Location) -> dict[str, Any]:
    if not re.fullmatch(r"\w+", name):
        raise at.error(f"{name!r} is no name of a reward", fix="letters, digits and _: it is part of names of metrics")
    settings = {"file": value} if isinstance(value, str) else value
    if not isinstance(settings, Mapping) or not isinstance(settings.get("file"), str) or not settings["file"]:
        raise at.error(f"the reward {name} names no file", fix=_EXAMPLE)
    if settings["file"] != GRADER:
        path, text = read_python("rewards", settings["file"], folder, at)
        if not text.strip():
            raise at.error(f"{path} is empty", fix="def reward(problem, response): return …")
        return {**settings, "file": path, "text": text}
    if "function" in settings:
        raise at.at("function").error("the grader has no functions", fix="leave it out")
    return dict(settings)


def rewarded(data: DataConfig) -> str:
    """Say in words what responses are rewarded by; empty where it is the grader's verdict as it is."""
    parts = []
    for name, reward in data.reward.items():
        source = f"{reward.function} of {Path(reward.file).name}" if reward.own else VERDICT
        parts.append(f"{name}, {source}, weight {reward.weight:g}" if len(data.reward) > 1 else source)
    text = "; ".join(parts)
    if data.flip_rewards:
        text = f"{text or VERDICT}, reversed for {data.flip_rewards:.0%} of the responses"
    return text


def foreign_rewards(data: DataConfig) -> list[str]:
    """Files of rewards whose text is that of no file in `rewards/` of TEPO_PATH."""
    return foreign("rewards", {reward.file: reward.text for reward in data.reward.values() if reward.own})


def read_prompt(value: Any, folder: Path, at: Location) -> Any:
    """A form by its name, or a template: text with `{problem}`, or what is in a file of text.

    folder: where a relative path starts. Raises UserError for a name that does not exist, and a file that cannot be
    read or has no place for the statement."""
    if not isinstance(value, str) or value in FORMS or PLACE in value:
        return value
    path = folder / Path(value).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        unknown, why = unknown_name("prompt", value, FORMS), getattr(error, "strerror", "not a text file in UTF-8")
        what = f"{unknown.what}, and the file {path} cannot be read: {why}"
        raise at.error(what, fix=f"{unknown.fix}; or text with {PLACE}, or a file of it") from None
    if PLACE not in text:
        raise at.error(f"{path} has no {PLACE}", fix=f"write {PLACE} where the statement goes")
    return text.removesuffix("\n")
