import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Started, _run_module, tepo
from tests.support.runs import SMALL

pytestmark = pytest.mark.disaster

WORDS = ("train", *SMALL, "--quiet", "--store")


def killed_at(call: str, place: str, *words: str) -> None:
    """The command, killed after it has unlinked or before it renames the first file whose path matches."""
    real = getattr(os, call)

    def watched(*paths: Any, dir_fd: int | None = None) -> None:
        folder = "" if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
        here = re.search(place, " ".join(map(str, (folder, *paths))))
        if call == "unlink" or not here:
            real(*paths, **({} if dir_fd is None else {"dir_fd": dir_fd}))
        if here:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(os, call, watched)
    _run_module("tepo_cli", *words)


def names(store: Path) -> list[str]:
    """What a store holds, without the folders of runs by name: there is one."""
    (run,) = store.iterdir()
    return sorted(str(path.relative_to(run)) for path in run.rglob("*"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    store = tmp_path_factory.mktemp("undisturbed")
    tepo(*WORDS, store)
    return names(store)


@pytest.mark.parametrize(
    ("call", "place"),
    [
        pytest.param("replace", r"/\.manifest\.json\.", id="a file is written"),
        pytest.param("replace", r"/\.step_000002 ", id="a checkpoint is committed"),
        pytest.param("unlink", r"step_000001(?!.*rank_)", id="an old checkpoint is removed"),
        pytest.param("unlink", r"step_000002(?!.*rank_)", id="the last but one, of a finished run"),
        pytest.param("unlink", r"/step_000003/optimizer", id="what a finished run needs no more"),
        pytest.param("replace", r"/\.cost\.json\.", id="a file of a finished run"),
    ],
)
def test_a_kill_leaves_nothing_after_the_next_start(
    call: str, place: str, tmp_path: Path, undisturbed: list[str]
) -> None:
    Started(killed_at, call, place, *WORDS, str(tmp_path)).end(code=-signal.SIGKILL)
    tepo(*WORDS, tmp_path)
    assert [name for name in names(tmp_path) if name != "cost.json"] == [
        name for name in undisturbed if name != "cost.json"
    ]
