import importlib.util
import json
import re
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from tepo.policy.model.load_policy import load_policy
from tests.support.commands import python

SCRIPT = Path(__file__).parents[2] / "examples/word_problems/make.py"
SUM = re.compile(r"(\d+) ([-+*]) (\d+) = (-?\d+)\. ")


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_word_problems", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def right(chain: str) -> bool:
    done = SUM.findall(chain)
    rest = SUM.sub("", chain)
    holds = all(int(c) == {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[o] for a, o, b, c in done)
    return holds and rest == f"\\boxed{{{done[-1][3]}}}"


def test_chains_hold_but_where_they_slip(make: ModuleType) -> None:
    random = Random(0)
    for _, chain, answer in (make.draw(random) for _ in range(300)):
        assert right(chain)
        assert chain.endswith(f"\\boxed{{{answer}}}")
        assert 0 < answer < 60
    slipped = [right(make.draw(random, make.SLIP)[1]) for _ in range(300)]
    assert 0.6 < sum(slipped) / 300 < 0.85  # two results, each wrong with probability 0.15
    assert all(right(make.running_sums(random)) for _ in range(300))


def test_a_folder_is_made_that_trains_and_measures(make: ModuleType, tmp_path: Path) -> None:
    python(SCRIPT, tmp_path, "--steps", "1")
    files = ("train.jsonl", "evals/word_problems.jsonl")
    train, held_out = ([json.loads(line) for line in (tmp_path / name).read_text().splitlines()] for name in files)
    assert (len(train), len(held_out)) == (4000, 400)
    assert not {row["problem"] for row in train} & {row["problem"] for row in held_out}
    assert all(make.is_held_out(row["problem"]) for row in held_out)
    policy = load_policy(str(tmp_path / "base"))
    ids = policy.tokenizer("12 - 10 = 2. \\boxed{2}")["input_ids"]
    assert policy.tokenizer.decode(ids[0]).strip() == "12", "a number is a token"
