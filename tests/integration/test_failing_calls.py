import errno
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tepo.common.errors import UserError
from tepo.common.files import replace_folder, write_atomic
from tests.failing_calls.supervisor import Call, supervised, unavailable
from tests.support.commands import program

_REASON = unavailable()
pytestmark = pytest.mark.skipif(bool(_REASON), reason=_REASON)


def failing(kind: str, number: int) -> Callable[[Call], int]:
    """Each call of a kind fails."""
    return lambda call: number if call.kind == kind else 0


def test_calls_are_seen_whoever_makes_them_and_only_below_the_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    seen: list[Call] = []

    def work() -> None:
        write_atomic(outside / "a", "text")
        write_atomic(inside / "folder/b", "text")
        save_file({"x": torch.zeros(2)}, inside / "c")  # Rust, without libc between

    ended = supervised(work, inside, lambda call: seen.append(call) or 0)
    assert ended.code == 0, ended.said
    kinds = [call.kind for call in seen]
    assert kinds[:5] == ["mkdir", "open", "write", "fsync", "rename"]
    assert Call("rename", "folder/b") in seen
    assert Call("rename", "c") in seen
    assert (outside / "a").read_text() == (inside / "folder/b").read_text() == "text"


@pytest.mark.parametrize("kind", ["mkdir", "open", "write", "fsync", "rename"])
def test_a_file_that_cannot_be_written_is_one_message_and_leaves_nothing(tmp_path: Path, kind: str) -> None:
    def work() -> None:
        with pytest.raises(UserError, match="cannot write") as raised:
            write_atomic(tmp_path / "new/file", "text")
        assert raised.value.exit_code == 1

    ended = supervised(work, tmp_path, failing(kind, errno.EIO))
    assert ended.code == 0, ended.said
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_folder_whose_successor_cannot_be_put_in_place_stays(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(name)
    renames = 0

    def second(call: Call) -> int:
        nonlocal renames
        renames += call.kind == "rename"
        return errno.ENOSPC if call.kind == "rename" and renames == 2 else 0

    def work() -> None:
        with pytest.raises(OSError, match="No space left"):
            replace_folder(tmp_path / "new", tmp_path / "old")

    ended = supervised(work, tmp_path, second)
    assert ended.code == 0, ended.said
    assert (tmp_path / "old/name").read_text() == "old"


@pytest.mark.disaster
def test_a_run_its_evaluation_page_and_record_end_with_the_same_bits_or_one_message() -> None:
    """Every fifth call with ENOSPC and with a death before it; a sample of the other faults. A change to how the store
    writes is tried with all of them: `python -m tests.failing_calls`."""
    said = program("tests.failing_calls", "--every", "5").end(1800).stdout
    trials = {(kind, fault): int(count) for kind, fault, count in map(str.split, said.splitlines())}
    kinds = {"write", "fsync", "rename", "unlink", "mkdir", "open"}
    assert {kind for kind, fault in trials if fault in ("death", "ENOSPC")} >= kinds
    assert sum(trials.values()) > 60
