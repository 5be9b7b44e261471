"""From a problem's statement to the tokens a policy continues: the one door for training, evaluation and validation.

Two independent settings meet here. The problem set says what is asked (`prompt`: `raw`, the statement alone, `boxed`,
the statement and the instruction to box the answer, or a text with `{problem}`). The model says how a request is
wrapped (`wrap`: `auto`, the tokenizer's chat template where it has one and the base template otherwise; `base`, the
base template always; `raw`, nothing around it). A `raw` problem set (the laptop's symbolic prompts) is never
wrapped."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, get_args

from tepo.common.errors import UserError, unknown_name
from tepo.common.text import counted
from tepo.config.own_reward import PLACE
from tepo.config.run_config import Wrap
from tepo.problems.problem import Problem
from tepo.problems.prompts.chat_template import NO_SYSTEM, PLAIN, ChatTemplate
from tepo.problems.prompts.control_tokens import control_tokens, ids_of

BOXED_INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
PROMPTS = {"raw": "{problem}", "boxed": "{problem}\n\n" + BOXED_INSTRUCTION}
BASE_TEMPLATE = "Question:\n{request}\n\nAnswer:\n"
WRAPS = get_args(Wrap)
_HARMLESS = "1"  # a statement without control tokens, to see those around it
_BEHIND = "a response would go on behind the end"
_FEW = 5  # problems that an error names
_FEW_LETTERS = 12


@dataclass(frozen=True, slots=True)
class AskedPrompts:
    """Problems as a policy is given them.

    tokens: of each prompt. stop: ids that end the turn that a chat template opens, beside the model's own; none where
    no template is in use. controls: id and text of the control tokens. parts: the template took lists of parts. turns:
    it takes conversations."""

    tokens: list[list[int]]
    stop: tuple[int, ...]
    controls: Mapping[int, str]
    parts: bool
    turns: bool

    def check_rows(self, rows: int, where: str) -> None:
        """Raise UserError for tokens that the model, with so many rows in its vocabulary, does not have."""
        highest = max(chain(*self.tokens, self.stop), default=0)
        if highest >= rows:
            what = f"the tokenizer is not this model's: a prompt or its end has token {highest:,}, of {rows:,} (from 0)"
            fix = "the tokenizer that the model was saved with, or a model with a row for each of its tokens"
            raise UserError(what, where=where, fix=fix)


def render_prompt(
    statement: str, tokenizer: Any, *, prompt: str = "raw", wrap: str = "auto", thinking: bool | None = None
) -> str:
    """The text a policy sees. `thinking` switches the reasoning mode of models that have one; None leaves it to their
    template. Raises UserError for unknown settings, for a chat template that cannot be used (`ChatTemplate`), and when
    `thinking` is set without one."""
    request = template(prompt).replace(PLACE, statement)
    return _wrapped([request], prompt, wrap, _chat(tokenizer, prompt, wrap, thinking))[0]


def encode_prompts(
    problems: Sequence[Problem],
    tokenizer: Any,
    *,
    prompt: str = "raw",
    wrap: str = "auto",
    thinking: bool | None = None,
    before: Sequence[tuple[str, str]] = (),
) -> AskedPrompts:
    """The rendered prompts of problems, checked. A chat template writes its own special tokens, so none are added to it
    a second time. before: earlier statements of a conversation with their responses, where a template takes `turns`.

    Raises UserError, beside that of `render_prompt`, for prompts that end before they begin, statements and system
    prompts that are not whole in theirs or have no place there, and statements that hold control tokens: they could
    close a turn and answer themselves."""
    chat = _chat(tokenizer, prompt, wrap, thinking)
    frame, controls = template(prompt), control_tokens(tokenizer, chat.source if chat else "")
    systems = [problem.system for problem in problems]
    harmless = list(dict.fromkeys(systems)) or [""]  # a prompt with each system prompt, which may hold control tokens
    if any(systems) and not chat:
        raise _system_without_template(str(tokenizer.name_or_path))
    statements = [*(problem.prompt for problem in problems), *[_HARMLESS] * len(harmless)]
    requests = [frame.replace(PLACE, statement) for statement in statements]
    turns = [(frame.replace(PLACE, statement), response) for statement, response in before]
    texts = chat.render(requests, turns, [*systems, *harmless]) if chat else _wrapped(requests, prompt, wrap, None)
    tokens = [list(ids) for ids in tokenizer(texts, add_special_tokens=chat is None)["input_ids"]]
    behind = tokenizer(chat.after, add_special_tokens=False)["input_ids"] if chat and chat.after else []
    first = (next((index for index in ids if index in controls), None) for ids in behind)
    stop = tuple(sorted({index for index in first if index is not None}))
    prompts = [Rendered(*parts) for parts in zip(problems, requests, texts, tokens, strict=False)]
    ends = {*ids_of(tokenizer, "eos", "sep", "pad"), *stop} & controls.keys()
    harmless_tokens = dict(zip(harmless, tokens[len(problems) :], strict=True))
    _check_controls(prompts, harmless_tokens, tokenizer, controls)
    _check_ends(texts[0], tokens[0], tokenizer, {index: controls[index] for index in ends}, chat=chat is not None)
    _check_kept(prompts, tokenizer, own=prompt not in PROMPTS, chat=chat is not None)
    return AskedPrompts(
        tokens[: len(problems)], stop, controls, chat is not None and chat.parts, chat is not None and chat.turns
    )


def text_prompts(
    problems: Sequence[Problem], *, prompt: str = "raw", wrap: str = "auto", thinking: bool | None = None
) -> tuple[list[str], bool]:
    """The prompts of problems for a server with a tokenizer of its own, and whether they are turns of a conversation,
    around which it puts the chat template: with `wrap=auto`, but for a `raw` problem set. Raises UserError as
    `render_prompt` does."""
    chat = _asks_in_turns(prompt, wrap)
    if thinking is not None and not chat:
        raise _thinks_without_template()
    if not chat and any(problem.system for problem in problems):
        raise _system_without_template("")
    requests = [template(prompt).replace(PLACE, problem.prompt) for problem in problems]
    return (requests if chat else _wrapped(requests, prompt, wrap, None)), chat


def template(prompt: str) -> str:
    """The text of a prompt, with {problem} for the statement. Raises UserError for a name that does not exist."""
    if prompt not in PROMPTS and PLACE not in prompt:
        raise unknown_name("prompt", prompt, PROMPTS)
    return PROMPTS.get(prompt, prompt)


class Rendered(NamedTuple):
    """A problem on its way: with its instruction, with all that goes around it, and as tokens."""

    problem: Problem
    request: str
    text: str
    tokens: list[int]


def _chat(tokenizer: Any, prompt: str, wrap: str, thinking: bool | None) -> ChatTemplate | None:
    """The chat template, where it is in use."""
    if _asks_in_turns(prompt, wrap) and getattr(tokenizer, "chat_template", None):
        return ChatTemplate(tokenizer, thinking)
    if thinking is not None:
        raise _thinks_without_template()
    return None


def _asks_in_turns(prompt: str, wrap: str) -> bool:
    """Whether a chat template is used, if there is one."""
    if wrap not in WRAPS:
        raise unknown_name("prompt wrap", wrap, WRAPS)
    return prompt != "raw" and wrap == "auto"


def _system_without_template(where: str) -> UserError:
    what = "a system prompt needs a chat template, and none is in use"
    fix = f"wrap=auto with a chat model, and a prompt that is not raw; or {NO_SYSTEM}"
    return UserError(what, where=where, fix=fix)


def _thinks_without_template() -> UserError:
    fix = "leave thinking unset, or use wrap=auto with a chat model"
    return UserError("thinking is set, but no chat template is in use", fix=fix)


def _wrapped(requests: Sequence[str], prompt: str, wrap: str, chat: ChatTemplate | None) -> list[str]:
    if chat:
        return chat.render(requests)
    plain = prompt == "raw" or wrap == "raw"
    return [request if plain else BASE_TEMPLATE.replace("{request}", request) for request in requests]


def _check_ends(text: str, tokens: Sequence[int], tokenizer: Any, ends: Mapping[int, str], *, chat: bool) -> None:
    """Raise UserError for a tokenizer that closes a prompt, and for a prompt at whose end there is nothing to go on
    with."""
    where = str(tokenizer.name_or_path)
    plain_tokens = [] if chat else tokenizer([text], add_special_tokens=False)["input_ids"][0]
    if plain_tokens and list(tokens[-len(plain_tokens) :]) != list(plain_tokens):
        what = f"the model's tokenizer appends {tokenizer.convert_ids_to_tokens(tokens[-1])} to a prompt"
        fix = "add_eos_token: false in tokenizer_config.json, or take it out of the post_processor in tokenizer.json"
        raise UserError(f"{what}: {_BEHIND}", where=where, fix=fix)
    closed = next((end for end in ends.values() if text.rstrip().endswith(end)), ends.get(tokens[-1] if tokens else -1))
    if closed:
        fix = f"a chat template that opens the assistant's turn (add_generation_prompt), or {PLAIN}"
        raise UserError(f"a prompt ends with {closed}: {_BEHIND}", where=where, fix=fix)


def _check_controls(
    prompts: Sequence[Rendered], harmless: Mapping[str, Sequence[int]], tokenizer: Any, controls: Mapping[int, str]
) -> None:
    """Raise UserError for statements whose prompts have other control tokens than that of a harmless one with the same
    system prompt."""
    expected = {system: [index for index in ids if index in controls] for system, ids in harmless.items()}
    unknown, offenders = tokenizer.special_tokens_map.get("unk_token"), []
    for prompt in prompts:
        around = expected[prompt.problem.system]
        control_ids = [index for index in prompt.tokens if index in controls]
        if control_ids != around:
            more = Counter(control_ids) - Counter(around) or Counter(around)
            offenders.append((prompt, ", ".join(controls[index] for index in more)))
        elif unknown and str(unknown) in prompt.problem.prompt:
            offenders.append((prompt, str(unknown)))
    if offenders:
        named = "; ".join(f"{prompt.problem.id} ({tokens})" for prompt, tokens in offenders[:_FEW])
        more_problems = f" and {len(offenders) - _FEW:,} more" if len(offenders) > _FEW else ""
        what = f"{counted(len(offenders), 'statement')} with control tokens of the model: {named}{more_problems}"
        fix = "leave them out, or write the token otherwise: in a prompt it could close a turn and open another"
        raise UserError(what, where=str(tokenizer.name_or_path), fix=fix)


def _check_kept(prompts: Sequence[Rendered], tokenizer: Any, *, own: bool, chat: bool) -> None:
    """Raise UserError for statements, prompts of the user's own around them, or system prompts, that are not whole in
    the text that a chat template makes, or in what the tokenizer makes of it: the policy would be asked something else.

    What tokenizers normalise is not looked at: case, white space, accents, signs that are made of others."""
    where = str(tokenizer.name_or_path)
    if changed := [prompt for prompt in prompts if chat and prompt.request.strip() not in prompt.text]:
        what = f"the model's chat template leaves out or changes the text of {_named(changed)}"
        raise UserError(what, where=where, fix=f"another template, or {PLAIN}")
    if changed := [prompt for prompt in prompts if prompt.problem.system not in prompt.text]:
        what = f"the model's chat template leaves out or changes the system prompt of {_named(changed)}"
        raise UserError(what, where=where, fix=NO_SYSTEM)
    if not prompts:
        return
    own = own or any(prompt.problem.system for prompt in prompts)
    read = tokenizer.batch_decode([prompt.tokens for prompt in prompts], skip_special_tokens=not own)
    lost = [
        (prompt, needle, text)
        for prompt, text in zip(prompts, read, strict=True)
        for needle in (prompt.request if own else prompt.problem.prompt, prompt.problem.system)
        if needle not in text and _essence(needle) not in _essence(text)
    ]
    if not lost:
        return
    letters = sorted({letter for _, needle, _ in lost for letter in needle if _essence(letter)})
    alone = tokenizer.batch_decode(tokenizer(letters, add_special_tokens=False)["input_ids"], skip_special_tokens=True)
    missing = [letter for letter, text in zip(letters, alone, strict=True) if _essence(letter) not in _essence(text)]
    some = ", ".join(missing[:_FEW_LETTERS]) + (" …" if len(missing) > _FEW_LETTERS else "")
    what = f"has no {some}, which the prompts use" if missing else f"changes {_named(prompt for prompt, _, _ in lost)}"
    fix = "another model (model=FOLDER); the shipped ones read digits and arithmetic alone"
    raise UserError(f"the model's tokenizer {what}", where=where, fix=fix)


def _essence(text: str) -> str:
    letters = unicodedata.normalize("NFKD", text).casefold()
    return "".join(letter for letter in letters if unicodedata.category(letter)[0] not in "ZCM")


def _named(prompts: Iterable[Rendered]) -> str:
    ids = [prompt.problem.id for prompt in prompts]
    more = f" and {len(ids) - _FEW:,} more" if len(ids) > _FEW else ""
    return f"{counted(len(ids), 'problem')} ({', '.join(ids[:_FEW])}{more})"
