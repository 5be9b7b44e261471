"""What a run leaves, and what it is when it goes on after a kill, an interruption or a request to stop."""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
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
from tepo.training.rollout.collector import Collector
from tepo.training.run import Run
from tests.support.runs import assert_same_run, interrupted, small, tiny, write

STEPS = ("train.steps=5", "train.token_dump_every=1")


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(Run(tiny(tmp_path_factory.mktemp("usual"))))


def test_a_run_that_leaves_settings_open_says_what_was_chosen_and_trains_the_same(tmp_path: Path, usual: Path) -> None:
    """Its configuration keeps null, so that it can be resumed on another card with another choice."""
    words = ("sampler.max_rows=null", "model.gradient_checkpointing=null", "train.checkpoint_every=null")
    config = tiny(tmp_path, *words, "engine.micro_batch_tokens=null")
    run = interrupted(config, 2)
    train(Run(config))
    first, _ = sessions(run.path)
    assert first["chosen"] == {"sampler.max_rows": "256: no GPU", "model.gradient_checkpointing": "false: no GPU"}
    assert "chosen" not in sessions(usual)[0]
    stored = run.config()["full"]
    assert stored["sampler"]["max_rows"] is stored["model"]["gradient_checkpointing"] is None
    assert run.path.name == usual.name
    assert_same_run(run.path, usual)


def test_a_finished_run_is_not_trained_again(usual: Path) -> None:
    before = (usual / "metrics.jsonl").stat().st_mtime_ns
    assert train(Run(tiny(usual.parent)), lambda step, row: pytest.fail("a step")) == usual
    assert (usual / "metrics.jsonl").stat().st_mtime_ns == before


def test_a_run_leaves_metrics_and_its_last_weights_and_nothing_to_resume_from(tmp_path: Path) -> None:
    config = small(tmp_path, "train.steps=4", "train.token_dump_every=3")
    run, seen = RunFolder.of(config), dict[int, list[int]]()

    def look(step: int, row: dict) -> None:
        seen[step] = run.checkpoints()
        assert all((run.checkpoint(saved) / "optimizer").is_dir() for saved in seen[step])

    assert train(Run(config), look) == run.path
    assert all(len(saved) <= 2 for saved in seen.values())
    assert seen[4][-2:] in ([2, 3], [3, 4])  # the last one may be under way
    saved = json.loads((run.path / "config.json").read_text())
    assert (saved["id"], saved["full"]["train"]["token_dump_every"]) == (run.path.name, 3)
    assert run.manifest()["status"] == "finished"
    assert run.token_dumps() == [run.tokens(step) for step in (1, 3, 4)]
    rows = run.metrics()
    assert [row["training/global_step"] for row in rows] == [1, 2, 3, 4]
    drawn = [row["rollout/prompts"] for row in rows]
    assert [row["training/prompts"] for row in rows] == list(itertools.accumulate(drawn))
    assert all(0 < row["perf/trained_tokens"] <= row["perf/sampled_tokens"] for row in rows)
    wanted = {f"actor/{name}" for name in ("pg_loss", "pg_clipfrac", "ppo_kl", "grad_norm", "entropy", "kl_loss")}
    wanted |= {"timing_s/gen", "timing_s/update_actor", "timing_s/step", "critic/score/mean", "response_length/mean"}
    wanted |= {"training/rollout_probs_diff_mean", "perf/sampled_tokens", "rollout/prompts", "actor/realised_kl_k1"}
    assert wanted <= rows[0].keys()
    assert rows[0]["actor/updates"] == 4.0  # two mini-batches, two epochs

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
    base = AutoModelForCausalLM.from_pretrained("tepo/assets/laptop")
    moved = max(float((a - b).detach().abs().max()) for a, b in zip(model.parameters(), base.parameters(), strict=True))
    assert 1e-5 < moved < 1e-2


def refilled(drawn: list[float]) -> bool:
    """Whether a step but the first drew more than the one before it, which is what it drew at first."""
    return any(after > max(before, 8) for before, after in itertools.pairwise(drawn))


@pytest.mark.slow
def test_how_many_prompts_are_under_way_changes_no_bit(tmp_path: Path) -> None:
    words = ("train.steps=4", "train.max_rounds=8")
    few, many = (train(Run(small(tmp_path / m, *words, f"sampler.margin={m}"))) for m in ("1.0", "3.0"))
    rows = RunFolder(many).metrics()
    first, second, *_ = drawn = [row["rollout/prompts"] for row in rows]
    assert refilled(drawn)
    assert rows[1]["perf/left_over"] >= 3 * first - second
    assert_same_run(few, many)


@pytest.fixture(autouse=True)
def handlers_of_before() -> Iterator[None]:
    before = [(number, signal.getsignal(number)) for number in signals.SIGNALS]
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests themselves run under nohup
    yield
    for number, handler in before:
        signal.signal(number, handler)
    signals._noted.clear()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run in which a step after a checkpoint draws more prompts than it does at first."""
    run = RunFolder(train(Run(small(tmp_path_factory.mktemp("whole"), *STEPS))))
    assert refilled([row["rollout/prompts"] for row in run.metrics()][1:])
    return run


@pytest.mark.parametrize(("every", "saved"), [(1, [1, 2]), (2, [2]), ("null", [])])
def test_an_interrupted_run_ends_as_an_undisturbed_one(
    tmp_path: Path, whole: RunFolder, every: int | str, saved: list[int]
) -> None:
    """By the clock nothing is due within the first ten minutes: the run begins again. A dump of a step that no
    checkpoint has is drawn anew."""
    run = interrupted(small(tmp_path, *STEPS, f"train.checkpoint_every={every}"), 2)
    assert run.checkpoints() == saved
    assert run.manifest()["status"] == "interrupted"
    with run.metrics_file.open("a") as file:  # what a kill in the middle of a write leaves
        file.write('{"training/global_step": 3, "critic/sc')
    stray = write(run.tokens(7), run.tokens(2).read_text())
    train(Run(small(tmp_path, *STEPS)))
    assert_same_run(run.path, whole.path)
    assert not stray.exists()
    assert run.manifest()["tokens"] == whole.manifest()["tokens"]
    assert [path.read_bytes() for path in run.token_dumps()] == [path.read_bytes() for path in whole.token_dumps()]


def test_a_run_that_is_asked_to_stop_saves_what_it_has(tmp_path: Path, usual: Path) -> None:
    """Between the checkpoints that it writes anyway; the code says that the same command goes on."""
    config = tiny(tmp_path, "train.checkpoint_every=4")
    with pytest.raises(signals.Stopped) as caught:
        train(Run(config), lambda step, row: os.kill(os.getpid(), signal.SIGTERM) if step == 2 else None)
    assert caught.value.code == 75
    run = RunFolder.of(config)
    assert run.checkpoints() == [2]
    assert run.manifest()["status"] == "interrupted"
    assert run.manifest()["error"] == "asked to stop (SIGTERM)"
    assert_same_run(train(Run(config)), usual)


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

    words = ("train.checkpoint_every=4", "train.staleness=1")
    config = tiny(tmp_path / "a", *words)
    with monkeypatch.context() as patch:
        patch.setattr(Collector, "_verdicts", asked_in_the_middle)
        with pytest.raises(signals.Stopped):
            train(Run(config))
    assert RunFolder.of(config).checkpoints() == [1]  # the rollout of step 3 is drawn in step 2
    assert_same_run(train(Run(config)), train(Run(tiny(tmp_path / "b", *words))))


def test_a_run_that_is_asked_in_its_last_step_is_finished(tmp_path: Path) -> None:
    config = tiny(tmp_path, "train.steps=1")
    train(Run(config), lambda step, row: os.kill(os.getpid(), signal.SIGTERM))
    assert RunFolder.of(config).finished()
    with pytest.raises(signals.Stopped):  # before its measurement
        signals.end_if_asked()


def test_outside_of_training_a_request_ends_the_command() -> None:
    signals.at_once()
    with pytest.raises(signals.Stopped, match=r"asked to stop \(SIGTERM\)"):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)  # a second one does not disturb the end


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


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def test_what_became_of_dumps_is_said_and_a_changed_one_is_not_believed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tiny(tmp_path, "train.token_dump_every=1", "train.checkpoint_every=1")
    run = interrupted(config, 2)
    flip(run.tokens(1), -20)
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
