import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.config.run_config import RunConfig
from tepo.jobs.job import RunJob
from tepo.jobs.validate import validate_run
from tepo.store.evaluation_result import AVERAGE
from tepo.store.run_folder import RunFolder, final_model
from tepo.store.run_id import run_id
from tepo.training.loop import train
from tepo.training.run import Run
from tepo_cli.show_runs import show_runs
from tepo_cli.train_run import run_training
from tests.support.commands import ranks
from tests.support.runs import SMALL, assert_same_run, few_problems, interrupted, lasting, small, tiny, weights

VALIDATED = ("train.validate_every=1", "train.validation_problems=5", "data.benchmarks=[add3,max4]")
KEPT = (*VALIDATED, "train.keep_best=true")
FALLING = ("train.steps=4", "train.learning_rate=5e-4")  # the first step helps, those after it do harm


def accuracies(run: RunFolder) -> list[float]:
    return [row[AVERAGE] for row in run.metrics() if AVERAGE in row]


@pytest.fixture(scope="module")
def undecided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after its last step, before it is written down that it is finished."""
    folder = tmp_path_factory.mktemp("undecided")
    killed("mark", tiny(folder, *KEPT, *FALLING))
    return folder


@pytest.fixture(scope="module")
def store(undecided: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """And finished."""
    folder = tmp_path_factory.mktemp("kept") / "runs"
    shutil.copytree(undecided, folder)
    train(Run(tiny(folder, *KEPT, *FALLING)))
    return folder


@pytest.fixture
def config(store: Path, tmp_path: Path) -> RunConfig:
    """Of the finished run, in a store of its own."""
    shutil.copytree(store, tmp_path / "runs")
    return tiny(tmp_path / "runs", *KEPT, *FALLING)


def test_the_weights_are_those_of_the_best_step(config: RunConfig, tmp_path: Path) -> None:
    run = RunFolder.of(config)
    measured = accuracies(run)
    best = 1 + measured.index(max(measured))
    assert (len(measured), best) == (4, 1), "not the newest two"
    assert run.manifest()["steps"] == 4
    assert run.manifest()["best"] == {"step": best, "accuracy": max(measured)}
    assert run.checkpoints() == [best]
    assert not list(run.checkpoint(best).glob("optimizer/*"))
    run.check_whole(contents=True)

    plain = RunFolder(train(Run(tiny(tmp_path / "plain", *VALIDATED, *FALLING))))
    assert lasting(plain.path) == lasting(run.path)
    assert plain.checkpoints() == [4]
    assert weights(plain.path) != weights(run.path)
    stopped = interrupted(tiny(tmp_path / "stopped", *VALIDATED, *FALLING), best)
    there, here = (load_file(one.checkpoint(best) / "model.safetensors") for one in (stopped, run))
    assert all(torch.equal(there[name], here[name]) for name in here.keys() | there.keys())


def test_everything_that_reads_the_run_reads_these_weights(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TEPO_PATH", few_problems(tmp_path)["TEPO_PATH"])
    run = RunFolder.of(config)
    assert final_model(run.path) == run.checkpoint(1)
    run_training(RunJob(Run(config), evaluate=True, quiet=True))
    assert "those after step 1" in capfd.readouterr().err
    assert validate_run(Run(config)) == max(accuracies(run))  # measured again, after training
    assert run.validated() is not None
    for name in ("add3", "max4"):
        result = run.result(name)
        assert result is not None
        assert result.task["policy"]["weights"] == f"{run.path.name}/step_000001"
    show_runs(run.path.parent, every=True)
    assert "finished, weights of step 1 4/4" in capfd.readouterr().out


def test_equal_accuracies_keep_the_earliest(tmp_path: Path) -> None:
    run = RunFolder(train(Run(tiny(tmp_path, *KEPT, "train.learning_rate=1e-30", "train.steps=2"))))
    assert len(set(accuracies(run))) == 1
    assert run.checkpoints() == [1]


def test_a_best_step_is_saved_however_rarely_checkpoints_are_due(config: RunConfig, tmp_path: Path) -> None:
    rarely = RunFolder(train(Run(tiny(tmp_path / "rarely", *KEPT, *FALLING, "train.checkpoint_every=100"))))
    assert_same_run(rarely.path, RunFolder.of(config).path)


def killed(place: str, config: RunConfig) -> RunFolder:
    """When a finished run calls this method of its folder."""
    real = getattr(RunFolder, place)

    def die(self: RunFolder, *what: str, **facts: object) -> None:
        if what in ((), ("finished",)):
            raise SystemExit("killed")
        real(self, *what, **facts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, place, die)
        with pytest.raises(SystemExit):
            train(Run(config))
    return RunFolder.of(config)


def test_killed_before_the_other_weights_are_removed(config: RunConfig, undecided: Path, tmp_path: Path) -> None:
    shutil.copytree(undecided, tmp_path / "killed")
    again = tiny(tmp_path / "killed", *KEPT, *FALLING)
    run = RunFolder.of(again)
    assert run.checkpoints() == [1, 3, 4]
    assert not run.finished()
    killed("keep_weights", again)
    assert run.checkpoints() == [1, 3, 4]
    assert run.finished()
    assert final_model(run.path) == run.checkpoint(1)
    run.check_whole()
    before = run.metrics_file.read_bytes()
    train(Run(again))
    assert run.metrics_file.read_bytes() == before, "it was trained again"
    assert run.checkpoints() == [1]
    assert_same_run(run.path, RunFolder.of(config).path)


def test_a_run_whose_best_weights_are_damaged_does_not_go_on_to_others(tmp_path: Path) -> None:
    again = tiny(tmp_path, *KEPT, *FALLING)
    run = interrupted(again, 3)
    assert run.checkpoints() == [1, 2, 3]
    file = run.checkpoint(1) / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(UserError, match="go on from no checkpoint of the run: of the best weights so far: model"):
        train(Run(again))
    assert run.checkpoints() == [1, 2, 3]
    file.write_bytes(whole)
    shutil.rmtree(run.checkpoint(3))  # from the one before, too
    train(Run(again))
    assert run.checkpoints() == [1]


def test_it_is_part_of_the_id_with_what_it_chooses_by() -> None:
    def of(*words: str) -> str:
        return run_id(compose([*VALIDATED, *words]))

    kept, other = "train.keep_best=true", "train.validation_problems=6"
    assert of() == of("train.keep_best=false") == of(other) == run_id(compose())
    assert len({of(), of(kept), of(kept, other), of(kept, "data.benchmarks=[add3]")}) == 4


@pytest.mark.slow
def test_a_run_that_ends_early_has_its_best_weights(tmp_path: Path) -> None:
    run = RunFolder(train(Run(tiny(tmp_path / "all", *KEPT, "train.steps=6", "train.learning_rate=2e-3"))))
    ending = run.ending()
    assert ending is not None
    assert (ending.kind, run.manifest()["steps"]) == ("collapse", ending.step - 1)
    assert run.checkpoints() == [1]
    run.check_whole(contents=True)


@pytest.mark.deepspeed
def test_two_ranks_choose_alike(tmp_path: Path) -> None:
    words = (*KEPT, *FALLING, "engine=deepspeed", "train.checkpoint_every=100")
    for rank in ranks("tepo_cli", "train", *SMALL, *words, f"store={tmp_path}", "--quiet"):
        rank.end()
    run = RunFolder.of(small(tmp_path, *words))
    measured = accuracies(run)
    assert run.checkpoints() == [1 + measured.index(max(measured))]
