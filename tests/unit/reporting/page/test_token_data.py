import json
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.store.stored_tokens import read_dump


def response(tokens: list[str], **values: list) -> dict:
    kept = {"prompt": "12+34=", "answer": "46", "reward": 1.0, "finished": True, "group": 0}
    return {**kept, "tokens": tokens, "values": values}


def dump(*responses: dict) -> dict:
    return {"format": 1, "step": 4, "objective": "tepo", "responses": list(responses)}


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
        ({"format": 9, "responses": []}, "found 9"),
        ({"format": 1}, "responses"),
        (dump(response(["1"]), response(["1", "2"], entropy=[0.1])), "'entropy' does not have 2 numbers"),
        (dump(response(["1"], entropy=["a lot"])), ""),
        (dump(response(["\ud800"])), ""),
        (dump(response(["a"]) | {"reward": None}), ""),
        (dump(response(["a"], advantage=[10**400])), ""),
    ],
    ids=range(9),
)
def test_damaged_dumps_are_named(tmp_path: Path, data: object, message: str) -> None:
    path = tmp_path / "step_000004.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    with pytest.raises(UserError, match=f"not a token dump.*{message}") as caught:
        read_dump(path)
    assert caught.value.where == str(path)
