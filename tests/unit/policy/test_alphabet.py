"""The character tokenizer: ids, round trips, and loading without remote code."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tepo.policy.model.model_location import resolve
from tepo.policy.warmstart import BOX_CLOSE, BOX_OPEN, CHARACTERS, VOCABULARY, build_tokenizer

PIECES = st.lists(st.sampled_from([BOX_OPEN, BOX_CLOSE, *CHARACTERS]), max_size=40)


@pytest.fixture(scope="module", params=["built", "shipped"])
def tokenizer(request):
    return (
        build_tokenizer(256)
        if request.param == "built"
        else AutoTokenizer.from_pretrained(resolve("package:laptop"), trust_remote_code=False)
    )


def test_every_token_is_one_id(tokenizer):
    assert len(tokenizer) == len(VOCABULARY) == 42
    for index, token in enumerate(VOCABULARY):
        assert tokenizer(token)["input_ids"] == [index]
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)


@given(pieces=PIECES)
def test_round_trip(tokenizer, pieces):
    ids = tokenizer("".join(pieces))["input_ids"]
    assert [VOCABULARY[index] for index in ids] == pieces
    assert tokenizer.decode(ids) == "".join(pieces)
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == "".join(pieces)


def test_nothing_is_added_and_unknown_characters_are_dropped(tokenizer):
    assert tokenizer.decode(tokenizer("3+4=")["input_ids"]) == "3+4="
    assert tokenizer.decode(tokenizer("3é+4=\n")["input_ids"]) == "3+4="
