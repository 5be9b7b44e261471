"""Which weights a run ends with: those before an early end, the best by validation."""

import json
import shutil
from itertools import cycle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tepo.common.errors import RunFailed, UserError
from tepo.common.paths import PACKAGE
from tepo.config.compose import compose
from tepo.config.run_config import RunConfig
from tepo.jobs.job import RunJob
from tepo.store.early_stop import EarlyStop, check_rewards
from tepo.store.evaluation_result import AVERAGE
from tepo.store.run_folder import RunFolder, final_model
from tepo.store.run_id import run_id
from tepo.training.loop import train
from tepo.training.run import Run
from tepo_cli.train_run import run_training
from tests.support.commands import ranks
from tests.support.runs import SMALL, assert_same_run, few_problems, interrupted, lasting, small, tiny, weights

VALIDATED = ("train.validate_every=1", "train.validation_problems=10", "data.benchmarks=[add3]")
KEPT = (*VALIDATED, "train.keep_best=true")
FALLING = ("train.steps=3", "train.learning_rate=5e-4")  # the first step helps, those after it do harm
BASE, FILE = PACKAGE / "assets/laptop", "model.safetensors"
COLLAPSING = ("train.steps=6", "train.learning_rate=3e-3")


def problems(path: Path, *answers: str) -> tuple[str, str, str]:
    """Sums that the base knows, with these golds in turn; as good as greedy, so that the responses to each agree."""
    sums = [(a, b) for a in range(12, 16) for b in range(23, 33)]
    rows = [{"problem": f"{a}+{b}=", "answer": gold.format(a + b)} for (a, b), gold in zip(sums, cycle(answers))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ("data.kind=problems", f"data.problems={path}", "train.temperature=0.001")


def ended(config: RunConfig) -> RunFolder:
    """A run that is not trained again when it has ended."""
    run = RunFolder(train(Run(config)))
    assert run.finished()
    before = (run.metrics(), run.checkpoints())
    train(Run(config), lambda step, row: pytest.fail("another step"))
    assert before == (run.metrics(), run.checkpoints())
    return run


@pytest.mark.parametrize(
    ("answers", "kind"), [(("{}",), "saturation"), (("7",), "collapse"), (("{}", "7"), "no signal")]
)
def test_without_a_mixed_group_at_step_1_the_base_is_the_result(
    tmp_path: Path, answers: tuple[str, ...], kind: str
) -> None:
    run = ended(small(tmp_path / "runs", *problems(tmp_path / "p.jsonl", *answers)))
    assert str(run.ending()) == f"{kind} at step 1"
    assert ("tepo data verify" in run.ending().why) == (kind == "collapse")  # nothing was ever right
    assert run.metrics() == []
    assert run.manifest()["steps"] == 0
    kept = [json.loads(line) for line in run.examples_file.read_text().split("\n")[:-1]]
    assert 8 <= len(kept) <= 64
    for row in kept:
        assert row.keys() == {"prompt", "gold", "response", "right", "cut_off"}
        assert row["right"] == row["response"].endswith(f"\\boxed{{{row['gold']}}}")
    base, result = (load_file(folder / FILE) for folder in (BASE, final_model(run.path)))
    torch.testing.assert_close(result, base, rtol=0, atol=0)


@pytest.mark.slow
def test_the_result_is_the_weights_before_the_step_killed_or_not_and_however_often_they_were_saved(
    tmp_path: Path,
) -> None:
    rarely = ended(tiny(tmp_path / "rarely", *COLLAPSING, "train.checkpoint_every=100"))
    interrupted(tiny(tmp_path / "often", *COLLAPSING))
    often = ended(tiny(tmp_path / "often", *COLLAPSING))
    ending = often.ending()
    step = ending.step
    assert (ending.kind, step > 1, rarely.ending()) == ("collapse", True, ending)
    for run in (often, rarely):
        assert run.checkpoints()[-1] == step - 1 == len(run.metrics()) == run.manifest()["steps"]
    assert_same_run(often.path, rarely.path)
    short = train(Run(tiny(tmp_path / "short", *COLLAPSING, f"train.steps={step - 1}")))
    assert weights(short) == weights(often.path)
    first, second, *_ = (row["critic/score/mean"] for row in rarely.metrics())
    assert second < first
    below = ended(tiny(tmp_path / "below", *COLLAPSING, "train.collapse_window=1"))
    assert str(below.ending()) == "below base at step 2"
    assert lasting(below.path) == lasting(rarely.path)[:1]
    assert below.checkpoints() == [1]


@pytest.mark.parametrize("more", [("train.steps=1",), VALIDATED], ids=["last step", "validation"])
def test_weights_that_break_with_the_last_update_of_a_step_do_not_count(tmp_path: Path, more: tuple[str, ...]) -> None:
    """One update a step: its loss is a number. A look after the last step or validation finds probabilities that are
    none."""
    run = ended(tiny(tmp_path, "train.learning_rate=1e18", "train.epochs=1", "train.mini_batch_prompts=4", *more))
    assert str(run.ending()) == "diverged at step 1"
    assert "probabilities are not numbers" in run.ending().why
    assert run.checkpoints() == [0]
    assert run.metrics() == []


def test_a_base_that_is_broken_is_a_failure(tmp_path: Path) -> None:
    """Nothing was trained, so nothing diverged. Its weights are finite, and its activations are not."""
    shutil.copytree(BASE, tmp_path / "base")
    file = tmp_path / "base" / FILE
    save_file({name: value * 1e30 for name, value in load_file(file).items()}, file, {"format": "pt"})
    config = small(tmp_path / "runs", f"model.path={tmp_path / 'base'}")
    with pytest.raises(RunFailed, match="probabilities are not numbers"):
        train(Run(config))
    assert RunFolder.of(config).outcome() == "failed"


def test_a_window_of_steps_below_the_base() -> None:
    rewards = [0.5, 0.4, 0.6, 0.4, 0.3]
    with pytest.raises(EarlyStop, match=r"^below base at step 5: ") as caught:
        check_rewards(rewards, 2)
    assert caught.value.ending.step == 5
    check_rewards(rewards, 3)  # not running
    check_rewards([0.5, 0.4, 0.4], 3)  # the first does not count as one of them
    check_rewards([0.5, 0.4, 0.5], 1)  # not below


def accuracies(run: RunFolder) -> list[float]:
    return [row[AVERAGE] for row in run.metrics() if AVERAGE in row]


@pytest.fixture(scope="module")
def undecided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after its last step, before it is written down that it is finished."""
    folder = tmp_path_factory.mktemp("undecided")
    killed("mark", tiny(folder, *KEPT, *FALLING))
    return folder


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Its end, of a run whose best step is saved though no checkpoint is due."""
    folder = tmp_path_factory.mktemp("best")
    return RunFolder(train(Run(tiny(folder, *KEPT, *FALLING, "train.checkpoint_every=100"))))


def test_the_weights_are_those_of_the_best_step(best: RunFolder, tmp_path: Path) -> None:
    run = best
    measured = accuracies(run)
    assert (len(measured), max(measured)) == (3, measured[0]), "not the newest two"
    assert run.manifest()["steps"] == 3
    assert run.manifest()["best"] == {"step": 1, "accuracy": measured[0]}
    assert run.checkpoints() == [1]
    assert not list(run.checkpoint(1).glob("optimizer/*"))
    run.check_whole(contents=True)

    config, seen = tiny(tmp_path, *VALIDATED, *FALLING), dict[str, torch.Tensor]()
    plain = RunFolder.of(config)
    train(Run(config), lambda step, row: seen.update(load_file(plain.checkpoint(1) / FILE) if step == 2 else {}))
    assert lasting(plain.path) == lasting(run.path)
    assert plain.checkpoints() == [3]
    assert weights(plain.path) != weights(run.path)
    torch.testing.assert_close(load_file(run.checkpoint(1) / FILE), seen, rtol=0, atol=0)


def test_everything_that_reads_the_run_reads_these_weights(
    best: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TEPO_PATH", few_problems(tmp_path)["TEPO_PATH"])
    shutil.copytree(best.path.parent, tmp_path / "runs")
    config = tiny(tmp_path / "runs", *KEPT, *FALLING)
    run = RunFolder.of(config)
    assert final_model(run.path) == run.checkpoint(1)
    run_training(RunJob(Run(config), evaluate=True, quiet=True))
    assert "those after step 1" in capfd.readouterr().err
    assert run.result("add3").task["policy"]["weights"] == f"{run.path.name}/step_000001"


def test_equal_accuracies_keep_the_earliest(tmp_path: Path) -> None:
    run = RunFolder(train(Run(tiny(tmp_path, *KEPT, "train.learning_rate=1e-30", "train.steps=2", "train.epochs=1"))))
    assert len(set(accuracies(run))) == 1
    assert run.checkpoints() == [1]


def killed(place: str, config: RunConfig) -> None:
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


def test_killed_before_the_other_weights_are_removed(best: RunFolder, undecided: Path, tmp_path: Path) -> None:
    shutil.copytree(undecided, tmp_path / "killed")
    again = tiny(tmp_path / "killed", *KEPT, *FALLING)
    run = RunFolder.of(again)
    assert run.checkpoints() == [1, 2, 3]
    assert not run.finished()
    killed("keep_weights", again)
    assert run.checkpoints() == [1, 2, 3]
    assert run.finished()
    assert final_model(run.path) == run.checkpoint(1)
    run.check_whole()
    before = run.metrics_file.read_bytes()
    train(Run(again))
    assert run.metrics_file.read_bytes() == before, "it was trained again"
    assert run.checkpoints() == [1]
    assert_same_run(run.path, best.path)


def test_a_run_whose_best_weights_are_damaged_does_not_go_on_to_others(undecided: Path, tmp_path: Path) -> None:
    shutil.copytree(undecided, tmp_path / "damaged")
    again = tiny(tmp_path / "damaged", *KEPT, *FALLING)
    run = RunFolder.of(again)
    file = run.checkpoint(1) / FILE
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
    assert len({of(), of(kept), of(kept, other), of(kept, "data.benchmarks=[max4]")}) == 4


@pytest.mark.deepspeed
def test_two_ranks_choose_alike(tmp_path: Path) -> None:
    words = (*KEPT, *FALLING, "engine=deepspeed", "train.checkpoint_every=100")
    for rank in ranks("tepo_cli", "train", *SMALL, *words, f"store={tmp_path}", "--quiet"):
        rank.end()
    run = RunFolder.of(small(tmp_path, *words))
    measured = accuracies(run)
    assert run.checkpoints() == [1 + measured.index(max(measured))]
