import os
import time
from pathlib import Path

from tepo.config.compose import compose
from tepo.store.live_runs import RECENT, SILENT, live_runs
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import identity


def run(store: Path, seed: int, status: str, rewards: list[float], age: float = 0.0) -> RunFolder:
    config = compose(["scale=laptop", "objective=tepo", "train.steps=8", f"seed={seed}", f"store={store}"])
    folder = RunFolder.of(config)
    folder.path.mkdir(parents=True)
    folder.create(config, identity(config))
    for step, reward in enumerate(rewards, start=1):
        row = {"training/global_step": step, "critic/score/mean": reward, "actor/entropy": 0.5, "timing_s/step": 2.0}
        folder.append_metrics(row | {"response_length/mean": 31.0})
    folder.mark(status)
    moved = time.time() - age
    for file in (folder.metrics_file, folder.manifest_file):
        if file.exists():
            os.utime(file, (moved, moved))
    return folder


def test_runs_that_train_come_with_their_figures_and_what_is_left(tmp_path: Path) -> None:
    first = run(tmp_path, 0, "running", [0.25, 0.5, 0.75], age=10)
    second = run(tmp_path, 1, "finished", [0.5] * 8, age=60)
    run(tmp_path, 2, "finished", [0.5] * 8, age=2 * RECENT)
    one, other = live_runs(tmp_path)
    assert (one.id, one.objective, one.seed, one.status) == (first.path.name, "tepo", 0, "running")
    assert (one.step, one.steps, one.reward, one.left) == (3, 8, 0.75, 10.0)
    assert (other.id, other.status, other.left) == (second.path.name, "finished", None)


def test_a_run_that_stopped_writing_is_called_silent(tmp_path: Path) -> None:
    run(tmp_path, 0, "running", [0.25], age=SILENT + 600)
    (one,) = live_runs(tmp_path)
    assert one.status == "silent for 25 min"
    assert one.left is None


def test_a_run_that_is_just_being_written_is_left_out(tmp_path: Path) -> None:
    whole = run(tmp_path, 0, "running", [])
    half = run(tmp_path, 1, "running", [0.5])
    half.config_file.write_text(half.config_file.read_text()[:100])
    torn = run(tmp_path, 2, "running", [0.5, 0.25])
    torn.metrics_file.write_bytes(torn.metrics_file.read_bytes()[:-10])
    assert {one.id: one.step for one in live_runs(tmp_path)} == {whole.path.name: 0, torn.path.name: 1}
    assert live_runs(tmp_path / "nowhere") == []
