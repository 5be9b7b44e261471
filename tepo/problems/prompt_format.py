"""From a problem's statement to the tokens a policy continues.

Two independent settings meet here. The problem set says what is asked (`prompt`: `raw`, the statement alone, `boxed`,
the statement and the instruction to box the answer, or a text with `{problem}`). The model says how a request is
wrapped (`wrap`: `auto`, the tokenizer's chat template where it has one and the base template otherwise; `base`, the
base template always; `raw`, nothing around it). A `raw` problem set (the laptop's symbolic prompts) is never
wrapped."""

from collections.abc import Sequence
from typing import Any, get_args

from tepo.common.errors import UserError, unknown_name
from tepo.config.own_reward import PLACE
from tepo.config.run_config import Wrap

BOXED_INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
PROMPTS = {"raw": "{problem}", "boxed": "{problem}\n\n" + BOXED_INSTRUCTION}
BASE_TEMPLATE = "Question:\n{request}\n\nAnswer:\n"
WRAPS = get_args(Wrap)


def render_prompt(
    statement: str, tokenizer: Any, *, prompt: str = "raw", wrap: str = "auto", thinking: bool | None = None
) -> str:
    """The text a policy sees. `thinking` switches the reasoning mode of models that have one; None leaves it to their
    template. Raises UserError for unknown settings, and when `thinking` is set for a tokenizer whose template has no
    such mode."""
    request, chat = _request(statement, tokenizer, prompt, wrap)
    if not chat:
        if thinking is not None:
            fix = "leave thinking unset, or use wrap=auto with a chat model"
            raise UserError("thinking is set, but no chat template is in use", fix=fix)
        return request if prompt == "raw" or wrap == "raw" else BASE_TEMPLATE.replace("{request}", request)
    template, message = str(tokenizer.chat_template), [{"role": "user", "content": request}]
    switch = {} if thinking is None or "enable_thinking" not in template else {"enable_thinking": thinking}
    text = str(tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True, **switch))
    if thinking is None or switch:
        return text
    if "think>" not in template:
        what = "thinking is set, but this tokenizer's chat template has no thinking mode"
        raise UserError(what, fix="leave thinking unset")
    # Distilled reasoning models (DeepSeek-R1-Distill): the template opens the thought, or leaves that to the model.
    opened = text if text.endswith("<think>\n") else text + "<think>\n"
    return opened if thinking else opened + "\n</think>\n\n"


def encode_prompts(
    statements: Sequence[str], tokenizer: Any, *, prompt: str = "raw", wrap: str = "auto", thinking: bool | None = None
) -> list[list[int]]:
    """Token ids of each rendered prompt. A chat template writes its own special tokens, so none are added to it a
    second time."""
    if not statements:
        return []
    settings: Any = {"prompt": prompt, "wrap": wrap, "thinking": thinking}
    texts = [render_prompt(statement, tokenizer, **settings) for statement in statements]
    chat = _request(statements[0], tokenizer, prompt, wrap)[1]
    return [list(ids) for ids in tokenizer(texts, add_special_tokens=not chat)["input_ids"]]


def template(prompt: str) -> str:
    """The text of a prompt, with {problem} for the statement. Raises UserError for a name that does not exist."""
    if prompt not in PROMPTS and PLACE not in prompt:
        raise unknown_name("prompt", prompt, PROMPTS)
    return PROMPTS.get(prompt, prompt)


def _request(statement: str, tokenizer: Any, prompt: str, wrap: str) -> tuple[str, bool]:
    """The statement with its instruction, and whether the chat template goes around it."""
    request = template(prompt).replace(PLACE, statement)
    if wrap not in WRAPS:
        raise unknown_name("prompt wrap", wrap, WRAPS)
    chat = prompt != "raw" and wrap == "auto" and bool(getattr(tokenizer, "chat_template", None))
    return request, chat
