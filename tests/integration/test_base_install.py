import json
from pathlib import Path

from tests.support.commands import python
from tests.support.runs import SMALL

OTHERS = ("accelerate", "bitsandbytes", "datasets", "deepspeed", "gguf", "lm_eval", "peft", "sentencepiece", "tiktoken")
OTHERS += ("tensorboard", "trackio", "trl", "vllm", "wandb")
CODE = f"""
import json, sys
sys.modules.update(dict.fromkeys({OTHERS}))
from tepo_cli.main import main
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)
"""


def test_commands_take_no_package_of_an_extra(tmp_path: Path) -> None:
    commands = [
        ("train", *SMALL, "train.steps=1"),
        ("eval", "add3", "--model", "package:laptop", "--limit", "5"),
        ("table", "panel-e", "--records"),
    ]
    done = python("-c", CODE, json.dumps([(*words, "--store", "runs") for words in commands]), cwd=tmp_path)
    assert "GRPO/DAPO" in done.stdout  # the last one's
