"""Tokenizers of the families of the shipped models, tiny and made here, with templates in the style of each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\nBe brief.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_THOUGHT = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
THINKS = CHATML.replace("assistant\n{% endif %}", f"assistant\n{_THOUGHT}{{% endif %}}")
HEADERS = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
INST = (
    "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must take turns') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}{{ eos_token }}{% endif %}"
    "{% endfor %}"
)
DISTILLED = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}"
    "{% else %}<｜Assistant｜>{{ m.content.split('</think>')[-1] }}<｜end｜>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}"
)
NEXT_ROLE = (  # a turn ends where the next begins
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
CHANNELS = (  # the model itself writes on which channel it speaks
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>"
    "{{ m.content }}{% if m.role == 'assistant' and loop.last %}<|return|>{% else %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
PARTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for part in m.content %}{% if part.type == 'text' %}"
    "{{ part.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer(
    template: Any = None,
    *,
    special: Sequence[str] = (),
    added: Sequence[AddedToken | str] = (),
    appended: str = "",
    bos: str | None = None,
    **named: str,
) -> PreTrainedTokenizerFast:
    """Bytes as tokens, which read any text. bos: in front of what is no chat. appended: behind it."""
    alphabet = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = Tokenizer(models.BPE(alphabet, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([*dict.fromkeys([*filter(None, (bos, appended)), *named.values(), *special])])
    core.add_tokens(list(added))
    around = [one for one in (bos, appended) if one]
    core.post_processor = processors.TemplateProcessing(
        single=f"{bos or ''} $A {appended}".strip(),
        special_tokens=[(one, core.token_to_id(one)) for one in dict.fromkeys(around)],
    )
    made = PreTrainedTokenizerFast(tokenizer_object=core, bos_token=bos, **named)
    made.chat_template = template
    return made


def word_tokenizer(*words: str, normalizer: Any = None) -> PreTrainedTokenizerFast:
    """Whole words; others are `<unk>`."""
    core = Tokenizer(models.WordLevel({word: n for n, word in enumerate(["<unk>", "<eos>", *words])}, "<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    if normalizer is not None:
        core.normalizer = normalizer
    core.add_special_tokens(["<unk>", "<eos>"])
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<eos>")


def save_without_weights(made: PreTrainedTokenizerFast, folder: Path) -> Path:
    """A model folder of which only the tokenizer and the configuration can be loaded."""
    made.save_pretrained(folder)
    LlamaConfig(vocab_size=len(made), eos_token_id=made.eos_token_id).save_pretrained(folder)
    (folder / "model.safetensors").touch()
    return folder


_TURNS = ("<|im_start|>", "<|im_end|>")
_TEXT = {"eos_token": "<|endoftext|>"}
_HEADER = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
_KINDS: dict[str, tuple[str, dict[str, Any], str]] = {  # template, tokenizer, and what ends a turn
    "base asked by ChatML": (CHATML, {"special": _TURNS, **_TEXT, "pad_token": "<|endoftext|>"}, "<|im_end|>"),
    "ChatML that thinks": (
        *(THINKS, {"special": _TURNS, "added": ("<think>", "</think>"), "eos_token": "<|im_end|>"}),
        "<|im_end|>",
    ),
    "headers": (HEADERS, {"special": _HEADER, "bos": "<|begin|>", "eos_token": "<|end_of_text|>"}, "<|eot_id|>"),
    "[INST]": (INST, {"bos": "<s>", "eos_token": "</s>"}, "</s>"),
    "distilled": (
        *(DISTILLED, {"special": ("<｜User｜>", "<｜Assistant｜>"), "bos": "<｜begin｜>", "eos_token": "<｜end｜>"}),
        "<｜end｜>",
    ),
    "next role": (
        *(NEXT_ROLE, {"special": ("<|user|>", "<|assistant|>"), "bos": "<s>", "eos_token": "</s>"}),
        "<|user|>",
    ),
    "channels": (CHANNELS, {"special": _MARKS, "eos_token": "<|return|>"}, "<|end|> <|return|>"),
    "turns that are not special": (CHATML, {"added": _TURNS, **_TEXT}, "<|im_end|>"),
    "one token begins and ends a text": (
        *("{{ bos_token }}" + CHATML, {"special": _TURNS, "bos": "<|text|>", "eos_token": "<|text|>"}),
        "<|im_end|>",
    ),
    "content in parts": (PARTS, {"special": _TURNS, **_TEXT}, "<|im_end|>"),
}
FAMILIES = {
    name: lambda template=template, form=form, end=end: (byte_tokenizer(template, **form), end)
    for name, (template, form, end) in _KINDS.items()
}
