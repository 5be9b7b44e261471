"""Token dumps: what is accepted, what kind each token is, and how many of a kind the mask takes."""

import json
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.reporting.page.token_view import class_counts, mask_of, token_classes
from tepo.store.stored_tokens import parse_dump, read_dump


def response(tokens: list[str], **values: list) -> dict:
    return {"prompt": "12+34=", "answer": "46", "reward": 1.0, "tokens": tokens, "values": values}


def dump(*responses: dict) -> dict:
    return {"format": 1, "step": 4, "objective": "tepo", "responses": list(responses)}


@pytest.mark.parametrize(
    ("tokens", "classes"),
    [
        (
            ["1", "2", "+", "3", "=", "1", "5", ";"],
            ["digit", "digit", "operator", "digit", "operator", "digit", "digit", "other"],
        ),
        (
            ["so", " the", "\n", "4", "\\boxed{", "4", "6", "}", "<eos>"],
            ["word", "word", "other", "digit", "word", "answer", "answer", "operator", "other"],
        ),
        (["\\boxed{1}", " ", "\\boxed{", "-", "2", "}"], ["digit", "other", "word", "answer", "answer", "operator"]),
        (
            ["\\boxed{", "\\frac{", "1", "}{", "2", "}", "}"],
            ["word", "answer", "answer", "answer", "answer", "answer", "operator"],
        ),
        (["\\boxed{", "7"], ["word", "digit"]),  # cut off: no complete answer
        (["\\boxed{3}\\boxed{", "7"], ["digit", "digit"]),  # the complete box is the earlier one, inside a single token
        (["a <", "b>c", "", "²"], ["word", "word", "other", "digit"]),
        ([], []),
    ],
)
def test_classes(tokens: list[str], classes: list[str]) -> None:
    assert token_classes(tokens) == classes


def test_counts_by_class() -> None:
    changes = [-0.5, 0.0, None, -0.1, 0.1]
    one = response(["1", "+", "\\boxed{", "2", "}"], kl_mask=[1, 0, 0, 1, 1], entropy_change=changes)
    parsed = parse_dump(dump(one))
    counts = {count.name: count for count in class_counts(parsed.responses)}
    assert list(counts) == ["digit", "operator", "word", "answer", "all"]
    assert (counts["operator"].tokens, counts["operator"].masked) == (2, 1)
    assert (counts["all"].tokens, counts["all"].masked) == (5, 3)
    assert counts["operator"].means["entropy_change"] == pytest.approx(0.05)
    assert "entropy_change" not in counts["word"].means


def test_tepos_mask_is_worked_out_where_the_objective_has_none() -> None:
    tokens = ["1", "2", "3", "4"]
    parsed = parse_dump(dump(response(tokens, advantage=[1, 1, -1, None], entropy_change=[-0.1, 0.0, -0.1, -0.1])))
    assert mask_of(parsed.responses[0]) == [1.0, 0.0, 0.0, None]
    assert mask_of(parse_dump(dump(response(tokens, advantage=[1, 1, 1, 1]))).responses[0]) is None
    assert class_counts(parse_dump(dump(response(tokens))).responses)[0].masked is None


def test_reads_what_the_loop_writes(tmp_path: Path) -> None:
    path = tmp_path / "step_000004.json"
    path.write_text(json.dumps(dump(response(["4", "ö"], entropy=[0.25, float("nan")]))), encoding="utf-8")
    found = read_dump(path)
    assert (found.step, found.objective, len(found.responses)) == (4, "tepo", 1)
    assert found.responses[0].values == {"entropy": [0.25, None]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a token dump"),
        ("[]", "expected format 1, found list"),
        (json.dumps({"format": 9, "responses": []}), "found 9"),
        (json.dumps({"format": 1}), "no list of responses"),
        (json.dumps(dump({"prompt": "x"})), "response 0 has no list of tokens"),
        (
            json.dumps(dump(response(["1"]), response(["1", "2"], entropy=[0.1]))),
            "response 1: 'entropy' does not have 2 numbers",
        ),
        (json.dumps(dump(response(["1"], entropy=["a lot"]))), "not a number"),
    ],
)
def test_damaged_dumps_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "step_000004.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        read_dump(path)
    assert str(path) in str(caught.value)
    with pytest.raises(UserError, match="cannot read"):
        read_dump(tmp_path / "missing.json")


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(dump(response(["\ud800"]))),
        json.dumps(dump(response(["a"]) | {"prompt": "\udfff"})),
        json.dumps(dump(response(["a"]) | {"reward": None})),
        json.dumps(dump(response(["a"]) | {"group": []})),
        json.dumps(dump(response(["a"]) | {"values": [1]})),
        json.dumps(dump(response(["a"], advantage=[10**400]))),
        "[" * 100_000,
    ],
    ids=str.__len__,
)
def test_a_dump_with_half_a_character_or_an_odd_value_is_one_message(tmp_path: Path, text: str) -> None:
    path = tmp_path / "step_000004.json"
    path.write_text(text)
    with pytest.raises(UserError, match="not a token dump") as caught:
        read_dump(path)
    assert caught.value.where == str(path)
