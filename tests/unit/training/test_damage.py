"""Damaged runs: training goes on from what is whole and ends with the same bits, or refuses; nothing is believed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.store.run_folder import RunFolder
from tepo.training.checkpoints.final_model import final_model
from tepo.training.loop import train
from tests.integration.commands import tepo
from tests.unit.training.small import SMALL, lasting, small, weights

STEPS = "train.steps=4"
LAST = "checkpoints/step_000003"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores with one run: `half`, stopped after step 3 with checkpoints of steps 2 and 3, and `whole`, its end."""

    def stop(step: int, row: dict) -> None:
        if step == 3:
            raise KeyboardInterrupt

    folder = tmp_path_factory.mktemp("runs")
    with pytest.raises(KeyboardInterrupt):
        train(small(folder / "half", STEPS), stop)
    shutil.copytree(folder / "half", folder / "whole")
    train(small(folder / "whole", STEPS))
    return folder


def copied(runs: Path, name: str, store: Path) -> RunFolder:
    shutil.copytree(runs / name, store)
    return RunFolder.of(small(store, STEPS))


def resumes(store: Path, runs: Path) -> None:
    """Train to the end, and compare with the run that nothing happened to."""
    ours, whole = train(small(store, STEPS)), RunFolder.of(small(runs / "whole", STEPS)).path
    assert lasting(ours) == lasting(whole)
    assert weights(ours) == weights(whole)
    assert RunFolder(ours).finished()


def flip(path: Path) -> None:
    """One bit, close to the end: of the last tensor."""
    held = bytearray(path.read_bytes())
    held[-100] ^= 1
    path.write_bytes(held)


def change(path: Path, edit: Callable[[dict], object]) -> None:
    held = json.loads(path.read_text())
    edit(held)
    path.write_text(json.dumps(held, indent=1))


def lines(path: Path, edit: Callable[[list[str]], list[str]]) -> None:
    path.write_text("".join(edit(path.read_text().splitlines(keepends=True))))


def plain(run: Path) -> None:
    """The checkpoints as earlier versions wrote them."""
    for progress in run.glob("checkpoints/*/progress.json"):
        change(progress, lambda held: [held.pop(key) for key in ("sha256", "own_sha256")])


def plain_of_another_step(run: Path) -> None:
    plain(run)
    change(run / LAST / "progress.json", lambda held: held.update(step=2))


# What happens to the newest checkpoint or to the line of its step: the run goes on from the checkpoint before.
PASSED_OVER: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit of the weights": (lambda run: flip(run / LAST / "model.safetensors"), "model.safetensors is not as it was"),
    "a bit of the optimiser": (
        lambda run: flip(next((run / LAST / "optimizer").iterdir())),
        "optimizer/00000-00000.safetensors is not as it was",
    ),
    "a bit of the tokenizer": (lambda run: flip(run / LAST / "tokenizer.json"), "tokenizer.json is not as it was"),
    "another number of prompts": (
        lambda run: change(run / LAST / "progress.json", lambda held: held.update(prompts=held["prompts"] + 8)),
        "progress.json was changed",
    ),
    "another step": (
        lambda run: change(run / LAST / "progress.json", lambda held: held.update(step=2)),
        "progress.json was changed",
    ),
    "another step, without checksums": (plain_of_another_step, "progress.json is of step 2"),
    "the last line gone": (
        lambda run: lines(run / "metrics.jsonl", lambda rows: rows[:2]),
        "its metrics hold 2 of 3 steps, and lack step 3",
    ),
    "the last line doubled": (
        lambda run: lines(run / "metrics.jsonl", lambda rows: [*rows, rows[2]]),
        "its metrics hold 4 lines for 3 steps",
    ),
}


@pytest.mark.parametrize("name", PASSED_OVER)
def test_a_run_goes_on_from_the_checkpoint_before(
    name: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, reason = PASSED_OVER[name]
    run = copied(runs, "half", tmp_path / "store")
    damage(run.path)
    resumes(tmp_path / "store", runs)
    said = capsys.readouterr().err
    assert said.count(f"{run.path / LAST} is passed over: {reason}") == 1
    assert ("no checksums" in said) == ("without checksums" in name)


def hold(path: Path, text: str) -> None:
    path.write_text(text)


# What no checkpoint mends: what is said, and the file or folder that is named.
REFUSED: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "the metrics gone": (lambda run: (run / "metrics.jsonl").unlink(), "0 of 3 steps", "metrics.jsonl"),
    "the metrics cut": (
        lambda run: lines(run / "metrics.jsonl", lambda rows: rows[:1]),
        "1 of 3 steps, and lack step 2",
        "metrics.jsonl",
    ),
    "a line doubled": (
        lambda run: lines(run / "metrics.jsonl", lambda rows: [rows[0], *rows]),
        "4 lines for 3 steps",
        "metrics.jsonl",
    ),
    "a line without a step": (
        lambda run: lines(run / "metrics.jsonl", lambda rows: ['{"actor/entropy": 1.0}\n', *rows[1:]]),
        "the step is missing",
        "metrics.jsonl",
    ),
    "a bit of both weights": (
        lambda run: [flip(path) for path in run.glob("checkpoints/*/model.safetensors")],
        "model.safetensors is not as it was written",
        LAST,
    ),
    "another learning rate": (
        lambda run: change(run / "config.json", lambda held: held["full"]["train"].update(learning_rate=1.0)),
        "the stored configuration is not the one that the run is called after",
        "config.json",
    ),
    "another learning rate in what is hashed": (
        lambda run: change(run / "config.json", lambda held: held["config"]["train"].update(learning_rate=1.0)),
        "the stored configuration is not the one that the run is called after",
        "config.json",
    ),
    "another seed": (
        lambda run: change(run / "config.json", lambda held: held["full"].update(seed=9)),
        "the stored configuration is not the one that the run is called after",
        "config.json",
    ),
    "falsely finished": (
        lambda run: hold(run / "manifest.json", '{"status": "finished", "steps": 4, "recipe": 3}'),
        "says it is finished, but its metrics hold 3 of 4 steps",
        "metrics.jsonl",
    ),
    "falsely ended": (
        lambda run: hold(
            run / "manifest.json",
            '{"status": "finished", "recipe": 3, "ending": {"kind": "collapse", "step": 3, "why": "all wrong"}}',
        ),
        "says it is finished, but its metrics hold 3 lines for 2 steps",
        "metrics.jsonl",
    ),
    "falsely finished, with a line for its step": (
        lambda run: [
            hold(run / "manifest.json", '{"status": "finished", "steps": 4, "recipe": 3}'),
            lines(run / "metrics.jsonl", lambda rows: [*rows, '{"training/global_step": 4}\n']),
        ],
        "step_000004",
        "step_000004",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_run_that_no_checkpoint_mends_is_refused_and_left_alone(name: str, runs: Path, tmp_path: Path) -> None:
    damage, reason, place = REFUSED[name]
    run = copied(runs, "half", tmp_path / "store")
    damage(run.path)
    before = {
        path: path.read_bytes() for path in run.path.rglob("*.*") if path.is_file() and "checkpoints" in path.parts
    }
    metrics = run.metrics_file.read_bytes() if run.metrics_file.exists() else None
    with pytest.raises(UserError) as caught:
        train(small(tmp_path / "store", STEPS))
    assert reason in caught.value.what + caught.value.where
    assert caught.value.where.endswith(place)
    assert caught.value.exit_code == 2
    assert caught.value.fix
    assert {path: path.read_bytes() for path in before} == before
    assert (run.metrics_file.read_bytes() if run.metrics_file.exists() else None) == metrics


def test_what_a_false_manifest_says_to_do_helps(runs: Path, tmp_path: Path) -> None:
    run = copied(runs, "half", tmp_path / "store")
    hold(run.manifest_file, '{"status": "finished", "steps": 4, "recipe": 3}')
    with pytest.raises(UserError) as caught:
        final_model(run.path)  # what is measured
    assert caught.value.fix == f"delete {run.manifest_file}: training then goes on from step 3"
    run.manifest_file.unlink()
    resumes(tmp_path / "store", runs)


def test_checkpoints_of_an_earlier_version_are_taken_with_a_remark(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(runs, "half", tmp_path / "store")
    plain(run.path)
    resumes(tmp_path / "store", runs)
    assert capsys.readouterr().err.count(f"{run.path / LAST} has no checksums") == 1


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda run: lines(run / "metrics.jsonl", lambda rows: rows[:2]), "its metrics hold 2 of 4 steps"),
        (lambda run: lines(run / "metrics.jsonl", lambda rows: [*rows, rows[3]]), "its metrics hold 5 lines"),
        (lambda run: (run / "checkpoints/step_000004/model.safetensors").write_bytes(b"cut"), "has 3 bytes of"),
    ],
)
def test_a_finished_run_that_is_damaged_does_not_end_with_0(
    damage: Callable[[Path], object], reason: str, runs: Path, tmp_path: Path
) -> None:
    run = copied(runs, "whole", tmp_path / "store")
    assert train(small(tmp_path / "store", STEPS)) == run.path
    damage(run.path)
    done = tepo("train", *SMALL, STEPS, f"store={tmp_path / 'store'}", "--quiet")
    assert done.returncode == 2
    assert reason in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
