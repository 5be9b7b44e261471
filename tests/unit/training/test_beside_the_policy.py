"""What a run holds beside its policy: adapters, a teacher, values of problems."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.policy.logprobs.token_statistics import token_statistics
from tepo.policy.model.load_policy import load_policy, load_tokenizer
from tepo.policy.model.lora import full_state
from tepo.store.run_folder import final_model
from tepo.store.run_id import run_id
from tepo.training import setup
from tepo.training.loop import train
from tepo.training.preflight import check_teacher
from tepo.training.rollout.prompt_stream import PromptStream
from tepo.training.rollout.run_progress import read_pending
from tepo.training.rollout_batch import Group
from tepo.training.run import Run
from tepo.training.value_tracker import ValueTracker
from tests.support.rollouts import graded, rollout
from tests.support.runs import assert_same_run, interrupted, lasting, tiny, write

LORA = ("model.lora_rank=4", "train.learning_rate=1e-3")
TEACHER = ("objective=distillation", "model.teacher=package:laptop_sparse", "train.learning_rate=1e-3")


@pytest.mark.peft
def test_a_checkpoint_is_the_merged_model_with_its_adapters_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    """In bfloat16: integration/test_kill.py."""
    words = ("objective=grpo", "train.steps=2", "train.prompts_per_step=2", "train.mini_batch_prompts=1")
    config, whole = (tiny(tmp_path / store, *LORA, *words) for store in ("stopped", "through"))
    interrupted(config)
    stopped = train(Run(config))
    assert_same_run(stopped, train(Run(whole)))
    last = final_model(stopped)
    again = setup.open_policy(config, last, torch.device("cpu"))  # what training would go on with
    merged, base = (load_policy(path) for path in (str(last), "package:laptop"))
    assert merged.model.state_dict().keys() == base.model.state_dict().keys()
    for name, value in full_state(again.model).items():
        assert torch.equal(value, merged.model.state_dict()[name])
        moved = not torch.equal(value, base.model.state_dict()[name])
        assert moved == name.endswith("proj.weight")  # embeddings, norms and biases are frozen
    assert max(row["training/rollout_logprobs_diff_mean"] for row in lasting(stopped)) < 1e-5


def test_a_teacher_with_other_tokens_is_refused() -> None:
    model, tokenizer = compose(list(TEACHER)).model, load_tokenizer("package:laptop")
    check_teacher(model, tokenizer)
    tokenizer.add_tokens(["<think>"])
    with pytest.raises(UserError, match="another tokenizer: 1 token differ, '<think>'"):
        check_teacher(model, tokenizer)


def test_a_teacher_is_part_of_the_id_by_its_content() -> None:
    named = ("laptop", "package:laptop", "package:laptop_sparse")
    one, same, other = (run_id(compose([f"model.teacher={name}", "objective=distillation"])) for name in named)
    assert one == same != other


def test_log_probs_are_those_of_the_teacher(tmp_path: Path) -> None:
    config = tiny(tmp_path, *TEACHER, "train.staleness=1")
    checkpoint = final_model(interrupted(config).path)
    student, teacher = load_policy("package:laptop"), load_policy("package:laptop_sparse")
    (waiting,) = read_pending(checkpoint, PromptStream(config, student.tokenizer), torch.device("cpu"))
    found = token_statistics(teacher.model, waiting.pack(range(waiting.sequence_count))).logprobs.detach()
    torch.testing.assert_close(waiting.teacher_logprobs, found, rtol=0, atol=1e-5)
    apart = float((waiting.old_logprobs - found).mean())
    assert waiting.metrics["rollout/teacher_kl"] == pytest.approx(apart, abs=1e-6)


def test_a_visit_forgets_by_how_far_the_policy_has_moved(tmp_path: Path) -> None:
    """As the lines of SPO's code: rho = clip(2^(-D/0.06), 0.875, 0.96), alpha = rho alpha + r, beta = rho beta + 1 - r,
    with D of the last response, and rho = 0.96 at first."""
    tracker, level = ValueTracker(), [-1.0]
    assert tracker.values([graded([1], name="a")]) == [0.5]

    def visit(*groups: Group) -> None:
        tracker.visit(rollout(*groups), lambda scored: torch.full((int(scored.lengths.sum()),), level[0]))

    visit(graded([1], name="a"), graded([0], name="b"))
    right = 0.96 * 0.5 + 1
    found = tracker.values([graded([0], name="a"), graded([0], name="b")])
    assert found == [right / (right + 0.48), 0.48 / (right + 0.48)]
    for moved, kept in ((0.006, 2**-0.1), (0.001, 0.96), (1.0, 0.875)):
        level[0] -= moved
        before = tracker.known["a"]
        visit(graded([0], name="a"))
        after = tracker.known["a"]
        assert (after.right, after.wrong) == pytest.approx((kept * before.right, kept * before.wrong + 1), rel=1e-5)
    visit(graded([1, 0, 1], name="c"))  # of a group all count
    assert (tracker.known["c"].right, tracker.known["c"].wrong) == (2.48, 1.48)
    tracker.write(tmp_path)
    again = ValueTracker.read(tmp_path)
    assert list(again.known) == ["a", "b", "c"]
    for name, one in tracker.known.items():
        for key in ("right", "wrong", "tokens", "logprobs"):
            np.testing.assert_array_equal(getattr(again.known[name], key), getattr(one, key))


def six_sums(folder: Path) -> tuple[str, ...]:
    """Of which a step asks four."""
    rows = [json.dumps({"problem": f"{a}+{b}=", "answer": str(a + b)}) for a in (3, 14) for b in (4, 15, 26)]
    file = write(folder / "sums.jsonl", "\n".join(rows))
    return ("objective=spo", f"data={file}", "train.learning_rate=1e-3")


@pytest.mark.parametrize("objective", ["spo", "distillation"])
def test_a_killed_run_ends_as_one_that_went_through(tmp_path: Path, objective: str) -> None:
    words = six_sums(tmp_path) if objective == "spo" else TEACHER
    words += ("train.samples_per_prompt=1", "train.staleness=1")
    config = tiny(tmp_path / "stopped", *words)
    checkpoint = final_model(interrupted(config, 2).path)
    assert objective != "spo" or len(ValueTracker.read(checkpoint).known) == 6
    stopped, through = train(Run(config)), train(Run(tiny(tmp_path / "through", *words)))
    assert_same_run(stopped, through)
    rows = lasting(through)
    assert all(row["rollout/prompts"] == row["rollout/groups_kept"] == 4 for row in rows)  # mixed or not
    if objective == "spo":
        assert rows[0]["rollout/value"] == 0.5 != rows[-1]["rollout/value"]
