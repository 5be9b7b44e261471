"""wandb in offline mode: the real package, no network."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tepo.store.run_folder import RunFolder
from tepo.training.loop import train
from tests.unit.training.small import small


def records(content: bytes) -> Iterator[bytes]:
    """The records of wandb's transaction log: a 7-byte file header, then LevelDB's log format (32 KiB blocks of
    checksum, length, type and payload; a record may go on in the next block)."""
    place, parts = 7, b""
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


@pytest.mark.disaster
def test_offline_mirror_holds_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: pip install -e '.[wandb]'")
    monkeypatch.setenv("WANDB_SILENT", "true")
    folder = train(small(tmp_path, "wandb.mode=offline", "wandb.project=test", "train.steps=2"))
    (log,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    from wandb.proto import wandb_internal_pb2

    rows, config = [], {}
    for data in records(log.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            rows.append({item.key or ".".join(item.nested_key): item.value_json for item in record.history.item})
        if record.WhichOneof("record_type") == "run":
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
    assert config["objective"] == RunFolder(folder).config()["full"]["objective"]
    assert config["objective"]["formula"]["kl"] == "kl_old"  # what the loss is computed with
    written = RunFolder(folder).metrics()
    assert [int(row["training/global_step"]) for row in rows] == [1, 2]
    for name in ("critic/score/mean", "perf/throughput", "timing_per_token_ms/update_actor", "perf/left_over"):
        assert [float(row[name]) for row in rows] == [row[name] for row in written]
