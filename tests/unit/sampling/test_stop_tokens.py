import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from tepo.common.errors import UserError
from tepo.common.paths import PACKAGE
from tepo.sampling.stop_tokens import stop_tokens, stop_tokens_of
from tests.support.models import TOKENIZER, tiny_model

EOS = 2  # of the shipped bases, which have 42 rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A base without its weights, which no stop token is read from."""
    for file in (PACKAGE / "assets/laptop").glob("*.json"):
        shutil.copy(file, tmp_path)
    (tmp_path / "model.safetensors").touch()
    return tmp_path


def declare(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("declared", "stop"), [(None, [EOS]), ([], [EOS]), (5, [EOS, 5]), ([41, EOS, 0], [0, EOS, 41]), (0, [0, EOS])]
)
def test_valid_ids_are_taken(folder: Path, declared: Any, stop: list[int]) -> None:
    declare(folder / "generation_config.json", eos_token_id=declared)
    assert stop_tokens_of(str(folder)) == stop


@pytest.mark.parametrize("value", [-1, 42, "2", True, 2.0, [2, None], [[2]], {"a": 2}])
def test_what_is_no_row_of_the_vocabulary_is_refused(folder: Path, value: Any) -> None:
    declare(folder / "generation_config.json", eos_token_id=value)
    with pytest.raises(UserError, match=r"eos_token_id is .*, which is no row of the vocabulary \(0 to 41\)") as found:
        stop_tokens_of(str(folder))
    assert found.value.where == str(folder / "generation_config.json")


def test_without_generation_settings_the_configuration_counts(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    declare(folder / "config.json", eos_token_id=[EOS, 7])
    assert stop_tokens_of(str(folder)) == [EOS, 7]
    declare(folder / "config.json", eos_token_id=42)
    with pytest.raises(UserError, match=r"is 42, which is no row.*\n.*/config\.json"):
        stop_tokens_of(str(folder))


def test_an_end_that_the_vocabulary_lacks_is_refused(folder: Path) -> None:
    """The tokenizer gives it a number behind all others, which the model has no row for."""
    declare(folder / "tokenizer_config.json", eos_token="<|im_end|>")
    with pytest.raises(UserError, match=r"is 42, which is no row.*\n.*tokenizer_config\.json"):
        stop_tokens_of(str(folder))


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_damaged_generation_settings_are_not_passed_over(folder: Path, text: str) -> None:
    (folder / "generation_config.json").write_text(text)
    with pytest.raises(UserError, match=r"generation_config.json is damaged: .*\n.*generation_config\.json"):
        stop_tokens_of(str(folder))


def test_a_model_that_names_no_end_is_said_to(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model(eos_token_id=None)
    tokenizer = type("Silent", (), {"eos_token_id": None})()
    with caplog.at_level(logging.WARNING):
        assert stop_tokens(model, tokenizer) == []
    assert "name a token that ends a response: all are cut off" in caplog.text
    caplog.clear()
    assert stop_tokens(tiny_model(), TOKENIZER) == [TOKENIZER.eos_token_id]
    assert not caplog.text
