"""Token dumps: what is accepted, what kind each token is, and how many of a kind the mask takes."""

import json
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.reporting.page.token_classes import token_classes
from tepo.reporting.page.token_data import class_rows, mask_of
from tepo.store.stored_tokens import parse_dump, read_dump


def response(tokens: list[str], **values: list) -> dict:
    return {"prompt": "12+34=", "answer": "46", "reward": 1.0, "tokens": tokens, "values": values}


def dump(*responses: dict) -> dict:
    return {"format": 1, "step": 4, "objective": "tepo", "responses": list(responses)}


@pytest.mark.parametrize(
    ("tokens", "classes"),
    [
        (["1", "2", "+", "3", "=", "15", ";"], "digit digit operator digit operator digit other"),
        (["so", " the", "\n", "\\boxed{", "4", "6", "}", "<eos>"], "word word other word answer answer operator other"),
        (["\\boxed{1}", " ", "\\boxed{", "-", "2", "}"], "digit other word answer answer operator"),
        (["\\boxed{", "\\frac{", "1", "}{", "2", "}", "}"], "word answer answer answer answer answer operator"),
        (["\\boxed{", "7"], "word digit"),  # cut off: no complete answer
        (["\\boxed{3}\\boxed{", "7"], "digit digit"),  # the complete box is the earlier one, inside a single token
        (["a <", "b>c", "", "²"], "word word other digit"),
        ([], ""),
    ],
)
def test_classes(tokens: list[str], classes: str) -> None:
    assert token_classes(tokens) == classes.split()


def test_counts_by_class() -> None:
    one = response(["1", "+", "\\boxed{", "2", "}"], kl_mask=[1, 0, 0, 1, 1])
    _, row = class_rows([("run", parse_dump(dump(one)))])
    assert row == ["run, step 4", "5", "100.0", "50.0", "0.0", "100.0", "–", "60.0"]


def test_tepos_mask_is_worked_out_where_the_objective_has_none() -> None:
    tokens, advantage = ["1", "2", "3", "4"], [1, 1, -1, None]
    known = response(tokens, advantage=advantage, entropy_change=[-0.1, 0.0, -0.1, -0.1])
    masks = [mask_of(one) for one in parse_dump(dump(known, response(tokens, advantage=advantage))).responses]
    assert masks == [[1.0, 0.0, 0.0, None], None]
    assert class_rows([("run", parse_dump(dump(response(tokens))))]) == []


def test_reads_what_the_loop_writes(tmp_path: Path) -> None:
    path = tmp_path / "step_000004.json"
    path.write_text(json.dumps(dump(response(["4", "ö"], entropy=[0.25, float("nan")]))), encoding="utf-8")
    found = read_dump(path)
    assert (found.step, found.objective, len(found.responses)) == (4, "tepo", 1)
    assert found.responses[0].values == {"entropy": [0.25, None]}
    with pytest.raises(UserError, match="cannot read"):
        read_dump(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", ""),
        ("[" * 100_000, ""),
        ([], "expected format 1, found list"),
        ({"format": 9, "responses": []}, "found 9"),
        ({"format": 1}, "no list of responses"),
        (dump({"prompt": "x"}), "response 0 has no list of tokens"),
        (dump(response(["1"]), response(["1", "2"], entropy=[0.1])), "response 1: 'entropy' does not have 2 numbers"),
        (dump(response(["1"], entropy=["a lot"])), "not a number"),
        (dump(response(["\ud800"])), ""),
        (dump(response(["a"]) | {"prompt": "\udfff"}), ""),
        (dump(response(["a"]) | {"reward": None}), ""),
        (dump(response(["a"]) | {"group": []}), ""),
        (dump(response(["a"]) | {"values": [1]}), ""),
        (dump(response(["a"], advantage=[10**400])), ""),
    ],
    ids=range(14),
)
def test_damaged_dumps_are_named(tmp_path: Path, data: object, message: str) -> None:
    path = tmp_path / "step_000004.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    with pytest.raises(UserError, match=f"not a token dump.*{message}") as caught:
        read_dump(path)
    assert caught.value.where == str(path)
