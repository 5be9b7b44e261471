"""What a run leaves, and what it is when it goes on after a kill, an interruption or a request to stop."""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tepo.common import signals
from tepo.common.errors import RunFailed, UserError
from tepo.common.provenance import sessions
from tepo.store.checkpoint_files import damage
from tepo.store.run_folder import RunFolder, final_model
from tepo.training.distributed import process_group
from tepo.training.loop import train
from tepo.training.metrics.throughput import phases
from tepo.training.rollout.collector import Collector
from tepo.training.run import Run
from tests.support.runs import assert_same_run, interrupted, tiny, write

STEPS = ("train.steps=4", "train.token_dump_every=3")
FEW = ("train.prompts_per_step=2", "train.mini_batch_prompts=1")


@dataclass
class Undisturbed:
    """A run, and its checkpoints as they were seen after each step."""

    run: RunFolder
    seen: dict[int, list[int]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    config, seen = tiny(tmp_path_factory.mktemp("whole"), *STEPS), dict[int, list[int]]()
    run = RunFolder.of(config)

    def look(step: int, row: dict) -> None:
        seen[step] = run.checkpoints()
        assert all((run.checkpoint(saved) / "optimizer").is_dir() for saved in seen[step])

    assert train(Run(config), look) == run.path
    return Undisturbed(run, seen)


def test_a_run_that_leaves_settings_open_says_what_was_chosen_and_trains_the_same(
    tmp_path: Path, whole: Undisturbed
) -> None:
    """Its configuration keeps null, so that it can be resumed on another card with another choice."""
    words = ("train.steps=4", "sampler.max_rows=null", "model.gradient_checkpointing=null")
    words += ("train.checkpoint_every=null",)
    run = RunFolder(train(Run(tiny(tmp_path, *words, "engine.micro_batch_tokens=null"))))
    (session,) = sessions(run.path)
    assert session["chosen"] == {"sampler.max_rows": "256: no GPU", "model.gradient_checkpointing": "false: no GPU"}
    assert "chosen" not in sessions(whole.run.path)[0]
    stored = run.config()["full"]
    assert stored["sampler"]["max_rows"] is stored["model"]["gradient_checkpointing"] is None
    assert run.path.name == whole.run.path.name
    assert_same_run(run.path, whole.run.path)


def test_a_run_leaves_metrics_and_its_last_weights_and_nothing_to_resume_from(whole: Undisturbed) -> None:
    """And is not trained again."""
    run = whole.run
    assert train(Run(tiny(run.path.parent, *STEPS)), lambda step, row: pytest.fail("a step")) == run.path
    assert all(len(saved) <= 2 for saved in whole.seen.values())
    assert whole.seen[4][-2:] in ([2, 3], [3, 4])  # the last one may be under way
    saved = json.loads((run.path / "config.json").read_text())
    assert (saved["id"], saved["full"]["train"]["token_dump_every"]) == (run.path.name, 3)
    assert run.manifest()["status"] == "finished"
    assert run.token_dumps() == [run.tokens(step) for step in (1, 3, 4)]
    rows = run.metrics()
    assert [row["training/global_step"] for row in rows] == [1, 2, 3, 4]
    drawn = [row["rollout/prompts"] for row in rows]
    assert [row["training/prompts"] for row in rows] == list(itertools.accumulate(drawn))
    assert all(0 < row["perf/trained_tokens"] <= row["perf/sampled_tokens"] for row in rows)
    for row in rows:
        assert row["actor/updates"] == 4.0  # two mini-batches, two epochs
        seconds = phases({name[9:]: value for name, value in row.items() if name.startswith("timing_s/")})
        total = row["perf/total_num_tokens"]
        assert total > row["perf/trained_tokens"], "prompts too"
        assert row["perf/throughput"] == pytest.approx(total / row["timing_s/step"])
        assert row["perf/throughput_gen"] == pytest.approx(row["perf/sampled_tokens"] / seconds["gen"])
        assert row["timing_per_token_ms/update_actor"] == pytest.approx(1000 * row["timing_s/update_actor"] / total)

    last = run.checkpoint(4)
    assert final_model(run.path) == last
    assert list((run.path / "checkpoints").iterdir()) == [last]
    assert not damage(last)
    assert not (last / "optimizer").exists()
    names = load_file(last / "model.safetensors").keys()
    assert "model.embed_tokens.weight" in names  # of a tied model vLLM reads this name and not the other
    assert "lm_head.weight" not in names
    model, tokenizer = AutoModelForCausalLM.from_pretrained(last), AutoTokenizer.from_pretrained(last)
    prompt = tokenizer("12+34=", return_tensors="pt")
    assert model.generate(**prompt, max_new_tokens=4).shape[1] > prompt["input_ids"].shape[1]


@pytest.fixture(autouse=True)
def handlers_of_before() -> Iterator[None]:
    before = [(number, signal.getsignal(number)) for number in signals.SIGNALS]
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests themselves run under nohup
    yield
    for number, handler in before:
        signal.signal(number, handler)
    signals._noted.clear()


@pytest.mark.parametrize(("every", "step", "saved"), [("2", 3, [2]), ("null", 1, [])])
def test_an_interrupted_run_ends_as_an_undisturbed_one(
    tmp_path: Path, whole: Undisturbed, every: str, step: int, saved: list[int]
) -> None:
    """By the clock nothing is due within the first ten minutes: the run begins again. A dump of a step that no
    checkpoint has is drawn anew. A step after the checkpoint draws more prompts than the one before it."""
    *_, third, last = (row["rollout/prompts"] for row in whole.run.metrics())
    assert last > third
    run = interrupted(tiny(tmp_path, *STEPS, f"train.checkpoint_every={every}"), step)
    assert run.checkpoints() == saved
    assert run.manifest()["status"] == "interrupted"
    with run.metrics_file.open("a") as file:  # what a kill in the middle of a write leaves
        file.write('{"training/global_step": 4, "critic/sc')
    stray = write(run.tokens(7), run.tokens(1).read_text())
    train(Run(tiny(tmp_path, *STEPS)))
    assert_same_run(run.path, whole.run.path)
    assert not stray.exists()
    assert run.manifest()["tokens"] == whole.run.manifest()["tokens"]
    dumps, others = ([path.read_bytes() for path in each.token_dumps()] for each in (run, whole.run))
    assert dumps == others


def test_a_run_that_is_asked_to_stop_saves_what_it_has(tmp_path: Path, whole: Undisturbed) -> None:
    """Between the checkpoints that it writes anyway; the code says that the same command goes on."""
    config = tiny(tmp_path, "train.steps=4", "train.checkpoint_every=4")
    with pytest.raises(signals.Stopped) as caught:
        train(Run(config), lambda step, row: os.kill(os.getpid(), signal.SIGTERM) if step == 2 else None)
    assert caught.value.code == 75
    run = RunFolder.of(config)
    assert run.checkpoints() == [2]
    assert run.manifest()["status"] == "interrupted"
    assert run.manifest()["error"] == "asked to stop (SIGTERM)"
    assert_same_run(train(Run(config)), whole.run.path)


@pytest.mark.parametrize("number", signals.SIGNALS)
def test_training_hears_each_of_the_signals(number: int) -> None:
    with signals.deferred(lambda: None):
        signal.raise_signal(number)
        assert signals.asked()


def test_a_rollout_is_given_up_and_its_step_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = Collector._verdicts

    def asked_in_the_middle(collector, under_way, recorder):  # type: ignore[no-untyped-def]
        if under_way.step == 3:
            os.kill(os.getpid(), signal.SIGUSR2)
        return verdicts(collector, under_way, recorder)

    words = ("train.checkpoint_every=4", "train.staleness=1", *FEW)
    config = tiny(tmp_path / "a", *words)
    with monkeypatch.context() as patch:
        patch.setattr(Collector, "_verdicts", asked_in_the_middle)
        with pytest.raises(signals.Stopped):
            train(Run(config))
    assert RunFolder.of(config).checkpoints() == [1]  # the rollout of step 3 is drawn in step 2
    assert_same_run(train(Run(config)), train(Run(tiny(tmp_path / "b", *words))))


def test_a_run_that_is_asked_in_its_last_step_is_finished(tmp_path: Path) -> None:
    config = tiny(tmp_path, "train.steps=1", *FEW)
    train(Run(config), lambda step, row: os.kill(os.getpid(), signal.SIGTERM))
    assert RunFolder.of(config).finished()
    with pytest.raises(signals.Stopped):  # before its measurement
        signals.end_if_asked()


def test_under_nohup_the_end_of_a_terminal_is_no_request() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with signals.deferred(lambda: None):
        signal.raise_signal(signal.SIGHUP)
        assert not signals.asked()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    code = "import signal; from tepo.common import signals; signals.at_once(); signal.raise_signal(1); print('goes on')"
    for before, ended in (("nohup", (0, "goes on\n")), ("env", (signals.EXIT_CODE, ""))):
        done = subprocess.run([before, sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == ended


def test_sigterm_after_the_death_of_another_rank_is_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun sends the same signal in both cases: what differs is whether the ranks are still there."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    with signals.deferred(process_group.check_neighbours):
        signal.raise_signal(signal.SIGTERM)
        assert signals.asked()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "100000")  # more than whoever started the tests has children
    with (
        pytest.raises(RunFailed, match="as the launcher does when another rank died"),
        signals.deferred(process_group.check_neighbours),
    ):
        signal.raise_signal(signal.SIGTERM)


def test_what_became_of_dumps_is_said_and_a_changed_one_is_not_believed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tiny(tmp_path, "train.token_dump_every=1", "train.checkpoint_every=1", *FEW)
    run = interrupted(config, 2)
    content = bytearray(run.tokens(1).read_bytes())
    content[-20] ^= 1
    run.tokens(1).write_bytes(content)
    run.tokens(2).unlink()
    with pytest.raises(UserError, match=r"is not as it was written.*\n.*step_000001\.json"):
        run.token_dumps()
    train(Run(config))
    said = capfd.readouterr().err
    assert f"{run.tokens(1)} is not as it was written (SHA-256)" in said
    assert f"{run.tokens(2)} is missing" in said
    for read in (run.token_dumps, run.excerpt, lambda: run.check_whole(contents=True)):  # of the finished run too
        with pytest.raises(UserError, match=r"step_000001\.json"):
            read()
    run.tokens(1).unlink()
    run.check_whole(contents=True)
    assert run.token_dumps() == [run.tokens(3)]
