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
from tests.support.runs import assert_same_run, interrupted, small, tiny


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
    wanted |= {"training/rollout_probs_diff_mean", "perf/sampled_tokens", "rollout/prompts"}
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
