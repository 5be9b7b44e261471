import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.policy.model.model_location import resolve
from tepo.store.checkpoint_files import read_progress, write_progress
from tepo.store.run_folder import RunFolder, final_model
from tepo.training.loop import train
from tepo.training.run import Run
from tests.support.runs import assert_same_run, interrupted, tiny

STEPS = "train.steps=4"
LAST = "checkpoints/step_000003"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores with one run: `half`, stopped after step 3 with checkpoints of steps 2 and 3, and `whole`, its end."""
    folder = tmp_path_factory.mktemp("runs")
    interrupted(tiny(folder / "half", STEPS), 3)
    shutil.copytree(folder / "half", folder / "whole")
    train(Run(tiny(folder / "whole", STEPS)))
    return folder


def copied(runs: Path, name: str, store: Path) -> RunFolder:
    shutil.copytree(runs / name, store)
    return RunFolder.of(tiny(store, STEPS))


def resumes(store: Path, runs: Path) -> None:
    ours, whole = train(Run(tiny(store, STEPS))), RunFolder.of(tiny(runs / "whole", STEPS)).path
    assert_same_run(ours, whole)
    assert RunFolder(ours).finished()


Damage = Callable[[Path], object]


def flip(path: Path) -> None:
    """One bit, close to the end: of the last tensor."""
    held = bytearray(path.read_bytes())
    held[-100] ^= 1
    path.write_bytes(held)


def change(edit: Callable[[dict], object]) -> Damage:
    def damage(path: Path) -> None:
        held = json.loads(path.read_text())
        edit(held)
        path.write_text(json.dumps(held, indent=1))

    return damage


def lines(edit: Callable[[list[str]], list[str]]) -> Damage:
    return lambda path: path.write_text("".join(edit(path.read_text().splitlines(keepends=True))))


def hold(text: str) -> Damage:
    return lambda path: path.write_text(text)


def of_another_step(checkpoint: Path) -> None:
    write_progress(checkpoint, read_progress(checkpoint) | {"step": 2})


WEIGHTS, OPTIMISER = f"{LAST}/model.safetensors", f"{LAST}/optimizer/00000-00000.safetensors"
PROGRESS, METRICS, CONFIG, MANIFEST = f"{LAST}/progress.json", "metrics.jsonl", "config.json", "manifest.json"
# What happens to the newest checkpoint or to the line of its step: the run goes on from the checkpoint before.
PASSED_OVER: list[tuple[str, Damage, str]] = [
    (WEIGHTS, flip, "model.safetensors is not as it was"),
    (WEIGHTS, hold("cut"), "half-written: model.safetensors has 3 bytes"),
    (OPTIMISER, flip, "optimizer/00000-00000.safetensors is not as it was"),
    (PROGRESS, change(lambda held: held.update(prompts=held["prompts"] + 8)), "progress.json was changed"),
    (LAST, of_another_step, "progress.json is of step 2"),
    (METRICS, lines(lambda rows: rows[:2]), "its metrics hold 2 of 3 steps, and lack step 3"),
    (METRICS, lines(lambda rows: [*rows, rows[2]]), "its metrics hold 4 lines for 3 steps"),
]


@pytest.mark.parametrize(("file", "damage", "reason"), PASSED_OVER)
def test_a_run_goes_on_from_the_checkpoint_before(
    file: str, damage: Damage, reason: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(runs, "half", tmp_path / "store")
    damage(run.path / file)
    resumes(tmp_path / "store", runs)
    said = capsys.readouterr().err
    assert said.count(f"{run.path / LAST} is passed over: {reason}") == 1


FALSE = '{"status": "finished", "steps": 4, "recipe": 3}'
ENDED = '{"status": "finished", "recipe": 3, "ending": {"kind": "collapse", "step": 3, "why": "all wrong"}}'
OTHER = "the stored configuration does not fit"


def falsely_finished(run: Path) -> None:
    """With a line for its last step."""
    (run / MANIFEST).write_text(FALSE)
    lines(lambda rows: [*rows, '{"training/global_step": 4}\n'])(run / METRICS)


# What no checkpoint mends: what is said, and the file or folder that is named.
REFUSED: list[tuple[str, Damage, str, str]] = [
    (METRICS, Path.unlink, "0 of 3 steps", METRICS),
    (METRICS, lines(lambda rows: [rows[0], *rows]), "4 lines for 3 steps", METRICS),
    (".", lambda run: [flip(path) for path in run.glob("checkpoints/*/model.safetensors")], "not as it was", LAST),
    (".", lambda run: [next(path.iterdir()).unlink() for path in run.glob("checkpoints/*/optimizer")], "half-", LAST),
    (CONFIG, change(lambda held: held["full"]["train"].update(learning_rate=1.0)), OTHER, CONFIG),
    (MANIFEST, hold(FALSE), "says it is finished, but its metrics hold 3 of 4 steps", METRICS),
    (MANIFEST, hold(ENDED), "says it is finished, but its metrics hold 3 lines for 2 steps", METRICS),
    (".", falsely_finished, "step_000004", "step_000004"),
]


@pytest.mark.parametrize(("file", "damage", "reason", "place"), REFUSED)
def test_a_run_that_no_checkpoint_mends_is_refused_and_left_alone(
    file: str, damage: Damage, reason: str, place: str, runs: Path, tmp_path: Path
) -> None:
    run = copied(runs, "half", tmp_path / "store")
    damage(run.path / file)
    files = [*run.path.glob("checkpoints/**/*.*"), run.metrics_file]
    before = {path: path.read_bytes() for path in files if path.is_file()}
    with pytest.raises(UserError) as caught:
        train(Run(tiny(tmp_path / "store", STEPS)))
    assert reason in caught.value.what + caught.value.where
    assert caught.value.where.endswith(place)
    assert caught.value.exit_code == 2
    assert caught.value.fix
    assert {path: path.read_bytes() for path in files if path.is_file()} == before


@pytest.mark.parametrize("lost", [(CONFIG,), (MANIFEST,)])
def test_it_is_not_written_for_another_run(lost: tuple[str, ...], runs: Path, tmp_path: Path) -> None:
    """A folder called after a run that it does not hold, which lacks what says so."""
    run = copied(runs, "whole", tmp_path / "store")
    other = RunFolder.of(tiny(tmp_path / "store", STEPS, "seed=9"))
    run.path.rename(other.path)
    for file in lost:
        (other.path / file).unlink()
    with pytest.raises(UserError, match=r"no manifest says|does not fit the name|no configuration"):
        train(Run(tiny(tmp_path / "store", STEPS, "seed=9")))
    assert not other.finished() or MANIFEST not in lost


def test_a_finished_run_that_is_damaged_is_refused(runs: Path, tmp_path: Path) -> None:
    run = copied(runs, "whole", tmp_path / "store")
    assert train(Run(tiny(tmp_path / "store", STEPS))) == run.path
    hold("cut")(run.path / "checkpoints/step_000004/model.safetensors")
    with pytest.raises(UserError, match="has 3 bytes of"):
        train(Run(tiny(tmp_path / "store", STEPS)))


def test_a_folder_is_a_model_a_run_or_neither(runs: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(resolve("package:laptop"), model)
    assert final_model(model) == model
    run = copied(runs, "half", tmp_path / "runs")
    last = run.checkpoint(run.checkpoints()[-1])
    assert final_model(run.path) == final_model(last) == last
    (last / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(UserError, match="the checkpoint is damaged"):
        final_model(last)
    (model / "model.safetensors").unlink()
    for folder in (model, tmp_path):
        with pytest.raises(UserError, match="no model and no checkpoint there"):
            final_model(folder)
