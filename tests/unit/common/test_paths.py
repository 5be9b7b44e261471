from contextlib import suppress
from pathlib import Path

import pytest

from tepo.common import paths


def test_within_one_look_files_are_those_of_its_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    (tmp_path / "evals").mkdir()

    def known(name: str) -> bool:
        return name in paths.names("evals")

    with suppress(KeyError), paths.one_look():
        assert not known("mine")
        (tmp_path / "evals/mine.yaml").touch()
        with paths.one_look():
            assert not known("mine"), "one within another is a part of it"
        assert not known("mine")
        raise KeyError
    assert known("mine")
    with paths.one_look():
        assert known("mine")
