from pathlib import Path

import pytest
import torch

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.policy.logprobs.token_statistics import token_statistics
from tepo.policy.model.load_policy import load_policy
from tepo.policy.model.shapes import shape_of
from tepo.store.run_folder import final_model
from tepo.store.run_id import run_id
from tepo.training.loop import train
from tepo.training.preflight import check_settings, check_teacher
from tepo.training.resources.memory import memory
from tepo.training.rollout.prompt_stream import PromptStream
from tepo.training.rollout.run_progress import read_pending
from tepo.training.run import Run
from tests.support.runs import assert_same_run, interrupted, lasting, small

TEACHER = "model.teacher=package:laptop_sparse"
WORDS = ("objective=distillation", TEACHER, "train.learning_rate=1e-3")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["objective=distillation"], "objective distillation reads logp_teacher"),
        ([TEACHER], "objective tepo reads no logp_teacher"),
        (["train.samples_per_prompt=1"], "a group of one has no advantage with objective tepo"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], what: str) -> None:
    with pytest.raises(UserError, match=what):
        check_settings(Run(compose(["objective=tepo", *words])))


def test_a_teacher_with_other_tokens_is_refused() -> None:
    model, policy = compose(list(WORDS)).model, load_policy("package:laptop")
    check_teacher(model, policy.tokenizer)
    policy.tokenizer.add_tokens(["<think>"])
    with pytest.raises(UserError, match="another tokenizer: 1 token differ, '<think>'"):
        check_teacher(model, policy.tokenizer)


def test_a_teacher_is_part_of_the_id_by_its_content() -> None:
    named = compose(["model.teacher=laptop", "objective=distillation"])
    assert named.model.teacher == "package:laptop"
    folders = ("package:laptop", "package:laptop_sparse")
    ids = [run_id(compose([f"model.teacher={one}", "objective=distillation"])) for one in folders]
    assert ids[0] == run_id(named) != ids[1]


def test_the_plan_counts_a_teacher() -> None:
    config, other = compose(list(WORDS)), compose([])
    teacher = shape_of("package:laptop_sparse")
    assert memory(Run(config)).reference - memory(Run(other)).reference == 4 * teacher.parameters


@pytest.mark.parametrize("more", [(), ("train.samples_per_prompt=1",), ("train.staleness=1",)], ids=str)
def test_a_killed_run_ends_as_one_that_went_through(tmp_path: Path, more: tuple[str, ...]) -> None:
    config = small(tmp_path / "stopped", *WORDS, *more)
    interrupted(config, 1)
    interrupted(config, 2)
    stopped, through = train(Run(config)), train(Run(small(tmp_path / "through", *WORDS, *more)))
    assert_same_run(stopped, through)
    rows = lasting(through)
    assert len(rows) == 3
    assert all(row["rollout/prompts"] == row["rollout/groups_kept"] == 8 for row in rows)  # mixed or not


def test_log_probs_are_those_of_the_teacher(tmp_path: Path) -> None:
    config = small(tmp_path, *WORDS, "train.staleness=1")
    checkpoint = final_model(interrupted(config, 1).path)
    student, teacher = load_policy("package:laptop"), load_policy("package:laptop_sparse")
    (waiting,) = read_pending(checkpoint, PromptStream(config, student.tokenizer), torch.device("cpu"))
    packed = waiting.pack(range(waiting.sequence_count))
    found = token_statistics(teacher.model, packed).logprobs.detach()
    torch.testing.assert_close(waiting.teacher_logprobs, found, rtol=0, atol=1e-5)
    assert waiting.metrics["rollout/teacher_kl"] == pytest.approx(
        float((waiting.old_logprobs - found).mean()), abs=1e-6
    )


def test_the_policy_comes_closer_to_its_teacher(tmp_path: Path) -> None:
    words = ("train.steps=12", "train.prompts_per_step=32", "train.mini_batch_prompts=8", "train.epochs=1")
    rows = lasting(train(Run(small(tmp_path, *WORDS, *words, "train.learning_rate=3e-4"))))
    kl = [row["rollout/teacher_kl"] for row in rows]
    assert sum(kl[-2:]) < 0.7 * sum(kl[:2])
