import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.runs import SMALL

OTHERS = ("accelerate", "bitsandbytes", "datasets", "deepspeed", "gguf", "lm_eval", "peft", "sentencepiece", "tiktoken")
OTHERS += ("tensorboard", "trackio", "trl", "vllm", "wandb")
CODE = f"import sys; sys.modules.update(dict.fromkeys({OTHERS})); from tepo_cli.main import main; main()"


@pytest.mark.parametrize(
    "words",
    [
        ("train", *SMALL, "train.steps=1"),
        ("eval", "add3", "--model", "package:laptop", "--limit", "5"),
        ("table", "panel-e", "--records"),
    ],
)
def test_it_takes_no_package_of_an_extra(words: tuple[str, ...], tmp_path: Path) -> None:
    command = [sys.executable, "-c", CODE, *words, "--store", "runs"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
