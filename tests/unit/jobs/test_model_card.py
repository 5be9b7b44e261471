import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tepo.config.compose import compose
from tepo.evaluation.scores import score
from tepo.jobs.model_card import base_licence, command_of, write_card
from tepo.store.checkpoint_files import TensorFile, damage
from tepo.store.evaluation_result import SAMPLES, Result, save_result
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import identity
from tepo.store.samples_file import table_of, write_table
from tepo.training.checkpoints.saver import Saver

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
    for words in (
        [],
        ["objective.w=exp(d)", "objective.J=w*A - beta*M*k", "objective.k=k2(d)", "objective.average=1/B"],
    ):
        config, run = run_in(tmp_path, *words)
        command = shlex.split(command_of(config, run))
        assert command[:2] == ["tepo", "train"]
        assert RunFolder.of(replace(compose(command[2:]), store=str(tmp_path))).path == run.path
        assert {*words, "objective.beta=0.5"} <= set(command)
    assert not [word for word in command if word.startswith("train.learning_rate")]  # as by default


def test_the_command_of_a_card_names_rewards_by_their_files(tmp_path: Path) -> None:
    file = tmp_path / "short, and long.py"
    file.write_text("def short(problem, response):\n    return len(response) < 30\n")
    mapping = f'{{correct: grader, brief: {{file: "{file}", function: short, weight: 0.2}}}}'
    config, run = run_in(tmp_path, f"data.reward={mapping}")
    command = shlex.split(command_of(config, run))
    assert RunFolder.of(replace(compose(command[2:]), store=str(tmp_path))).path == run.path


def test_the_licence_of_a_base_is_what_its_card_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    assert base_licence(str(tmp_path)) == ""
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# A base\n")
    assert base_licence(str(tmp_path)) == "mit"
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert base_licence("somebody/unknown") == ""
