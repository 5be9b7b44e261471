import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from tepo.config.compose import compose
from tepo.evaluation.settings import Settings
from tepo.jobs.measure import measure_in_memory
from tepo.policy import warmstart
from tepo.policy.model.load_policy import load_policy
from tepo.policy.model.model_location import resolve
from tepo.policy.recipes import RECIPES, Phase, Recipe
from tepo.policy.warmstart import VOCABULARY, build_tokenizer, train
from tepo.problems.benchmarks import load_benchmark

SMALL = Recipe(
    tasks={"add2": 1, "max2": 1}, phases=(Phase(3), Phase(1, guesses=0.5, slip=0.5)), batch=6, warmup_steps=2
)


@pytest.fixture(scope="module", params=["built", "shipped"])
def tokenizer(request):
    if request.param == "built":
        return build_tokenizer(256)
    return AutoTokenizer.from_pretrained(resolve("package:laptop"), trust_remote_code=False)


def test_every_token_is_one_id(tokenizer):
    assert len(tokenizer) == len(VOCABULARY) == 42
    for index, token in enumerate(VOCABULARY):
        assert tokenizer(token)["input_ids"] == [index]
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert tokenizer.decode(tokenizer("3é+4=\n")["input_ids"]) == "3+4=", "unknown characters are dropped"


@given(pieces=st.lists(st.sampled_from([warmstart.BOX_OPEN, warmstart.BOX_CLOSE, *warmstart.CHARACTERS]), max_size=40))
def test_round_trip(tokenizer, pieces):
    ids = tokenizer("".join(pieces))["input_ids"]
    assert [VOCABULARY[index] for index in ids] == pieces
    assert tokenizer.decode(ids) == "".join(pieces)
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == "".join(pieces)


def test_labels_stand_on_response_tokens_only():
    tokenizer = build_tokenizer(256)
    for ids, labels in warmstart.make_batch(SMALL, 0, tokenizer):
        for row, marks in zip(ids.tolist(), labels.tolist(), strict=True):
            unmarked = [token for token, mark in zip(row, marks, strict=True) if mark == -100 and token]
            assert re.fullmatch(r"\d+\+\d+=|max\(.*\)=", tokenizer.decode(unmarked))
            assert tokenizer.decode([mark for mark in marks if mark != -100]).endswith("}<eos>")
            assert all(mark in (-100, token) for token, mark in zip(row, marks, strict=True))


def test_a_warm_start_is_a_function_of_its_recipe(tmp_path):
    (first, tokenizer, record), (second, _, _) = train(SMALL), train(SMALL)
    other, _, _ = train(replace(SMALL, seed=1))
    warmstart.save_base(tmp_path / "base", first, tokenizer, record)
    stored = load_policy(str(tmp_path / "base")).model
    weights = [model.get_input_embeddings().weight for model in (first, second, stored, other)]
    assert [torch.equal(weights[0], weight) for weight in weights[1:]] == [True, True, False]
    recipe = json.loads((tmp_path / "base" / "recipe.json").read_text())["recipe"]
    assert recipe == json.loads(json.dumps(asdict(SMALL)))


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_the_shipped_base_is_what_its_recipe_says(name):
    folder, recipe = Path(resolve(f"package:{name}")), RECIPES[name]
    written = json.loads((folder / "recipe.json").read_text())["recipe"]
    assert Recipe(**written | {"phases": tuple(Phase(**phase) for phase in written["phases"])}) == recipe
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_000_000
    model, built = AutoModelForCausalLM.from_pretrained(folder), warmstart.build_model(recipe, build_tokenizer(256))
    assert model.num_parameters() == built.num_parameters() < 210_000
    assert type(model).__name__ == "Qwen2ForCausalLM"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("laptop", ["laptop"]),
        ("laptop_sparse", ["laptop_sparse"]),
        ("laptop_chains", ["chains_200", "chains_25", "chains_70"]),
    ],
)
def test_the_shipped_base_scores_what_its_record_says(name, data):
    policy = load_policy(f"package:{name}")
    recorded = json.loads((Path(resolve(f"package:{name}")) / "recipe.json").read_text())["scores"]
    assert list(recorded) == [task for one in data for task in compose([f"data={one}"]).data.benchmarks]
    benchmarks = [replace(load_benchmark(task), samples=4) for task in recorded]
    measured = {one.benchmark: one.scores for one in measure_in_memory(policy, benchmarks, Settings(limit=60))}
    differences = [measured[task]["avg@4"] - recorded[task]["avg@8"] for task in recorded]
    assert abs(sum(differences)) / len(differences) < 0.06  # 60 of 200 problems: a standard error of about 2 points
