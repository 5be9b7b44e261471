import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tepo.common.files import read_jsonl
from tepo.common.provenance import sessions
from tepo.config.compose import compose
from tepo.evaluation.scores import score
from tepo.jobs import validate
from tepo.jobs.job import RunJob
from tepo.jobs.model_card import command_of, write_card
from tepo.jobs.validate import final_validation, problems_hash, validate_run
from tepo.store.checkpoint_files import TensorFile, damage
from tepo.store.evaluation_result import SAMPLES, Result, save_result
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import identity, run_id
from tepo.store.samples_file import table_of, write_table
from tepo.training.checkpoints.saver import Saver
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
    run = RunFolder(folders[1])
    assert [session["what"] for session in sessions(run.path)] == ["train", "validate"]
    assert not run.evaluations.exists()
    before = run.validation_file.stat().st_mtime_ns
    assert validate_run(Run(plain)) == share
    assert run.validation_file.stat().st_mtime_ns == before
    more = small(tmp_path / "b", *FEW, "train.validation_problems=7")
    assert run_id(more) == run.path.name
    assert final_validation(run, more) is None  # of other problems
    assert validate_run(Run(more)) == final_validation(run, more)


def test_a_validation_that_draws_otherwise_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default its hash is that of validations before there were filters."""
    text = "title: T\nprocedural: {tasks: {add3: 1}, seed: 1}\ncount: 4\nsamples: 2\ntemperature: 1\n"
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    hashes = []
    for added in ("", "top_p: 1.0\n", "top_p: 0.9\n", "thinking: false\n"):
        write(tmp_path / "evals/mine.yaml", f"{text}max_new_tokens: 8\n{added}")
        monkeypatch.setattr(validate, "_PROBLEMS", {})  # of a process that began before
        hashes.append(problems_hash(small(tmp_path, *FEW[:2], "data.benchmarks=[mine]")))
    assert hashes[0] == hashes[1] == "deb8b1c90b78"
    assert len(set(hashes)) == 3


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


WORDS = ["objective=tepo", "seed=3", "train.steps=2", "objective.beta=0.5", "data.benchmarks=[add3]"]


def run_in(store: Path, *words: str) -> tuple:
    config = replace(compose([*WORDS, *words]), store=str(store))
    run = RunFolder.of(config)
    run.create(config, identity(config))
    with Saver(run) as saver:
        saver.save(2, {}, lambda folder: [TensorFile("model.safetensors", {})])
    return config, run


def test_a_card_says_what_the_run_is(tmp_path: Path) -> None:
    _, run = run_in(tmp_path)
    card = write_card(run)
    text = card.read_text()
    assert card == run.checkpoint(2) / "README.md"
    assert not damage(run.checkpoint(2))
    assert yaml.safe_load(text.split("---")[1])["license"] == "apache-2.0"
    assert "\nJ: min(w*A, clip(w, 1 - low, 1 + high)*A) - beta*M*kl\n" in text

    row = {"sample": 0, "extracted": "1", "reason": "", "tokens": 3, "finish": "stop", "grader": "grader"}
    samples = table_of([row | {"problem": f"p{number}", "correct": number < 20} for number in range(50)])
    result = Result("add3", 50, 1, 0.4, (0.31, 0.52), score(samples), {}, "grader", {})
    save_result(run.evaluation("add3"), result)
    assert "| add3 | – | – | – | – |" in write_card(run).read_text()  # nobody knows
    write_table(run.evaluation("add3") / SAMPLES, samples)
    text = write_card(run).read_text()
    assert "| add3 | 50 | 1 | 40.0 |" in text
    assert "31.0 – 52.0" not in text  # the interval, too, is that of the samples
    save_result(run.evaluation("add3"), replace(result, accuracy=0.9))
    assert "| add3 | – | – | – | – |" in write_card(run).read_text()


def test_the_command_of_a_card_composes_the_same_run(tmp_path: Path) -> None:
    words = ["objective.w=exp(d)", "objective.J=w*A - beta*M*k", "objective.k=k2(d)", "objective.average=1/B"]
    file = write(tmp_path / "short, and long.py", "def short(problem, response):\n    return len(response) < 30\n")
    reward = f'data.reward={{correct: grader, brief: {{file: "{file}", function: short, weight: 0.2}}}}'
    config, run = run_in(tmp_path, *words, reward)
    command = shlex.split(command_of(config, run))
    assert command[:2] == ["tepo", "train"]
    assert RunFolder.of(replace(compose(command[2:]), store=str(tmp_path))).path == run.path
    assert {*words, "objective.beta=0.5"} <= set(command)
    assert not [word for word in command if word.startswith("train.learning_rate")]  # as by default
