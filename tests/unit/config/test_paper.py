import re
from pathlib import Path

import pytest
import yaml

from tepo.common.paths import CONFIG
from tepo.config.compose import compose, to_dict
from tepo.objectives import load_objective
from tepo.studies.plan import make_plan
from tepo.studies.study import load_study

MODELS = {
    "qwen2.5-7b": "Qwen/Qwen2.5-7B",
    "qwen3-14b": "Qwen/Qwen3-14B",
    "deepseek-r1-distill-llama-8b": "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
    "mistral-7b-instruct-v0.2": "mistralai/Mistral-7B-Instruct-v0.2",
    "deepseek-r1-distill-qwen-7b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
    "qwen2.5-32b": "Qwen/Qwen2.5-32B",
}


@pytest.mark.parametrize("model", MODELS)
def test_every_model_composes_for_gpus(model: str) -> None:
    config = compose(["scale=paper", f"model={model}"])
    assert config.model.path == MODELS[model]
    assert re.fullmatch("[0-9a-f]{40}", config.model.revision or "")
    assert (config.model.dtype, config.model.trust_remote_code) == ("bfloat16", False)
    assert config.model.gradient_checkpointing is None  # the planner's choice
    assert (config.sampler.kind, config.engine.kind) == ("vllm", "deepspeed")


def test_settings_of_the_paper() -> None:
    """TEPO section 4.1; the code base of Cui et al. where it is silent."""
    config = compose(["scale=paper"])
    train = config.train
    assert (train.steps, train.prompts_per_step, train.samples_per_prompt, train.temperature) == (72, 64, 8, 1.0)
    assert (train.max_prompt_tokens, train.max_new_tokens) == (2048, 8192)
    assert train.prompts_per_step // train.mini_batch_prompts * train.epochs == 8  # updates a rollout
    assert (train.learning_rate, train.warmup_steps, train.weight_decay, train.grad_clip) == (5e-7, 0, 0.0, 1.0)
    assert (train.max_rounds, train.exact_kl) == (10, False)
    data = config.data
    assert (data.problems, data.prompt, data.overlong_prompts) == ("dapo_math", "boxed", "truncate")
    assert config.data.benchmarks == ["aime24", "aime25", "amc", "math500", "omni_math", "olympiadbench", "minerva"]


@pytest.mark.parametrize("file", ["scale/paper.yaml", *(f"model/{model}.yaml" for model in MODELS)])
def test_what_a_file_sets_arrives(file: str) -> None:
    """A default composed later would win without a word."""
    group, _, option = file.removesuffix(".yaml").partition("/")
    config = to_dict(compose(["scale=paper", f"{group}={option}"]))
    written = yaml.safe_load((CONFIG / file).read_text())
    written.pop("defaults", None)
    for section, value in ({group: written} if group == "model" and "model" not in written else written).items():
        for key, expected in value.items() if isinstance(value, dict) else ():
            assert config[section][key] == expected, f"{section}.{key}"


def test_tepo_at_paper_scale() -> None:
    config = compose(["scale=paper", "objective=tepo"])
    constants = config.objective["constants"]
    assert (constants["low"], constants["high"], constants["beta"]) == (0.2, 0.28, 0.001)
    assert config.objective["formula"]["kl"] == "k3(d)"
    needs = load_objective(config.objective).needs
    assert not needs.initial_logprobs  # no second model beside the policy
    assert not needs.full_kl  # nothing of the size of the vocabulary is kept


def test_the_coefficient_of_each_model(tmp_path: Path) -> None:
    units = [unit for unit in make_plan(load_study("table1"), "paper", store=tmp_path) if unit.row.objective == "tepo"]
    assert {unit.model: unit.config.objective["constants"]["beta"] for unit in units} == {
        "qwen2.5-7b": 0.001,
        "qwen3-14b": 1,
    }
