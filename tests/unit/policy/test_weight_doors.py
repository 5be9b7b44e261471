"""Every way in of weights: what is wrong with them is said before anything is made of them."""

import ast
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tepo.common import paths
from tepo.common.errors import UserError
from tepo.policy.model.fetch import fetch, read_gguf
from tepo.policy.model.load_policy import load_policy
from tepo.policy.recipes import RECIPES
from tepo.policy.warmstart import save_base, start
from tests.unit.policy.gguf_files import Arrays, write_gguf

# What reads tensors of a file, or has another program read them.
READERS = {"from_pretrained", "from_config", "load_file", "safe_open", "load_state_dict", "load_model", "LLM"}
READERS |= {"GGUFReader", "load_gguf_checkpoint", "from_file", "torch.load", "PeftModel"}
NO_WEIGHTS = {"AutoConfig", "AutoTokenizer", "GenerationConfig"}  # whose `from_pretrained` reads settings and words
WAYS_IN = {
    "tepo/policy/model/weight_check.py": "the door: it compares and looks for numbers that are not finite",
    "tepo/policy/model/load_policy.py": "passes the door first",
    "tepo/policy/model/fetch.py": "a GGUF file, compared by the door before anything is written",
    "tepo/policy/model/lora.py": "adapters of a run's own model and rank, compared by name and shape, and finite",
    "tepo/sampling/vllm/vllm_sampler.py": "passes the door first: vLLM opens the files itself",
    "tepo/training/engine/optimizer_state.py": "no weights; its files were compared with their digests",
    "tepo/training/rollout/run_progress.py": "no weights; its files were compared with their digests",
    "tepo/training/value_tracker.py": "no weights; its files were compared with their digests",
}


def reads(file: Path) -> bool:
    """Whether a module calls a reader."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            owner, _, name = called.rpartition(".")
            if (name in READERS or called in READERS) and not (name == "from_pretrained" and owner in NO_WEIGHTS):
                return True
    return False


def test_nothing_reads_weights_beside_the_door() -> None:
    root = paths.PACKAGE.parent
    modules = [file for package in ("tepo", "tepo_cli") for file in (root / package).rglob("*.py")]
    assert {str(file.relative_to(root)) for file in modules if reads(file)} == set(WAYS_IN)


# GGUF -----------------------------------------------------------------------------------------------------------------
QUERY, UP = "blk.1.attn_q.weight", "blk.1.ffn_up.weight"


def changed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Arrays], Arrays]:
    return lambda arrays: arrays | {name: np.ascontiguousarray(change(arrays[name].copy()))}


def test_a_whole_file_is_the_model(tmp_path: Path) -> None:
    model, tokenizer = read_gguf(write_gguf(tmp_path / "own.gguf"))
    for name, value in load_policy("package:laptop").model.state_dict().items():
        assert torch.equal(model.state_dict()[name], value.bfloat16()), name
    assert tokenizer("12")["input_ids"] == load_policy("package:laptop").tokenizer("12")["input_ids"]


@pytest.mark.parametrize(
    "edit",
    [
        lambda arrays: arrays | {"output.weight": arrays["token_embd.weight"] + 1},
        lambda arrays: {name: value.astype(np.float16) for name, value in reversed(arrays.items())},
    ],
    ids=["a head of its own", "another type and order"],
)
def test_other_whole_files_are_taken(tmp_path: Path, edit: Callable[[Arrays], Arrays]) -> None:
    model, _ = read_gguf(write_gguf(tmp_path / "own.gguf", edit))
    added = model.state_dict()["lm_head.weight"] - model.state_dict()["model.embed_tokens.weight"]
    assert model.config.tie_word_embeddings == (not added.any())


@pytest.mark.parametrize(
    ("edit", "blocks", "message"),
    [
        (lambda arrays: arrays.pop(QUERY) is None or arrays, 2, r"in part \(1 missing: .*layers.1.self_attn.q_proj"),
        (changed(UP, lambda array: array[:-4]), 2, r"1 of another shape: .*up_proj.weight \(252 x 96 in place of 256"),
        (dict, 3, r"it says 3 layers, they have 2 \(12 missing: .*layers.2"),
        (lambda arrays: arrays | {"rope_freqs.weight": np.ones(16, np.float32)}, 2, "1 too many: rope_freqs.weight"),
        (changed(UP, lambda array: array.astype(np.float16) * np.inf), 2, "mlp.up_proj.weight is not finite"),
    ],
)
def test_tensors_that_are_not_those_of_the_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: Callable[[Arrays], Arrays], blocks: int, message: str
) -> None:
    monkeypatch.setenv("TEPO_MODELS", str(tmp_path / "models"))
    file = write_gguf(tmp_path / "own.gguf", edit, blocks=blocks)
    with pytest.raises(UserError, match=message) as refused:
        fetch("own", file)
    assert (refused.value.where, refused.value.exit_code) == (str(file), 2)
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-1000], "damaged, cut off or no GGUF file"),
        (lambda content: b"", "the file is empty"),
        (lambda content: content.replace(b"general.architecture", b"general.architectura"), "no `general.archi"),
        (lambda content: content.replace(b"tokenizer.ggml.merges", b"tokenizer.ggml.merger"), "does not load: it lac"),
    ],
)
def test_damaged_files(tmp_path: Path, damage: Callable[[bytes], bytes], message: str) -> None:
    file = write_gguf(tmp_path / "own.gguf")
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UserError, match=message) as refused:
        read_gguf(file)
    assert refused.value.where == str(file)


def test_a_warm_start_that_diverged_is_not_saved(tmp_path: Path) -> None:
    model, tokenizer = start(RECIPES["laptop"])
    with torch.no_grad():
        next(model.parameters())[0, 0] = torch.nan
    with pytest.raises(UserError, match=r"embed_tokens\.weight is not finite"):
        save_base(tmp_path / "base", model, tokenizer, {})
    assert not os.listdir(tmp_path)
