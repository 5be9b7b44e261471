"""The chat template of a tokenizer: what it puts around a request, and what ends the turn that it opens.

A template is a program of whoever published the model. It runs in a worker under the grader's kind of budget. Before
anything is asked by it, a short conversation shows whether it does what a prompt needs."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from tepo.common.errors import RunFailed, UserError
from tepo.common.text import spelt
from tepo.problems.grader.options import GraderOptions
from tepo.problems.grader.pool import Pool

PLAIN = "wrap=base asks in plain text (model.wrap, --wrap)"
_FIX = f"another template (chat_template.jinja of the model), or {PLAIN}"
NO_SYSTEM = "no system prompt (data.fields.system of a run, --system), or write it into data.prompt"
_BUDGET = GraderOptions(timeout=2.0, workers=1)
_BATCH = 64  # requests that have one budget
_OVER = {
    "timeout": f"takes more than {_BUDGET.timeout:g} CPU seconds",
    "stalled": "hardly ran at all: this machine is too busy",
    "memory": f"takes more than {_BUDGET.memory_mb:,} MiB of memory",
    "crash": "ended its process",
}
# What no template writes itself. In a list that is printed as such, or as JSON, the end of a line is spelt out.
_ASKED, _SAID = "Tepo Asks\nWhat 4217 is", "Tepo Says 4217"
_THOUGHT = re.compile(r"</?think>|\s")
_ROLES = ("user", "assistant")
_Chat = list[dict[str, Any]]


class ChatTemplate:
    """The template in use around requests. after: what it writes behind an assistant's text, at the end of a
    conversation and before the next question.

    thinking: the reasoning mode of models that have one; None leaves it to the template. Raises UserError for a
    template that fails, exceeds its budget, drops or repeats the request, does not open the assistant's turn or has
    not the mode that is asked for."""

    def __init__(self, tokenizer: Any, thinking: bool | None):
        self.where, self.thinking, self.parts = str(tokenizer.name_or_path), thinking, False
        template = tokenizer.chat_template
        source = template.get("default") if isinstance(template, Mapping) else template
        if source is None and isinstance(template, Mapping):
            raise self._error(f"has several versions ({', '.join(map(str, template))}), and none is called default")
        if not isinstance(source, str):
            raise self._error(f"is no text: {template!r}")
        self.source = source
        self.given: dict[str, Any] = {
            name: list(map(str, value)) if isinstance(value, list) else str(value)
            for name, value in tokenizer.special_tokens_map.items()
        }
        if thinking is not None and "enable_thinking" in self.source:
            self.given["enable_thinking"] = thinking
        elif thinking is not None and "think>" not in self.source:
            what = "thinking is set, but this tokenizer's chat template has no thinking mode"
            raise UserError(what, fix="leave thinking unset")
        self._choose_form()
        self.after = self._check_turns()

    @property
    def turns(self) -> bool:
        """Tell whether it takes a conversation, and not a question alone."""
        return len(self.after) > 1

    def render(
        self, requests: Sequence[str], before: Sequence[tuple[str, str]] = (), systems: Sequence[str] = ()
    ) -> list[str]:
        """The prompt of each request. before: earlier requests of the same conversation, each with its response.
        systems: what the system says before each; empty, of one or of all: the template decides."""
        history = [self._message(role, text) for turn in before for role, text in zip(_ROLES, turn, strict=True)]
        chats = [
            [*([self._message("system", system)] if system else []), *history, self._message("user", request)]
            for request, system in zip(requests, systems or [""] * len(requests), strict=True)
        ]
        texts = self._rendered(chats, what="fails with a system prompt" if any(systems) else "fails")
        if self.thinking is None or "enable_thinking" in self.given:
            return texts
        # Distilled reasoning models (DeepSeek-R1-Distill): the template opens the thought, or leaves that to the model.
        opened = [text if text.endswith("<think>\n") else text + "<think>\n" for text in texts]
        return opened if self.thinking else [text + "\n</think>\n\n" for text in opened]

    def _choose_form(self) -> None:
        """Find whether the template takes a message as text or as a list of parts: it drops the other one without a
        word."""
        faults = []
        for self.parts in (False, True):
            texts, failure = self._tried([[self._message("user", _ASKED)]])
            times = texts[0].count(_ASKED) if texts else 0
            if times == 1:
                return
            wrong = f"writes it {times} times" if times else "leaves it out or changes it"
            faults.append(f"fails: {failure}" if failure else f"does not give the model the user's message: it {wrong}")
        raise self._error(faults[0])

    def _check_turns(self) -> list[str]:
        """Return what follows the assistant's text. Raises UserError where the model would have to open its turn."""
        question, reply = self._message("user", _ASKED), self._message("assistant", _SAID)
        after = []
        for chat in ([question, reply], [question, reply, question]):
            texts, failure = self._tried([chat], opened=False)
            before, marker, rest = texts[0].partition(_SAID) if not failure else ("", "", "")
            after += [rest.partition(_ASKED)[0]] if marker else []
            if marker and len(chat) == 2:
                opened, closed = self._rendered([[question]])[0], self._tried([[question]], opened=False)[0]
                missing = before[len(opened.rstrip()) :]
                if closed == [opened] and before.startswith(opened.rstrip()) and _THOUGHT.sub("", missing):
                    what = f"ignores add_generation_prompt: a response would have to begin with {missing.strip()!r}"
                    raise self._error(what)
        return after

    def _message(self, role: str, text: str) -> dict[str, Any]:
        return {"role": role, "content": [{"type": "text", "text": text}] if self.parts else text}

    def _rendered(self, chats: Sequence[_Chat], what: str = "fails") -> list[str]:
        texts, failure = self._tried(chats)
        if failure:
            raise self._error(f"{what}: {failure}", fix=_FIX if what == "fails" else NO_SYSTEM)
        return texts

    def _tried(self, chats: Sequence[_Chat], *, opened: bool = True) -> tuple[list[str], str]:
        """Texts, or what the template raises. Raises UserError for one that exceeds its budget."""
        variables = {**self.given, "add_generation_prompt": opened}
        texts: list[str] = []
        for start in range(0, len(chats), _BATCH):  # one by one: the first that fails is the last
            try:
                part = {"template": self.source, "given": variables, "chats": chats[start : start + _BATCH]}
                outcome = _pool().run([part])[0]
            except RunFailed:
                fix = "python -c 'import transformers, jinja2' with the same interpreter"
                raise RunFailed("the process that renders chat templates did not start", fix=fix) from None
            if outcome.reason in _OVER:
                raise self._error(_OVER[outcome.reason])
            if outcome.reason:
                return [], outcome.reason
            texts += outcome.value
        return texts, ""

    def _error(self, what: str, fix: str = _FIX) -> UserError:
        return UserError(spelt(f"the model's chat template {what}"), where=self.where, fix=fix)


@lru_cache(maxsize=1)
def _pool() -> Pool:
    """One worker for all templates of this process: its start takes a second."""
    return Pool(_BUDGET, "tepo.problems.prompts.template_worker", {})
