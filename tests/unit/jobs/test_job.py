from pathlib import Path

import pytest

from tepo.common.files import read_jsonl
from tepo.common.provenance import sessions
from tepo.config.compose import compose
from tepo.jobs import validate
from tepo.jobs.job import RunJob
from tepo.jobs.validate import final_validation, problems_hash, validate_run
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import run_id
from tepo.training.loop import train
from tepo.training.run import Run
from tests.support.runs import interrupted, small, weights, write


def test_steps_that_are_trained_again_count(tmp_path: Path) -> None:
    config = small(tmp_path, "train.checkpoint_every=2")
    run = interrupted(config, step=1)  # before its first checkpoint
    kept, job = run.metrics(), RunJob(Run(config), quiet=True)
    rows = job.train()
    assert rows == run.metrics()
    assert rows[0] != kept[0]
    job.measure(rows)
    assert [cost.steps for cost in run.costs()] == [3]
    assert job.train() == []


def test_who_needs_a_clean_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM after training; of several ranks whatever sampler. The embedded sampler alone does not."""
    kinds = ("torch", "vllm", "vllm_server")
    embedded, vllm, servers = (
        RunJob(Run(compose([f"sampler={kind}", f"store={tmp_path}"])), evaluate=True) for kind in kinds
    )
    assert [job.measures_apart(True) for job in (embedded, vllm, servers)] == [False, True, False]
    assert not vllm.measures_apart(False)
    assert not RunJob(Run(vllm.config)).measures_apart(True)  # nothing is asked
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert all(job.measures_apart(trained) for job in (embedded, vllm) for trained in (True, False))


FEW = ("train.steps=1", "train.validation_problems=6", "data.benchmarks=[add3,max4]")


def test_a_validation_is_what_training_measures_after_its_last_step(tmp_path: Path) -> None:
    """Of a run that validates on its way, and of the same run that does not."""
    watched, plain = small(tmp_path / "a", *FEW, "train.validate_every=1"), small(tmp_path / "b", *FEW)
    assert run_id(watched) == run_id(plain)
    folders = [train(Run(config)) for config in (watched, plain)]
    assert final_validation(RunFolder(folders[1]), plain) is None
    share = validate_run(Run(plain))
    assert share == validate_run(Run(watched)) == read_jsonl(RunFolder(folders[0]).metrics_file)[-1]["val-core/average"]
    assert 0 < share < 1
    assert weights(folders[0]) == weights(folders[1])
    assert [session["what"] for session in sessions(folders[1])] == ["train", "validate"]
    assert not RunFolder(folders[1]).evaluations.exists()


def test_a_validation_is_stored_for_the_problems_it_was_measured_on(tmp_path: Path) -> None:
    config = small(tmp_path, *FEW)
    run = RunFolder(train(Run(config)))
    share = validate_run(Run(config))
    before = run.validation_file.stat().st_mtime_ns
    assert validate_run(Run(config)) == share
    assert run.validation_file.stat().st_mtime_ns == before
    more = small(tmp_path, *FEW, "train.validation_problems=7")
    assert run_id(more) == run.path.name
    assert final_validation(run, more) is None
    assert validate_run(Run(more)) == final_validation(run, more)


def test_a_validation_that_draws_otherwise_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default its hash is that of validations before there were filters."""
    text = (
        "title: T\nprocedural: {tasks: {add3: 1}, seed: 1}\ncount: 4\nsamples: 2\ntemperature: 1\nmax_new_tokens: 8\n"
    )
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    hashes = []
    for added in ("", "top_p: 1.0\n", "top_p: 0.9\n", "top_k: 9\n", "thinking: false\n"):
        write(tmp_path / "evals/mine.yaml", text + added)
        monkeypatch.setattr(validate, "_PROBLEMS", {})  # of a process that began before
        hashes.append(problems_hash(small(tmp_path, *FEW[:2], "data.benchmarks=[mine]")))
    assert hashes[0] == hashes[1] == "deb8b1c90b78"
    assert len(set(hashes)) == 4


def test_a_run_that_diverged_in_its_first_step_scores_as_its_base(tmp_path: Path) -> None:
    """Its last weights are those it started from."""
    broken = ("train.learning_rate=1e18", "train.epochs=1", "train.mini_batch_prompts=8")
    config, still = small(tmp_path, *FEW, *broken), small(tmp_path, *FEW, "train.learning_rate=1e-30")
    run = RunFolder(train(Run(config)))
    assert str(run.ending()) == "diverged at step 1"
    before = weights(run.path)
    train(Run(still))
    assert validate_run(Run(config)) == validate_run(Run(still))
    assert weights(run.path) == before
