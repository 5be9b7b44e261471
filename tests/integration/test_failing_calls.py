from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tepo.common.files import write_atomic
from tests.failing_calls.supervisor import Call, supervised, unavailable
from tests.support.commands import program

_REASON = unavailable()
pytestmark = pytest.mark.skipif(bool(_REASON), reason=_REASON)


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


@pytest.mark.disaster
def test_a_run_its_evaluation_page_and_record_end_with_the_same_bits_or_one_message() -> None:
    """Every fifth call with ENOSPC and with a death before it; a sample of the other faults. A change to how the store
    writes is tried with all of them: `python -m tests.failing_calls`."""
    said = program("tests.failing_calls", "--every", "5").end(1800).stdout
    trials = {(kind, fault): int(count) for kind, fault, count in map(str.split, said.splitlines())}
    kinds = {"write", "fsync", "rename", "unlink", "mkdir", "open"}
    assert {kind for kind, fault in trials if fault in ("death", "ENOSPC")} >= kinds
    assert sum(trials.values()) > 60
