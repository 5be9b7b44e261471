"""Tokens that steer a model rather than say something: starts and ends of a text and of a turn."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

_AROUND = ("<>", "[]", "||")  # <|im_end|>, <think>, [INST]: first and last character of what looks like a tag


def control_tokens(tokenizer: Any, template: str = "") -> dict[int, str]:
    """Id and text of each control token: what the tokenizer calls special, and added tokens that look like tags and
    that the chat template names. A token for what the tokenizer does not know is none."""
    special, added = set(tokenizer.all_special_ids) - {None}, getattr(tokenizer, "added_tokens_decoder", {})
    controls = {index: str(tokenizer.convert_ids_to_tokens(index)) for index in special - added.keys()}
    for index, token in added.items():
        word = token.content.strip()
        tag = len(word) > 2 and word[0] + word[-1] in _AROUND and word in template
        if token.special or index in special or tag:
            controls[index] = token.content
    for unknown in ids_of(tokenizer, "unk") - ids_of(tokenizer, "bos", "eos", "sep"):
        controls.pop(unknown, None)
    return controls


def ids_of(tokenizer: Any, *names: str) -> set[int]:
    """Ids of the special tokens of these names that the tokenizer has."""
    texts = (tokenizer.special_tokens_map.get(f"{name}_token") for name in names)
    return {tokenizer.convert_tokens_to_ids(str(text)) for text in texts if text is not None} - {None}


def marked(ids: Sequence[int], tokenizer: Any, controls: Mapping[int, str]) -> str:
    """The text of tokens, control tokens in « »."""
    parts = []
    for control, run in groupby(ids, controls.__contains__):
        run_ids = list(run)
        parts += [f"«{controls[index]}»" for index in run_ids] if control else [str(tokenizer.decode(run_ids))]
    return "".join(parts)


def listed(ids: Sequence[int], tokenizer: Any, controls: Mapping[int, str]) -> list[str]:
    """A line for each token: its id, and its text as Python writes it, control tokens in « »."""
    texts = (f"«{controls[index]}»" if index in controls else repr(tokenizer.decode([index])) for index in ids)
    return [f"{index:>7}  {text}" for index, text in zip(ids, texts, strict=True)]
