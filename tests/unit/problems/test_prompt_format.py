"""What the policy sees: instruction, template, thinking mode, special tokens."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tepo.common.errors import UserError
from tepo.problems.prompt_format import BOXED_INSTRUCTION, encode_prompts, render_prompt

PLAIN = "{% for m in messages %}<user>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
SWITCH = PLAIN + (
    "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% endif %}"
)
OPENS = PLAIN + "{% if add_generation_prompt %}<think>\n{% endif %}"
LEAVES = PLAIN + "{# the model writes <think> itself, </think> is cut from history #}"
REQUEST = "1+1?\n\n" + BOXED_INSTRUCTION


def tokenizer(template=None):
    """Bytes as tokens; `<s>` in front of what is no chat."""
    vocabulary = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))} | {
        "<s>": 256
    }
    core = Tokenizer(models.BPE(vocabulary, [], unk_token="<s>"))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    from tokenizers.processors import TemplateProcessing

    core.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    made = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>")
    made.chat_template = template
    return made


def test_a_raw_set_is_never_wrapped():
    for template in (None, PLAIN):
        assert render_prompt("7*8=", tokenizer(template)) == "7*8="


@pytest.mark.parametrize(
    ("template", "wrap", "expected"),
    [
        (PLAIN, "auto", f"<user>{REQUEST}<assistant>"),
        (None, "auto", f"Question:\n{REQUEST}\n\nAnswer:\n"),
        (PLAIN, "base", f"Question:\n{REQUEST}\n\nAnswer:\n"),
        (PLAIN, "raw", REQUEST),
    ],
)
def test_what_goes_around_a_boxed_request(template, wrap, expected):
    assert render_prompt("1+1?", tokenizer(template), prompt="boxed", wrap=wrap) == expected


@pytest.mark.parametrize(
    ("template", "thinking", "ending"),
    [
        (SWITCH, None, "<assistant>"),
        (SWITCH, True, "<assistant>"),
        (SWITCH, False, "<assistant><think>\n\n</think>\n\n"),
        (OPENS, None, "<assistant><think>\n"),
        (OPENS, True, "<assistant><think>\n"),
        (OPENS, False, "<assistant><think>\n\n</think>\n\n"),
        (LEAVES, None, "<assistant>"),
        (LEAVES, True, "<assistant><think>\n"),
        (LEAVES, False, "<assistant><think>\n\n</think>\n\n"),
    ],
)
def test_thinking_is_what_was_asked_for(template, thinking, ending):
    assert render_prompt("1+1?", tokenizer(template), prompt="boxed", thinking=thinking) == f"<user>{REQUEST}{ending}"


def test_settings_that_cannot_be_met_are_refused():
    with pytest.raises(UserError, match="no thinking mode"):
        render_prompt("1", tokenizer(PLAIN), prompt="boxed", thinking=True)
    with pytest.raises(UserError, match="no chat template is in use"):
        render_prompt("1", tokenizer(), prompt="boxed", thinking=False)
    with pytest.raises(UserError, match="did you mean 'boxed'"):
        render_prompt("1", tokenizer(), prompt="box")
    with pytest.raises(UserError, match="did you mean 'base'"):
        render_prompt("1", tokenizer(), prompt="boxed", wrap="bas")


def test_a_prompt_of_ones_own_is_wrapped_as_a_boxed_one_is():
    ask = "Solve {problem} now."
    assert render_prompt("1+1", tokenizer(), prompt=ask, wrap="raw") == "Solve 1+1 now."
    assert render_prompt("1+1", tokenizer(), prompt=ask) == "Question:\nSolve 1+1 now.\n\nAnswer:\n"
    assert render_prompt("1+1", tokenizer(PLAIN), prompt=ask).startswith("<user>Solve 1+1 now.")


def test_braces_in_a_statement_are_left_alone():
    assert render_prompt(r"{problem} {request} \frac{1}{2}", tokenizer(), prompt="boxed", wrap="raw").startswith(
        r"{problem} {request} \frac{1}{2}"
    )


def test_a_chat_prompt_gets_no_second_start_token():
    chat, base = tokenizer("<s>" + PLAIN), tokenizer()
    assert encode_prompts(["1", "2"], chat, prompt="boxed")[0].count(256) == 1
    assert [ids[0] for ids in encode_prompts(["1", "2"], base, prompt="boxed")] == [256, 256]
    assert encode_prompts([], base) == []
