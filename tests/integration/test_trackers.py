import json
import logging
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tepo.store.run_folder import RunFolder
from tepo.training.loop import train
from tepo.training.run import Run
from tests.support.commands import OwnSignal, python, started, tepo
from tests.support.runs import SMALL, assert_same_run, few_problems, small, write

pytestmark = pytest.mark.disaster

STEPS = "train.steps=6"
NAMES = ("critic/score/mean", "perf/throughput", "timing_per_token_ms/update_actor", "perf/left_over")
ALL = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("wandb", "tensorboard", "trackio")]
READ_TRACKIO = """
import json, sys
from trackio.sqlite_storage import SQLiteStorage as storage
(run,) = storage.get_run_records("tepo")
config = storage.get_run_config("tepo", run["name"], run_id=run["id"])
rows = storage.get_logs("tepo", run["name"], run_id=run["id"])
print(json.dumps({"name": run["name"], "config": config, "rows": rows}))
"""


Shown = tuple[list[dict[str, float]], dict[str, float], str]
"""What a tracker has: figures by step, scores, and the objective of the configuration."""


def of_wandb(run: RunFolder, place: Path) -> Shown:
    from wandb.proto import wandb_internal_pb2

    rows, config, scores = [], {}, {}
    for log in sorted((run.path / "wandb").glob("offline-run-*/run-*.wandb")):
        for data in records(log.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "history":
                items = record.history.item
                rows.append({item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items})
            if kind == "run":
                config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            if kind == "summary":
                scores |= {item.key: json.loads(item.value_json) for item in record.summary.update}
    figures = [{name: row[name] for name in NAMES} | {"step": row["training/global_step"]} for row in rows]
    return figures, {k: v for k, v in scores.items() if k.startswith("eval/")}, config["objective"]["name"]


def of_tensorboard(run: RunFolder, place: Path) -> Shown:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    columns = {name: [event.value for event in events.Scalars(name)] for name in NAMES}
    columns["step"] = [event.step for event in events.Scalars(NAMES[0])]
    figures = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    scores = {tag: events.Scalars(tag)[0].value for tag in events.Tags()["scalars"] if tag.startswith("eval/")}
    text = events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    return figures, scores, text.split("\n  name: ")[1].split("\n")[0]


def of_trackio(run: RunFolder, place: Path) -> Shown:
    read = json.loads(python("-c", READ_TRACKIO, TRACKIO_DIR=str(place)).stdout)
    assert read["name"] == f"tepo-0-{run.path.name}"
    figures = [{name: row[name] for name in (*NAMES, "step")} for row in read["rows"] if NAMES[0] in row]
    scores = {name: value for row in read["rows"] for name, value in row.items() if name.startswith("eval/")}
    return figures, scores, read["config"]["objective"]["name"]


def records(content: bytes) -> Iterator[bytes]:
    """Of wandb's log: 7 bytes, then LevelDB's format (blocks of 32 KiB; a record may go on in the next block)."""
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


READ = {"wandb": of_wandb, "tensorboard": of_tensorboard, "trackio": of_trackio}


@pytest.mark.parametrize("name", ALL)
def test_after_a_kill_each_step_is_there_once_with_the_scores(name: str, tmp_path: Path) -> None:
    place = tmp_path / "trackio"
    environment = {"TRACKIO_DIR": str(place), **few_problems(tmp_path)}
    words = (*SMALL, STEPS, "train.checkpoint_every=2", "data.benchmarks=[add3]", "tracking.offline=true")
    line = ("train", *words, f"tracking.to=[{name}]", f"store={tmp_path / 'runs'}", "--quiet")
    run = RunFolder.of(small(tmp_path / "runs", *words))
    # killed when the line of step 4 is written, before its checkpoint is there: steps 3 and 4 are trained again
    a_kill = OwnSignal(signal.SIGKILL, run.path, "open */checkpoints/.step_000004/*", 0)
    started(*line, own_signal=a_kill, **environment).end(code=-signal.SIGKILL)
    assert [row["training/global_step"] for row in run.metrics()] == [1, 2, 3, 4]
    tepo(*line, **environment)
    tepo(*line, "--evaluate", **environment)
    rows, scores, objective = READ[name](run, place)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    for row, written in zip(rows, run.metrics(), strict=True):
        again = row["step"] in (3, 4) and name == "trackio"  # which keeps the seconds of the step that it has
        for one in NAMES if not again else NAMES[:1]:
            assert row[one] == pytest.approx(written[one], rel=1e-6)
    assert scores == pytest.approx({f"eval/add3/{key}": value for key, value in run.result("add3").scores.items()})
    assert objective == "tepo"


@pytest.mark.tensorboard
def test_one_that_fails_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """TensorBoard's place is taken by a file where it wants a folder."""
    config = small(tmp_path / "runs", "tracking.to=[tensorboard]")
    write(RunFolder.of(config).path / "tensorboard", "")
    with caplog.at_level(logging.WARNING):
        folder = train(Run(config))
    assert_same_run(folder, train(Run(small(tmp_path / "others"))))
    said = [one.message.partition(":")[0] for one in caplog.records if one.name.startswith("tepo")]
    assert said == ["tensorboard fails and gets no more of this run"]
