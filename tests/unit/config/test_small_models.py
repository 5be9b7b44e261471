import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, Qwen2Config, Qwen3Config

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.evaluation.responses import Tools, sample_rows
from tepo.evaluation.settings import Settings
from tepo.policy.model.load_policy import load_policy
from tepo.policy.model.shapes import KNOWN, Shape, check_length, shape_of
from tepo.problems.benchmarks import Benchmark
from tepo.problems.grader import Grader
from tepo.problems.problem import Problem
from tepo.problems.prompt_format import render_prompt
from tepo.sampling.backends import sampler_backend
from tepo.sampling.embedded.torch_sampler import TorchSampler
from tepo.sampling.stop_tokens import stop_tokens_of
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import run_id
from tepo.training.loop import train
from tepo.training.run import Run
from tests.integration.own_model import TURN, make_tokenizer, save_family, teach, word_problems
from tests.support.models import tiny_model
from tests.support.runs import small

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Published:
    """What the authors publish: the counts of the weights' files, those without embeddings from the model cards
    (billions, None where the card has none), and the sizes in config.json."""

    path: str
    parameters: int
    rest: float | None
    config: type
    sizes: tuple[int, ...]
    positions: int


MODELS = {
    "qwen2.5-0.5b": Published(
        "Qwen/Qwen2.5-0.5B", 494_032_768, 0.36, Qwen2Config, (896, 4864, 24, 14, 2, 64, 151_936), 32_768
    ),
    "qwen2.5-1.5b": Published(
        "Qwen/Qwen2.5-1.5B", 1_543_714_304, 1.31, Qwen2Config, (1536, 8960, 28, 12, 2, 128, 151_936), 131_072
    ),
    "qwen2.5-math-1.5b": Published(
        "Qwen/Qwen2.5-Math-1.5B", 1_543_714_304, 1.31, Qwen2Config, (1536, 8960, 28, 12, 2, 128, 151_936), 4096
    ),
    "qwen3-0.6b-base": Published(
        "Qwen/Qwen3-0.6B-Base", 596_049_920, 0.44, Qwen3Config, (1024, 3072, 28, 16, 8, 128, 151_936), 32_768
    ),
    "qwen3-1.7b-base": Published(
        "Qwen/Qwen3-1.7B-Base", 1_720_574_976, 1.4, Qwen3Config, (2048, 6144, 28, 16, 8, 128, 151_936), 32_768
    ),
    "llama-3.2-1b": Published(
        "meta-llama/Llama-3.2-1B", 1_235_814_400, None, LlamaConfig, (2048, 8192, 16, 32, 8, 64, 128_256), 131_072
    ),
    "smollm2-360m": Published(
        "HuggingFaceTB/SmolLM2-360M", 361_821_120, None, LlamaConfig, (960, 2560, 32, 15, 5, 64, 49_152), 8192
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_pinned_and_asked_as_a_base(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = compose([f"model={name}", "data=gsm8k"])
    model = config.model
    assert (model.name, model.path, model.dtype, model.wrap) == (name, MODELS[name].path, "bfloat16", "base")
    assert re.fullmatch("[0-9a-f]{40}", model.revision or "")
    assert model.gradient_checkpointing is None  # the planner's choice
    assert not model.trust_remote_code
    assert len(run_id(config)) == 12  # nothing is downloaded for it
    assert f"`{name}`" in (ROOT / "docs/scales.md").read_text()


@pytest.mark.parametrize("name", MODELS)
def test_sizes_are_the_published_ones(name: str) -> None:
    published, shape = MODELS[name], shape_of(MODELS[name].path)
    assert shape == Shape(*published.sizes, tied=True, positions=published.positions)
    assert shape.parameters == pytest.approx(published.parameters, rel=0.001)
    if published.rest:
        assert shape.parameters - shape.head_parameters == pytest.approx(published.rest * 1e9, rel=0.01)
    hidden, inner, layers, heads, kv_heads, head_dim, words = published.sizes
    config = published.config(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=words,
        max_position_embeddings=published.positions,
        tie_word_embeddings=True,
    )
    assert Shape.of_config(config) == shape
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == published.parameters


def test_lengths_beyond_a_known_models_positions_are_an_error_of_the_plan() -> None:
    words = ["model=qwen2.5-math-1.5b", "data=gsm8k", "sampler=vllm", "train.max_prompt_tokens=1024"]
    check = sampler_backend("vllm").check_settings
    check(compose([*words, "train.max_new_tokens=3072"]), 1)
    with pytest.raises(UserError, match="has 4,096 positions, prompts and responses take up to 4,097"):
        check(compose([*words, "train.max_new_tokens=3073"]), 1)
    assert all(shape.positions for shape in KNOWN.values())
    check_length("own", 10**9, None)


def test_a_base_is_asked_in_plain_text_though_its_tokenizer_has_a_template() -> None:
    """Qwen's bases have the template of the models that were trained on from them."""
    tokenizer = make_tokenizer(["How many?"], chat=True)
    assert render_prompt("How many?", tokenizer, prompt="boxed", wrap="base").startswith("Question:\nHow many?")
    assert render_prompt("How many?", tokenizer, prompt="boxed", wrap="auto").startswith(TURN[0])


@pytest.mark.slow
def test_a_response_ends_where_tokenizer_or_generation_settings_say(tmp_path: Path) -> None:
    """A base ends with the end of a text alone; settings that list the end of a turn too add it."""
    save_family(tmp_path, "qwen2", chat=True)
    tokenizer = make_tokenizer([], chat=True)
    end, turn = tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(TURN[1])
    assert stop_tokens_of(str(tmp_path)) == [end]
    GenerationConfig(eos_token_id=[end, turn]).save_pretrained(tmp_path)
    assert stop_tokens_of(str(tmp_path)) == sorted([end, turn])
    GenerationConfig(eos_token_id=turn).save_pretrained(tmp_path)
    assert stop_tokens_of(str(tmp_path)) == sorted([end, turn])


@pytest.mark.slow
def test_a_base_that_is_asked_by_its_template_stops_where_its_turn_ends(tmp_path: Path) -> None:
    """It has learnt to go on with a turn of the user and an answer to that, as the bases of the papers do. Training
    stops it there, and so does measuring the checkpoint."""
    rows = word_problems(40)
    (tmp_path / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    statements, further = [row["problem"] for row in rows], f".{TURN[1]}\n{TURN[0]}user\nMore?{TURN[1]}\n\\boxed{{9}}"
    said = [f"\\boxed{{{answer}}}{further}" for answer in range(3, 7)]
    tokenizer = make_tokenizer([*statements, *said], chat=True)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = tiny_model("llama", vocab_size=len(tokenizer), hidden_size=64, max_position_embeddings=512, **ends)
    teach(model, tokenizer, statements, said, steps=80)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "base")
    assert stop_tokens_of(str(tmp_path / "base")) == [tokenizer.eos_token_id]

    words = (f"model={tmp_path / 'base'}", f"data={tmp_path / 'words.jsonl'}", "train.max_new_tokens=60")
    run = RunFolder(train(Run(small(tmp_path / "runs", *words, "train.steps=1"))))
    kept = json.loads(run.prompt_file.read_text())
    assert kept["stop"] == [tokenizer.convert_tokens_to_ids(TURN[1])]
    (row,) = run.metrics()
    assert row["response_length/mean"] < 12 < len(tokenizer(said[0])["input_ids"])

    checkpoint = load_policy(str(run.checkpoint(1)))
    benchmark = Benchmark("Words", 4, 4, 1.0, 60, prompt="boxed", name="words")
    problems = [Problem(row["id"], row["problem"], row["answer"]) for row in rows[:4]]
    with Grader() as grader:
        tools = Tools(TorchSampler(checkpoint.model, checkpoint.tokenizer), checkpoint.tokenizer, grader)
        asked = sample_rows(benchmark, problems, tools, Settings())
        plainly = sample_rows(benchmark, problems, tools, Settings(wrap="base"))
    ended = [row["response"] for row in asked if row["finish"] == "stop"]
    assert len(ended) > 12
    assert not [text for text in ended if "user" in text or "9" in text or "<|" in text]
    assert [row for row in plainly if "user" in row["response"]]  # there is no turn that could end
