import re
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.common.paths import CONFIG
from tepo.config.compose import GROUPS, compose, options
from tests.support.runs import write


def test_defaults_are_the_laptop_run() -> None:
    config = compose()
    assert (config.scale, config.objective["name"], config.model.path) == ("laptop", "tepo", "package:laptop")
    assert config.train.mini_batch_prompts * 4 == config.train.prompts_per_step
    assert config.train.epochs == 2  # 4 mini-batches x 2 epochs = the paper's 8 updates


def test_overrides_of_groups_and_leaves() -> None:
    words = ("objective=grpo_dapo", "seed=3", "train.steps=40", "data.benchmarks=[add3]")
    config = compose([*words, "objective.high=0.3"])
    assert (config.seed, config.train.steps, config.data.benchmarks) == (3, 40, ["add3"])
    assert (config.objective["name"], config.objective["constants"]["high"]) == ("grpo_dapo", 0.3)


@pytest.mark.parametrize(
    ("override", "wrong", "near"),
    [
        ("objective=dapo", "dapo", "grpo_dapo"),
        ("train.stepz=3", "train.stepz", "train.steps"),
        ("sampler.kind=torsh", "torsh", "torch"),
        ("model=mistral", "mistral", "mistral-7b-instruct-v0.2"),
        ("steps=3", "steps", "train.steps"),
        ("tracking.to=[wandb,tensorbord]", "tensorbord", "tensorboard"),
    ],
)
def test_a_typo_names_the_nearest(override: str, wrong: str, near: str) -> None:
    with pytest.raises(UserError) as caught:
        compose([override])
    assert wrong in caught.value.what
    assert f"did you mean {near!r}" in caught.value.fix


@pytest.mark.parametrize("word", ["wandb.mode=offline", "wandb=offline"])
def test_a_key_of_a_tracker_leads_to_those_of_all(word: str) -> None:
    with pytest.raises(UserError, match="unknown configuration key '") as caught:
        compose([word])
    assert "did you mean tracking.to=[wandb]? beside it: tracking.project, " in caught.value.fix


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.samples_per_prompt=0", "train.samples_per_prompt must be between 1 and"),
        ("train.temperature=0", "train.temperature must be positive"),
        ("train.top_p=0.9", "training draws from the whole policy"),
        ("sampler.top_k=20", r"(?s)whose ratio, KL and entropy.*data.benchmarks=\[NAME:top_k…\]"),
        ("=3", "override"),
        ("seed=99999999999999999999", "seed must be below 2\\^63"),
        ("train.learning_rate=inf", "train.learning_rate must be a number, not inf"),
        ("data.benchmarks=[ad3]", "unknown benchmark 'ad3'"),
        ("store=", "store is empty"),
        ("sampler.gap_bound=0", "sampler.gap_bound must be positive"),
        ("data.kind=problems", "names no problems"),
        ("data.tasks={add3: 1}", "would be added to the mix that is there"),
        ("objective.name=mine", "name is that of its file"),
        ("train.exact_kl=full", "train.exact_kl must be true or false, not 'full'"),
    ],
)
def test_a_value_that_no_run_can_have_is_refused_when_it_is_composed(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        compose([override])


@pytest.mark.parametrize("folder", ["/a b", "/a,b=c(d)", "/it's", "~/x", "relative/x"])
def test_a_folder_is_taken_as_it_is_written(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert compose([f"store={folder}"]).store == folder.replace("~", "/home/someone")
    assert compose([f"model.path={folder}"]).model.path == folder


@pytest.mark.parametrize("group", GROUPS)
def test_every_option_of_every_group_composes(group: str) -> None:
    for option in options(group):
        compose([f"{group}={option}"])


@pytest.mark.parametrize(
    ("text", "words", "tokens"),
    [
        ("${data.max_new_tokens}", [], 7),
        ("${data.max_new_tokens}", ["data.max_new_tokens=9"], 9),
        ("${oc.select:data.max_new_tokens,3}", ["data.max_new_tokens=9"], 9),
        ("${.max_prompt_tokens}", ["train.max_prompt_tokens=9"], 9),
        ("${data.max_new_tokens}", ["data.max_new_tokens=9", "train.max_new_tokens=5"], 5),
    ],
)
def test_a_reference_follows_what_it_reads(
    text: str, words: list[str], tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    laptop = (CONFIG / "scale" / "laptop.yaml").read_text()
    scale = re.sub(r"max_new_tokens: .*", f"max_new_tokens: {text}", laptop)
    data = "data: {max_new_tokens: 7, max_prompt_tokens: 7}"
    write(tmp_path / "scale" / "mine.yaml", f"{scale}\n{data}\n")
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    assert compose(["scale=mine"]).train.max_prompt_tokens == 7  # kept, while the others are composed
    assert compose(["scale=mine", *words]).train.max_new_tokens == tokens


@pytest.mark.parametrize("reference", ["${data.no_such_key}", "${data.max_${data.name}_tokens}"])
def test_a_reference_of_a_file_that_leads_nowhere_is_named(
    reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the second one Hydra says nothing at all."""
    (tmp_path / "scale").mkdir()
    head = "# @package _global_\n# x\ndefaults: [laptop, _self_]\nscale: mine\n"
    (tmp_path / "scale/mine.yaml").write_text(f"{head}train: {{max_new_tokens: '{reference}'}}\n")
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"leads nowhere|no_such_key") as refused:
        compose(["scale=mine"])
    assert refused.value.where == "scale=mine"


def test_what_one_command_sets_no_other_has() -> None:
    """Also where both are of the same options, which are resolved once; nor what is done to a configuration."""
    default = compose([])
    other = compose(["train.steps=3", "data.benchmarks=[add3]", "objective.beta=0.5"])
    other.data.benchmarks.append("add4")
    other.data.tasks["add4"] = 1.0
    other.objective["name"] = "another"
    assert compose([]) == default
    assert compose(["train.steps=3", "data.benchmarks=[add3]"]).data.benchmarks == ["add3"]
