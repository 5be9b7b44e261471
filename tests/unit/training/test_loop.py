import itertools
import json
from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tepo.common.provenance import sessions
from tepo.store.checkpoint_files import damage
from tepo.store.run_folder import RunFolder, final_model
from tepo.training.loop import train
from tepo.training.run import Run
from tests.support.runs import assert_same_run, interrupted, small


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(Run(small(tmp_path_factory.mktemp("usual"))))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A longer one, in which a step after a checkpoint draws more prompts than it does at first."""
    folder = train(Run(small(tmp_path_factory.mktemp("whole"), "train.steps=5")))
    assert refilled([row["rollout/prompts"] for row in RunFolder(folder).metrics()][1:])
    return folder


def test_a_run_that_leaves_settings_open_says_what_was_chosen_and_trains_the_same(tmp_path: Path, usual: Path) -> None:
    """Its configuration keeps null, so that it can be resumed on another card with another choice."""
    words = ("sampler.max_rows=null", "model.gradient_checkpointing=null", "train.checkpoint_every=null")
    config = small(tmp_path, *words, "engine.micro_batch_tokens=null")
    run = interrupted(config, 2)
    train(Run(config))
    first, _ = sessions(run.path)
    assert first["chosen"] == {"sampler.max_rows": "256: no GPU", "model.gradient_checkpointing": "false: no GPU"}
    assert "chosen" not in sessions(usual)[0]
    stored = run.config()["full"]
    assert stored["sampler"]["max_rows"] is stored["model"]["gradient_checkpointing"] is None
    assert run.path.name == usual.name
    assert_same_run(run.path, usual)


def test_a_run_leaves_metrics_and_a_checkpoint_that_loads(tmp_path: Path) -> None:
    config = small(tmp_path, "train.steps=4", "train.token_dump_every=3")
    folder = train(Run(config))
    saved = json.loads((folder / "config.json").read_text())
    assert (saved["id"], saved["full"]["train"]["token_dump_every"]) == (RunFolder.of(config).path.name, 3)
    rows = RunFolder(folder).metrics()
    assert [row["training/global_step"] for row in rows] == [1, 2, 3, 4]
    drawn = [row["rollout/prompts"] for row in rows]
    assert [row["training/prompts"] for row in rows] == list(itertools.accumulate(drawn))
    assert all(0 < row["perf/trained_tokens"] <= row["perf/sampled_tokens"] for row in rows)
    assert sorted(path.name for path in (folder / "tokens").iterdir()) == [
        f"step_00000{step}.json" for step in (1, 3, 4)
    ]
    wanted = {f"actor/{name}" for name in ("pg_loss", "pg_clipfrac", "ppo_kl", "grad_norm", "entropy", "kl_loss")}
    wanted |= {"timing_s/gen", "timing_s/update_actor", "timing_s/step", "critic/score/mean", "response_length/mean"}
    wanted |= {"training/rollout_probs_diff_mean", "perf/sampled_tokens", "rollout/prompts"}
    assert wanted <= rows[0].keys()
    assert rows[0]["actor/updates"] == 4.0  # two mini-batches, two epochs
    names = load_file(final_model(folder) / "model.safetensors").keys()
    assert "model.embed_tokens.weight" in names  # of a tied model vLLM reads this name and not the other
    assert "lm_head.weight" not in names
    model = AutoModelForCausalLM.from_pretrained(final_model(folder))
    tokenizer = AutoTokenizer.from_pretrained(final_model(folder))
    prompt = tokenizer("12+34=", return_tensors="pt")
    assert model.generate(**prompt, max_new_tokens=4).shape[1] > prompt["input_ids"].shape[1]
    base = AutoModelForCausalLM.from_pretrained("tepo/assets/laptop")
    moved = max(float((a - b).detach().abs().max()) for a, b in zip(model.parameters(), base.parameters(), strict=True))
    assert 1e-5 < moved < 1e-2
    assert RunFolder(folder).manifest()["status"] == "finished"


def test_equal_configurations_give_equal_bits_and_a_finished_run_is_not_trained_again(
    tmp_path: Path, usual: Path
) -> None:
    first = train(Run(small(tmp_path)))
    assert_same_run(first, usual)
    before = (first / "metrics.jsonl").stat().st_mtime_ns
    steps: list[int] = []
    assert train(Run(small(tmp_path)), lambda step, row: steps.append(step)) == first
    assert (first / "metrics.jsonl").stat().st_mtime_ns == before
    assert not steps


def refilled(drawn: list[float]) -> bool:
    """Whether a step but the first drew more than the one before it, which is what it drew at first."""
    return any(after > max(before, 8) for before, after in itertools.pairwise(drawn))


@pytest.mark.slow
def test_how_many_prompts_are_under_way_changes_no_bit(tmp_path: Path) -> None:
    words = ("train.steps=4", "train.max_rounds=8")
    runs = {m: train(Run(small(tmp_path / str(m), *words, f"sampler.margin={m}"))) for m in (1.0, 1.2, 3.0)}
    rows = RunFolder(runs[3.0]).metrics()
    first, second, *_ = drawn = [row["rollout/prompts"] for row in rows]
    assert refilled(drawn)
    assert rows[1]["perf/left_over"] >= 3 * first - second
    for margin in (1.2, 3.0):
        assert_same_run(runs[margin], runs[1.0])


@pytest.mark.parametrize(("every", "saved"), [(1, [1, 2]), (2, [2]), ("null", [])])
def test_an_interrupted_run_ends_as_an_undisturbed_one(
    tmp_path: Path, whole: Path, every: int | str, saved: list[int]
) -> None:
    """By the clock nothing is due within the first ten minutes: the run begins again."""
    steps = "train.steps=5"
    run = interrupted(small(tmp_path, steps, f"train.checkpoint_every={every}"), 2)
    assert run.checkpoints() == saved
    assert run.manifest()["status"] == "interrupted"
    with run.metrics_file.open("a") as file:  # what a kill in the middle of a write leaves
        file.write('{"training/global_step": 3, "critic/sc')
    assert_same_run(train(Run(small(tmp_path, steps))), whole)


def test_a_finished_run_keeps_its_last_weights_and_nothing_to_resume_from(tmp_path: Path) -> None:
    seen: dict[int, list[int]] = {}
    run = RunFolder.of(small(tmp_path, "train.steps=4"))

    def look(step: int, row: dict) -> None:
        seen[step] = run.checkpoints()
        assert all((run.checkpoint(saved) / "optimizer").is_dir() for saved in seen[step])

    train(Run(small(tmp_path, "train.steps=4")), look)
    assert all(len(saved) <= 2 for saved in seen.values())
    assert seen[4][-2:] in ([2, 3], [3, 4])  # the last one may be under way
    last = run.checkpoint(4)
    assert list((run.path / "checkpoints").iterdir()) == [last]
    assert not damage(last)
    assert not (last / "optimizer").exists()
    assert not (last / "rollouts").exists()
    assert AutoModelForCausalLM.from_pretrained(last).num_parameters() > 0
