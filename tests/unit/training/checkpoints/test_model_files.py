from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tepo.policy.model.load_policy import Policy, load_policy
from tepo.policy.model.lora import full_state
from tepo.training.checkpoints import model_files as module
from tepo.training.checkpoints.model_files import model_files, write_beside_weights
from tests.support.models import engine_model
from tests.support.runs import write_files


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_files_of_all_ranks_are_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tied: bool, ranks: int
) -> None:
    monkeypatch.setattr(module, "_WORTH_SHARING", 1000)
    model = engine_model(0, tied=tied)
    policy = Policy(model, load_policy("package:laptop").tokenizer)
    state = full_state(model)
    write_beside_weights(policy, tmp_path)
    own = [list(model_files(policy, state, tmp_path, rank, ranks)) for rank in range(ranks)]
    for files in own:
        write_files(tmp_path, files)
    names = [name for files in own for file in files for name in file.tensors]
    assert sorted(names) == sorted(set(state) - ({"lm_head.weight"} if tied else set()))
    assert (tmp_path / "model.safetensors.index.json").is_file() == (ranks > 1)
    assert len({file.name for files in own for file in files}) >= ranks
    sizes = [sum(file.bytes for file in files) for files in own]
    assert min(sizes) > 0
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[name], value) for name, value in state.items())
    assert AutoTokenizer.from_pretrained(tmp_path)("1+2=").input_ids


def test_a_small_model_is_one_file_however_many_ranks(tmp_path: Path) -> None:
    model = engine_model(0, tied=True)
    policy = Policy(model, load_policy("package:laptop").tokenizer)
    own = [[file.name for file in model_files(policy, full_state(model), tmp_path, rank, 8)] for rank in range(8)]
    assert own == [["model.safetensors"], *[[]] * 7]
