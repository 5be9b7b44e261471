import json

import pytest
import torch

from tepo.common.errors import UserError
from tepo.policy.model.load_policy import load_policy
from tepo.policy.model.model_location import resolve
from tepo.policy.warmstart import build_tokenizer
from tests.unit.policy.tiny import make_model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer(128)
    make_model("qwen2", vocab_size=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def copy(saved, tmp_path):
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_a_saved_folder_loads_in_evaluation_mode(saved):
    policy = load_policy(str(saved), dtype="bfloat16")
    assert policy.model.dtype == torch.bfloat16
    assert not policy.model.training
    assert len(policy.tokenizer) == policy.model.config.vocab_size


def test_the_attention_chosen_here_is_not_written_to_checkpoints(saved, tmp_path):
    load_policy(str(saved)).model.save_pretrained(tmp_path)
    assert "tepo" not in (tmp_path / "config.json").read_text()


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "model.safetensors"])
def test_half_a_folder_names_what_is_missing(copy, name):
    (copy / name).unlink()
    with pytest.raises(UserError, match=f"half a model: {name} missing"):
        load_policy(str(copy))


def test_a_shard_named_by_the_index_is_missing(copy):
    (copy / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model.safetensors"}})
    )
    with pytest.raises(UserError, match="model-00001-of-00002"):
        resolve(str(copy))


def test_a_damaged_index(copy):
    (copy / "model.safetensors.index.json").write_text('{"weight_map"')
    with pytest.raises(UserError, match="damaged"):
        resolve(str(copy))


def test_truncated_weights(copy):
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UserError, match="does not load"):
        load_policy(str(copy))


def test_pickled_weights_are_not_taken(copy):
    (copy / "model.safetensors").unlink()
    torch.save({}, copy / "pytorch_model.bin")
    with pytest.raises(UserError, match="half a model"):
        load_policy(str(copy))


@pytest.mark.parametrize(
    ("path", "text"),
    [("/no/such/folder", "no model there"), ("package:labtop", "did you mean 'laptop'"), ("./a/b", "no model there")],
)
def test_misspelt_paths(path, text):
    with pytest.raises(UserError, match=text):
        load_policy(path)


def test_misspelt_dtype(saved):
    with pytest.raises(UserError, match="did you mean 'bfloat16'"):
        load_policy(str(saved), dtype="bfloat6")


def test_a_hub_id_is_passed_on():
    assert resolve("Qwen/Qwen2.5-7B") == "Qwen/Qwen2.5-7B"
