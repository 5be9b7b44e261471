import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tepo.common.errors import RunFailed, UserError
from tepo.jobs.clean_process import in_child
from tests.support.processes import runs

pytestmark = pytest.mark.slow
ROOT = str(Path(__file__).resolve().parents[3])
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT", "KEPT")


@pytest.fixture(autouse=True)
def children_find_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child does not look into the current folder."""
    monkeypatch.setenv("PYTHONPATH", ROOT)


def write_environment(path: Path) -> None:
    """The launcher's variables that it sees."""
    path.write_text(" ".join(sorted(set(os.environ) & set(VARIABLES))))


def fail(kind: str) -> None:
    if kind == "user":
        raise UserError("what", where="where", fix="fix", exit_code=3)
    if kind == "run":
        raise RunFailed("what", where="where")
    os._exit(9)


def test_it_sees_no_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "1")
    in_child(write_environment, tmp_path / "seen")
    assert (tmp_path / "seen").read_text() == "KEPT LOCAL_WORLD_SIZE"  # the second: how many GPUs were the run's


def test_what_goes_wrong_in_it_is_raised_here() -> None:
    with pytest.raises(UserError, match="what") as caught:
        in_child(fail, "user")
    assert (caught.value.where, caught.value.fix, caught.value.exit_code) == ("where", "fix", 3)
    with pytest.raises(RunFailed, match="what"):
        in_child(fail, "run")
    with pytest.raises(RunFailed, match="exit code 9"):
        in_child(fail, "killed")


def hold(folder: Path) -> None:
    """Say who this is, and stay."""
    (folder / str(os.getpid())).touch()
    time.sleep(180)


def test_it_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from tests.unit.jobs.test_clean_process import hold\n"
    code += "from tepo.jobs.clean_process import in_child\nin_child(hold, Path(sys.argv[1]))"
    with subprocess.Popen([sys.executable, "-c", code, tmp_path]) as parent:
        limit = time.monotonic() + 120
        while not list(tmp_path.iterdir()) and parent.poll() is None and time.monotonic() < limit:
            time.sleep(0.01)
        children = [int(child.name) for child in tmp_path.iterdir()]
        assert [*map(runs, children)] == [True]
        parent.kill()
    limit = time.monotonic() + 60
    while any(map(runs, children)) and time.monotonic() < limit:
        time.sleep(0.01)
    assert [*map(runs, children)] == [False]
