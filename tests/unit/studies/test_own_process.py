"""A process of its own to measure in: what it sees, what it costs, and what goes wrong in it."""

import os
import time
from pathlib import Path

import pytest

from tepo.config.compose import compose
from tepo.errors import RunFailed, UserError
from tepo.studies.own_process import in_own_process, measures_apart

pytestmark = pytest.mark.slow
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT", "KEPT")


def write_environment(path: Path) -> None:
    """The launcher's variables that it sees, and half a second of work."""
    end = time.process_time() + 0.5
    while time.process_time() < end:
        pass
    path.write_text(" ".join(sorted(set(os.environ) & set(VARIABLES))))


def fail(kind: str) -> None:
    if kind == "user":
        raise UserError("what", where="where", fix="fix", exit_code=3)
    if kind == "run":
        raise RunFailed("what", where="where")
    if kind == "other":
        raise KeyError("not for people")
    os._exit(9)


def test_it_sees_no_launcher_and_its_time_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "1")
    assert 0.5 < in_own_process(write_environment, tmp_path / "seen") < 60
    assert (tmp_path / "seen").read_text() == "KEPT LOCAL_WORLD_SIZE"  # the second: how many GPUs were the run's


def test_what_goes_wrong_in_it_is_raised_here() -> None:
    with pytest.raises(UserError, match="what") as caught:
        in_own_process(fail, "user")
    assert (caught.value.where, caught.value.fix, caught.value.exit_code) == ("where", "fix", 3)
    with pytest.raises(RunFailed, match="what"):
        in_own_process(fail, "run")
    with pytest.raises(RunFailed, match="exit code 9"):
        in_own_process(fail, "killed")
    with pytest.raises(RunFailed, match="exit code 1"):
        in_own_process(fail, "other")


def test_who_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM after training; of several ranks whatever sampler. The embedded sampler alone does not."""
    embedded, vllm, servers = (compose([f"sampler={kind}"]) for kind in ("torch", "vllm", "vllm_server"))
    assert [measures_apart(config, True) for config in (embedded, vllm, servers)] == [False, True, False]
    assert not measures_apart(vllm, False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert all(measures_apart(config, trained) for config in (embedded, vllm) for trained in (True, False))
