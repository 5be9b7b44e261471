import json
import shutil
from itertools import cycle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tepo.common.errors import RunFailed
from tepo.common.paths import PACKAGE
from tepo.config.run_config import RunConfig
from tepo.store.early_stop import EarlyStop, check_rewards
from tepo.store.run_folder import RunFolder, final_model
from tepo.training.loop import train
from tepo.training.run import Run
from tests.support.runs import assert_same_run, interrupted, lasting, small, tiny, weights

BASE = PACKAGE / "assets/laptop"
COLLAPSING = ("train.steps=6", "train.learning_rate=3e-3")
# AdamW's decay multiplies the weights by 1 - lr decay: by -1 in each of the 32 updates of step 1, by -3 in step 2,
# where attention leaves float32. Without a gradient nothing is skipped on the way there.
STILL = """\
about: No gradient.
like: grpo_dapo
formula:
  J: 0*w*A
"""
DIVERGING = ("train.steps=4", "train.learning_rate=2e-5", "train.warmup_steps=2", "train.weight_decay=2e5")
DIVERGING += ("train.epochs=16", "objective=still.yaml")


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
    base, result = (load_file(folder / "model.safetensors") for folder in (BASE, final_model(run.path)))
    torch.testing.assert_close(result, base, rtol=0, atol=0)


def test_equal_rewards_between_right_and_wrong_are_not_called_either(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text("def reward(problem, response): return 0.5")
    run = RunFolder(train(Run(small(tmp_path / "runs", f"data.reward={tmp_path / 'half.py'}", "train.max_rounds=1"))))
    assert "gave responses of different reward (0 all right, 0 all wrong)" in run.ending().why


@pytest.fixture(scope="module")
def collapsed(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return ended(tiny(tmp_path_factory.mktemp("collapsed"), *COLLAPSING, "train.checkpoint_every=100"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["collapse", "diverged"])
def test_the_result_is_the_weights_before_the_step_killed_or_not_and_however_often_they_were_saved(
    tmp_path: Path, kind: str, collapsed: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("still.yaml").write_text(STILL)
    words, rarely = COLLAPSING, collapsed
    if kind == "diverged":
        words, rarely = DIVERGING, ended(tiny(tmp_path / "rarely", *DIVERGING, "train.checkpoint_every=100"))
    interrupted(tiny(tmp_path / "often", *words), 1)
    often = ended(tiny(tmp_path / "often", *words))
    ending = often.ending()
    step = ending.step
    assert (ending.kind, step > 1, rarely.ending()) == (kind, True, ending)
    for run in (often, rarely):
        assert run.checkpoints()[-1] == step - 1 == len(run.metrics()) == run.manifest()["steps"]
    assert_same_run(often.path, rarely.path)
    short = train(Run(tiny(tmp_path / "short", *words, f"train.steps={step - 1}")))
    assert weights(short) == weights(often.path)
    values = [torch.frombuffer(bytearray(value), dtype=torch.float32) for value in weights(short).values()]
    assert all(bool(value.isfinite().all()) for value in values)


@pytest.mark.parametrize(
    "more",
    [(), ("train.steps=1",), ("train.validate_every=1", "data.benchmarks=[add3]", "train.validation_problems=4")],
)
def test_weights_that_break_with_the_last_update_of_a_step_do_not_count(tmp_path: Path, more: tuple[str, ...]) -> None:
    """One update a step: its loss is a number. The next rollout, a look after the last step or validation finds
    probabilities that are none."""
    run = ended(tiny(tmp_path, "train.learning_rate=1e18", "train.epochs=1", "train.mini_batch_prompts=4", *more))
    assert str(run.ending()) == "diverged at step 1"
    assert "probabilities are not numbers" in run.ending().why
    assert run.checkpoints() == [0]
    assert run.metrics() == []


def test_a_base_that_is_broken_is_a_failure(tmp_path: Path) -> None:
    """Nothing was trained, so nothing diverged. Its weights are finite, and its activations are not."""
    shutil.copytree(BASE, tmp_path / "base")
    file = tmp_path / "base/model.safetensors"
    save_file({name: value * 1e30 for name, value in load_file(file).items()}, file, {"format": "pt"})
    config = small(tmp_path / "runs", f"model.path={tmp_path / 'base'}")
    with pytest.raises(RunFailed, match="probabilities are not numbers"):
        train(Run(config))
    assert RunFolder.of(config).outcome() == "failed"


@pytest.mark.parametrize(
    ("rewards", "window", "ends"),
    [
        ([0.5, 0.4, 0.4], 3, False),  # the first does not count as one of them
        ([0.5, 0.4, 0.5], 1, False),  # not below
        ([0.5, 0.4, 0.6, 0.4, 0.3], 2, True),
        ([0.5, 0.4, 0.6, 0.4, 0.3], 3, False),  # not running
        ([0.5, 0.0, 0.0], 0, False),
    ],
)
def test_a_window_of_steps_below_the_base(rewards: list[float], window: int, ends: bool) -> None:
    if not ends:
        check_rewards(rewards, window)
        return
    with pytest.raises(EarlyStop, match=rf"^below base at step {len(rewards)}: ") as caught:
        check_rewards(rewards, window)
    assert caught.value.ending.step == len(rewards)


@pytest.mark.slow
def test_a_run_below_its_base_ends_with_the_weights_before(tmp_path: Path, collapsed: RunFolder) -> None:
    run = ended(tiny(tmp_path, *COLLAPSING, "train.collapse_window=1"))
    first, second = (row["critic/score/mean"] for row in collapsed.metrics()[:2])
    assert second < first
    assert str(run.ending()) == "below base at step 2"
    assert lasting(run.path) == lasting(collapsed.path)[:1]
    assert run.checkpoints() == [1]
