import json
import shutil
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.policy.model.model_location import base_fingerprint, resolve


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "records").mkdir()
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def known(user: Path, **bases: object) -> None:
    (user / "records" / "bases.json").write_text(json.dumps(bases))


def test_a_base_that_is_gone_has_the_hash_on_record(user: Path) -> None:
    shutil.copytree(resolve("package:laptop"), user / "mine")
    there = base_fingerprint("mine", None)
    known(user, mine={"hash": there, "made": {"command": "tepo model warmstart mine", "cpu": "Fast"}})
    shutil.rmtree("mine")
    assert base_fingerprint("mine", None) == there
    with pytest.raises(UserError, match="on record, and its files are not here") as refused:
        resolve("mine")
    assert "tepo model warmstart mine" in str(refused.value.fix)


def test_a_base_that_is_there_has_the_hash_of_its_files(user: Path) -> None:
    shutil.copytree(resolve("package:laptop"), user / "mine")
    known(user, mine={"hash": "of another", "made": {}})
    assert base_fingerprint("mine", None) == base_fingerprint("package:laptop", None)


@pytest.mark.parametrize("text", ["[]", "{", '{"mine": {"made": {}}}'])
def test_a_damaged_file_names_itself(user: Path, text: str) -> None:
    (user / "records" / "bases.json").write_text(text)
    with pytest.raises(UserError, match="the bases on record are damaged") as refused:
        base_fingerprint("mine", None)
    assert "bases.json" in str(refused.value.where)
