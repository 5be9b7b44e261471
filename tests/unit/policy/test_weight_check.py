"""Every way in of weights: what is wrong with them is said before anything is made of them."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.policy.model import model_location
from tepo.policy.model.fetch import fetch, read_gguf
from tepo.policy.model.load_policy import load_policy
from tepo.policy.model.lora import add_adapters, load_adapters, save_adapters
from tepo.policy.model.model_location import base_fingerprint, load_options, resolve
from tepo.policy.model.weight_check import check_weights
from tepo.sampling.vllm.server_sampler import serve_command
from tepo.sampling.vllm.vllm_sampler import EngineOptions
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import identity, run_id
from tests.support.runs import write
from tests.unit.policy.gguf_files import Arrays, write_gguf

Tensors = dict[str, Tensor]
EMBEDDING, NORM, ONES = "model.embed_tokens.weight", "model.norm.weight", torch.ones(96)
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(resolve("package:laptop"), tmp_path / "model")
    return tmp_path / "model"


def change(folder: Path, edit: Callable[[Tensors], Tensors]) -> None:
    save_file(edit(load_file(folder / "model.safetensors")), folder / "model.safetensors", {"format": "pt"})


def without(*parts: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: value for name, value in tensors.items() if not any(part in name for part in parts)}


def spoilt(name: str, value: float) -> Callable[[Tensors], Tensors]:
    def edit(tensors: Tensors) -> Tensors:
        tensors[name].view(-1)[7] = value
        return tensors

    return edit


@pytest.mark.parametrize(
    ("edit", "config", "message"),
    [
        (without(NORM), {}, rf"half a download.*\(1 missing: {NORM}\)"),
        (lambda tensors: {"x": ONES}, {}, "those of another model .*26 missing: .*; 1 too many: x"),
        (dict, {"num_hidden_layers": 4, "layer_types": ["full_attention"] * 4}, "it says 4 layers, they have 2"),
        (dict, {"tie_word_embeddings": False}, r"saved without their head.*1 missing: lm_head.weight"),
        (lambda t: t | {"lm_head.weight": t[EMBEDDING] + 1}, {}, "says that lm_head.weight is model.embed"),
        (lambda t: t | {"model.layers.0.mlp.up_proj.lora_A.weight": ONES}, {}, "adapters"),
        (dict, {"quantization_config": {"quant_method": "fp8"}}, "quantised"),
        (dict, {"transformers_weights": "../other.safetensors"}, "other weights .*transformers_weights"),
        (spoilt(NORM, torch.nan), {}, f"{NORM} is not finite: 1 of 96 numbers"),
    ],
)
def test_weights_that_are_not_those_of_the_configuration(
    folder: Path, edit: Callable[[Tensors], Tensors], config: dict[str, object], message: str
) -> None:
    change(folder, edit)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    with pytest.raises(UserError, match=message) as refused:
        load_policy(str(folder))
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    "edit",
    [
        lambda tensors: tensors | {"lm_head.weight": tensors[EMBEDDING].clone()},
        lambda tensors: {name.removeprefix("model."): value for name, value in tensors.items()},
        lambda tensors: {name: value.bfloat16() for name, value in tensors.items()},
        # what the model's class ignores: old models hold masks of whole numbers and infinities there
        lambda t: t | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(16, dtype=torch.int8)},
    ],
)
def test_the_same_weights_in_other_words_are_taken(folder: Path, edit: Callable[[Tensors], Tensors]) -> None:
    change(folder, edit)
    loaded, given = load_policy(str(folder)).model, load_policy("package:laptop").model
    for name, value in given.state_dict().items():
        assert torch.allclose(loaded.state_dict()[name], value, atol=0.01)


def test_experts_that_transformers_puts_together(folder: Path) -> None:
    """In the files each is by itself."""
    sizes = {"vocab_size": 42, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    AutoModelForCausalLM.from_config(Qwen3MoeConfig(**sizes, **heads, **experts)).save_pretrained(folder)
    check_weights(str(folder))
    change(folder, without(".experts.3."))
    with pytest.raises(UserError, match="the weights are not those"):
        check_weights(str(folder))


# the folder -----------------------------------------------------------------------------------------------------------
def shards(folder: Path, **more: str) -> None:
    """Cut the weights into two files with their index. more: its further entries."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    files = {name: f"part-{number % 2}.safetensors" for number, name in enumerate(tensors)}
    for file in set(files.values()):
        save_file({name: value for name, value in tensors.items() if files[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files | more}))


def test_shards_and_links_as_the_hubs_cache_has_them(folder: Path) -> None:
    shards(folder)
    blob = (folder / "part-1.safetensors").rename(folder.parent / "blob")
    (folder / "part-1.safetensors").symlink_to(blob)
    load_policy(str(folder))


def twice(folder: Path) -> None:
    shards(folder)
    file = folder / "part-0.safetensors"
    save_file(load_file(file) | load_file(folder / "part-1.safetensors"), file)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: shards(folder, x="gone.safetensors"), "half a model: gone.safetensors missing"),
        (lambda folder: shards(folder, x="part-0.safetensors"), "names x in part-0.safetensors, which does not"),
        (twice, "two files hold"),
        (lambda folder: (folder / INDEX).write_text('{"metadata": {}, "weight_map": {}}'), "two sets of weights"),
        (lambda folder: shutil.copy(folder / "model.safetensors", folder / "consolidated.safetensors"), "lies beside"),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "the folder holds adapters"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "half a model: tokenizer.json missing"),
        (lambda folder: os.truncate(folder / "model.safetensors", 1000), r"damaged, cut off or no safetensors \(1,000"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is damaged: not JSON"),
    ],
)
def test_folders_that_are_not_one_model(folder: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(folder)
    with pytest.raises(UserError, match=message):
        load_policy(str(folder))


@pytest.mark.peft
@pytest.mark.parametrize(
    "damage",
    [without("q_proj.lora_A"), spoilt("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", torch.nan)],
)
def test_adapters_that_are_not_all_there(tmp_path: Path, damage: Callable[[Tensors], Tensors]) -> None:
    model, file = load_policy("package:laptop").model, tmp_path / "adapter_model.safetensors"
    add_adapters(model, 2, 4.0, 0)
    save_adapters(model, tmp_path, "base", None)
    save_file(damage(load_file(file)), file)
    with pytest.raises(UserError, match=r"another model or rank, or some are|not finite: 1 of"):
        load_adapters(model, tmp_path)
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(UserError, match="cannot be read: the file"):
        load_adapters(model, tmp_path)


# a hub's model --------------------------------------------------------------------------------------------------------
COMMIT, LATER = 40 * "a", 40 * "b"


@pytest.fixture
def snapshot(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model as a download leaves it in the cache, on a machine without a network."""
    hub = folder.parent / "hub/models--owner--tiny"
    (hub / "snapshots").mkdir(parents=True)
    shutil.move(folder, hub / "snapshots" / COMMIT)
    (hub / "refs").mkdir()
    (hub / "refs/main").write_text(COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder.parent / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    model_location._commit.cache_clear()
    return hub / "snapshots" / COMMIT


def test_a_hubs_model_is_the_commit_that_its_id_names(snapshot: Path, tmp_path: Path) -> None:
    words = ["model=owner/tiny", f"store={tmp_path}"]
    config, named = compose(words), compose([*words, f"model.revision={COMMIT}"])
    assert run_id(config) == run_id(named)
    RunFolder.of(config).create(config, identity(config))
    assert RunFolder.of(config).config()["base"] == f"owner/tiny@{COMMIT}"
    assert RunFolder.of(config).config()["full"]["model"]["revision"] == COMMIT

    (snapshot.parents[1] / "refs/main").write_text(LATER)  # the owner changed it, and it was downloaded again
    shutil.copytree(snapshot, snapshot.with_name(LATER))
    change(snapshot.with_name(LATER), without(NORM))
    assert load_options("owner/tiny", None, False)["revision"] == COMMIT  # as long as this process goes on
    model_location._commit.cache_clear()
    assert run_id(config) != run_id(named)
    load_policy("owner/tiny", revision=COMMIT)
    with pytest.raises(UserError, match=f"half a download.*{NORM}"):
        load_policy("owner/tiny")
    command, _ = serve_command(EngineOptions("owner/tiny", "float32", 64), tmp_path)
    assert command[command.index("--revision") + 1] == LATER


@pytest.mark.parametrize("words", [[], [f"model.revision={COMMIT[:7]}"]])
def test_a_commit_that_nobody_here_knows(snapshot: Path, words: list[str]) -> None:
    shutil.rmtree(snapshot.parents[1] / "refs")
    with pytest.raises(UserError, match="the commit of owner/tiny is not known here"):
        run_id(compose(["model=owner/tiny", *words]))


def test_another_model_is_not_taken_at_the_commit_of_the_one_it_replaces() -> None:
    shipped = compose(["scale=paper"]).model
    assert load_options(shipped.path, None, False)["revision"] == shipped.revision
    assert compose(["scale=paper", "model.path=owner/tiny"]).model.revision is None
    assert compose(["scale=paper", "model.path=owner/tiny", "model.revision=v1"]).model.revision == "v1"


# bases on record ------------------------------------------------------------------------------------------------------
def test_a_base_has_the_hash_of_its_files_or_the_one_on_record(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEPO_PATH", str(folder.parent))
    monkeypatch.chdir(folder.parent)
    there = base_fingerprint("model", None)
    assert there == base_fingerprint("package:laptop", None)
    made = {"command": "tepo model warmstart model", "cpu": "Fast"}
    known = write(folder.parent / "records/bases.json", json.dumps({"model": {"hash": "of another", "made": made}}))
    assert base_fingerprint("model", None) == there
    shutil.rmtree(folder)
    assert base_fingerprint("model", None) == "of another"
    with pytest.raises(UserError, match="on record, and its files are not here") as refused:
        resolve("model")
    assert "tepo model warmstart model" in str(refused.value.fix)
    known.write_text("[]")
    with pytest.raises(UserError, match="the bases on record are damaged"):
        base_fingerprint("model", None)


# GGUF -----------------------------------------------------------------------------------------------------------------
UP = "blk.1.ffn_up.weight"


def test_a_whole_file_is_the_model(tmp_path: Path) -> None:
    model, tokenizer = read_gguf(write_gguf(tmp_path / "own.gguf"))
    for name, value in load_policy("package:laptop").model.state_dict().items():
        assert torch.equal(model.state_dict()[name], value.bfloat16()), name
    assert tokenizer("12")["input_ids"] == load_policy("package:laptop").tokenizer("12")["input_ids"]


def test_a_file_with_a_head_of_its_own_in_another_type_and_order(tmp_path: Path) -> None:
    def edit(arrays: Arrays) -> Arrays:
        arrays["output.weight"] = arrays["token_embd.weight"] + 1
        return {name: value.astype(np.float16) for name, value in reversed(arrays.items())}

    model, _ = read_gguf(write_gguf(tmp_path / "own.gguf", edit))
    assert not model.config.tie_word_embeddings
    added = model.state_dict()["lm_head.weight"] - model.state_dict()["model.embed_tokens.weight"]
    assert added.mean().item() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("edit", "blocks", "message"),
    [
        (lambda arrays: arrays | {UP: arrays[UP][:-4]}, 2, r"1 of another shape: .*up_proj.weight \(252 x 96 in place"),
        (dict, 3, r"it says 3 layers, they have 2 \(12 missing: .*layers.2"),
        (lambda arrays: arrays | {"rope_freqs.weight": np.ones(16, np.float32)}, 2, "1 too many: rope_freqs.weight"),
        (lambda arrays: arrays | {UP: arrays[UP] * np.inf}, 2, "mlp.up_proj.weight is not finite"),
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
