"""Ranks are threads with a real barrier and real files; processes are in `tests/integration/test_kill_rank.py`."""

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tepo.common.errors import UserError
from tepo.common.files import file_digest
from tepo.store.checkpoint_files import TensorFile, damage
from tepo.store.run_folder import RunFolder
from tepo.training.checkpoints.saver import Saver
from tepo.training.engine import optimizer_state
from tepo.training.engine.optimizer_state import Piece
from tepo.training.loop import train
from tepo.training.run import Run
from tests.support.runs import small, write_files
from tests.unit.training.rollout.test_collector import Exchange

SEVERAL = 2


def on_two_ranks(run: RunFolder, work: Any) -> list[BaseException | None]:
    shared, slots = threading.Barrier(SEVERAL), [None] * SEVERAL
    ends: list[BaseException | None] = [None] * SEVERAL

    def one(rank: int) -> None:
        try:
            with Saver(run, Exchange(rank, slots, shared)) as saver:  # type: ignore[arg-type]
                work(saver, rank)
        except BaseException as error:
            ends[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(SEVERAL)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    return ends


def part(rank: int) -> list[TensorFile]:
    return [TensorFile(f"{rank}.safetensors", {"a": torch.full((5,), rank)})]


def test_what_is_saved_is_the_state_at_that_moment(tmp_path: Path) -> None:
    run, live = RunFolder(tmp_path), torch.zeros(1000)
    with Saver(run) as saver:
        for step in range(1, 4):
            live.fill_(step)
            saver.save(step, {"prompts": step}, lambda folder: [TensorFile("model.safetensors", {"a": live})])
            live.fill_(-1)  # the next update
        saver.check()
    assert run.checkpoints() == [2, 3]
    assert run.progress(3)["prompts"] == 3
    for step in (2, 3):
        assert load_file(run.checkpoint(step) / "model.safetensors")["a"].eq(step).all()


def test_the_last_one_takes_no_memory_for_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody trains any more is written from where it lies; two names of one tensor are two tensors in a file."""
    run, live = RunFolder(tmp_path), torch.arange(9.0)
    monkeypatch.setattr(TensorFile, "copy", lambda self: pytest.fail("a copy"))
    with Saver(run) as saver:
        saver.save(1, {}, lambda folder: [TensorFile("model.safetensors", {"a": live, "b": live})], over=True)
    read = load_file(run.checkpoint(1) / "model.safetensors")
    assert [name for name, one in read.items() if one.equal(live)] == ["a", "b"]


def test_a_digest_is_of_what_training_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of every kind, small files, one file that the training waited for."""
    tensors = {
        "scalar": torch.tensor(3.0),
        "none": torch.empty(0),
        "bf16": torch.randn(5, 7).to(torch.bfloat16),
        "whole": torch.arange(9),
        "bits": torch.tensor([True, False]),
        "turned": torch.arange(6.0).reshape(2, 3).T,
    }

    def files(folder: Path) -> Iterator[TensorFile]:
        (folder / "small.json").write_text("{}")
        yield TensorFile("model.safetensors", tensors)
        yield TensorFile("optimizer/large.safetensors", {"a": torch.empty(1 << 20, dtype=torch.int8)})

    monkeypatch.setattr("tepo.training.checkpoints.saver._room", lambda ranks, on_cpu: 1000.0)
    run = RunFolder(tmp_path)
    with Saver(run) as saver:
        saver.save(1, {}, files)
    written = run.progress(1)
    assert (
        written["sha256"].keys()
        == written["files"].keys()
        == {"model.safetensors", "optimizer/large.safetensors", "small.json"}
    )
    for name, own in written["sha256"].items():
        assert own == hashlib.sha256((run.checkpoint(1) / name).read_bytes()).hexdigest(), name


def test_a_disk_that_keeps_something_else_is_found_out(tmp_path: Path) -> None:
    file = TensorFile("model.safetensors", {"a": torch.ones(100)}).copy()
    file.write(tmp_path)
    path = tmp_path / file.name
    assert file.digest(tmp_path) == file_digest(path)
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    assert file.digest(tmp_path) != file_digest(path)


def test_both_ranks_write_and_one_checkpoint_appears(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert on_two_ranks(run, lambda saver, rank: saver.save(1, {}, lambda folder: part(rank))) == [None, None]
    assert run.progress(1)["files"].keys() == {"0.safetensors", "1.safetensors"}
    assert not damage(run.checkpoint(1))
    (run.checkpoint(1) / "1.safetensors").unlink()  # copied half
    assert run.checkpoints() == []


def test_without_the_files_of_a_lost_rank_nothing_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tepo.training.checkpoints.saver._GRACE", 0.3)
    run, gone = RunFolder(tmp_path), threading.Event()

    def endless(folder: Path) -> Iterator[TensorFile]:
        gone.set()
        raise SystemExit  # a rank that ends in the middle
        yield

    def work(saver: Saver, rank: int) -> None:
        saver.save(1, {}, lambda folder: part(rank))
        saver.finish()
        saver.save(2, {}, endless if rank else lambda folder: part(0))
        gone.wait()
        raise RuntimeError("Connection closed by peer")

    errors = on_two_ranks(run, work)
    assert [type(error) for error in errors] == [RuntimeError, SystemExit]
    assert run.checkpoints() == [1]
    assert list((tmp_path / "checkpoints").iterdir()) == [run.checkpoint(1)]


def test_a_rank_that_cannot_write_ends_all_with_its_message(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)

    def blocked(folder: Path, rank: int) -> list[TensorFile]:
        if rank == 1:
            (folder / "1.safetensors").mkdir()  # in the way
        return part(rank)

    def work(saver: Saver, rank: int) -> None:
        saver.save(1, {}, lambda folder: part(rank))
        saver.save(2, {}, lambda folder: blocked(folder, rank))
        saver.finish()

    first, second = on_two_ranks(run, work)
    assert {type(first), type(second)} == {UserError}
    assert first.what == f"rank 1: {second.what}"
    assert "a folder is in the way" in second.what
    assert run.checkpoints() == [1]


def test_by_the_clock_a_checkpoint_is_due_ten_minutes_after_the_last_on_the_first_rank(tmp_path: Path) -> None:
    found: dict[int, list[bool]] = {}

    def work(saver: Saver, rank: int) -> None:
        due = [saver.is_due(1, None)]
        saver._written_at -= 601 if rank == 0 else 0
        due.append(saver.is_due(2, None))
        saver.save(2, {}, lambda folder: part(rank))
        due.append(saver.is_due(3, None))
        saver.finish()
        found[rank] = [*due, saver.is_due(4, None), saver.is_due(4, 2), saver.is_due(4, 3)]

    assert on_two_ranks(RunFolder(tmp_path), work) == [None, None]
    assert found[0] == found[1] == [False, True, False, False, True, False]


def test_a_checkpoint_that_takes_long_to_write_is_made_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that takes 100 seconds is followed by the next after 1,000; one that takes 20, after ten minutes."""
    clock, took = [0.0], [100.0]
    monkeypatch.setattr("tepo.training.checkpoints.saver.time.monotonic", lambda: clock[0])

    def slow(folder: Path) -> list[TensorFile]:
        clock[0] += took[0]
        return part(0)

    with Saver(RunFolder(tmp_path)) as saver:
        for took[0], gap in ((100.0, 1000), (20.0, 600)):
            saver.save(1, {}, slow)
            saver.finish()
            clock[0] += gap - 1
            assert not saver.is_due(2, None)
            clock[0] += 1
            assert saver.is_due(2, None)


@pytest.mark.parametrize(("limit", "on_cpu"), [("ROOM", False), ("_SMALL", True)])
def test_without_memory_for_copies_the_training_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, on_cpu: bool
) -> None:
    """On a CPU that trains itself it waits for large files however much memory is free."""
    run, alive = RunFolder(tmp_path), []
    monkeypatch.setattr(f"tepo.training.checkpoints.saver.{limit}", 0)

    def files(folder: Path) -> Iterator[TensorFile]:
        for name in "ab":
            yield TensorFile(f"{name}.safetensors", {"a": torch.ones(5)})
            alive.append((folder / f"{name}.safetensors").is_file())  # written before the next is made

    with Saver(run, on_cpu=on_cpu) as saver:
        saver.save(1, {}, files)
    assert alive == [True, True]
    assert run.checkpoints() == [1]


def test_a_run_on_the_cpu_waits_for_large_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tepo.training.checkpoints.saver._SMALL", 0)
    monkeypatch.setattr(TensorFile, "copy", lambda self: pytest.fail("a copy"))
    folder = train(Run(small(tmp_path, "train.steps=2", "train.checkpoint_every=1")))
    assert RunFolder(folder).checkpoints() == [2]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_pieces_of_any_number_of_ranks_are_the_full_state(tmp_path: Path, ranks: int) -> None:
    """Cut unevenly into runs, read by one of another number of ranks."""
    full = torch.arange(35.0).reshape(5, 7)
    for rank, part in enumerate(full.flatten().tensor_split(ranks)):
        start = int(part[0])
        piece = Piece("exp_avg", "w", part if ranks > 1 else full, start if ranks > 1 else None)
        write_files(tmp_path, optimizer_state.files([piece], rank))
    for start, size in ((0, 35), (3, 11), (14, 21), (34, 1)):
        mine = torch.full((size,), -1.0)
        for piece in optimizer_state.read(tmp_path, {}):
            own, values = piece.overlap(start, size)
            mine[own] = values
        assert mine.tolist() == list(range(start, start + size))
