"""A new user's day, from top to bottom: from an installed wheel, outside of the checkout, by commands and documents
alone. Problems with mistakes in them, a model, a benchmark, an advantage, a study with records, a claim, and TRL."""

import json
import re
from collections.abc import Iterator

import pytest

from tepo.objectives.check import CHECKS
from tests.integration.installed import User
from tests.integration.own_model import save_family, word_problems
from tests.unit.training.small import write

pytestmark = pytest.mark.disaster

SMALL = "train.steps=2 train.prompts_per_step=8 train.samples_per_prompt=8 train.mini_batch_prompts=4"
SHORT = "train.max_new_tokens=12"
BAD_ROWS = [  # the line, and what is said of it
    (b'{"id": "a", "answer": "1"}', "no problem"),
    (b'{"id": "b", "problem": "What?", "answer": null}', "no answer"),
    (b'{"id": "c", "problem": "What?"', "not JSON from column"),
    (b'["d", "What?", "1"]', "not keys and values"),
    (b'{"id": "e", "problem": ["What?"], "answer": "1"}', "the problem is no text"),
    (b'{"id": "f", "problem": " ", "answer": "1"}', "the problem is empty"),
    (b'{"id": "g", "problem": "What?", "answer": ["1"]}', "the answer is neither a text nor a number"),
    (b'{"id": "h", "problem": "What?", "answer": true}', "the answer is neither a text nor a number"),
    (b'{"id": "i", "problem": "What?", "answer": "  "}', "the gold answer is empty"),
    (b'{"id": "j", "problem": "What?", "answer": NaN}', "the gold answer is NaN"),
    (b'{"id": "k", "problem": "Wh\xe4t?", "answer": "1"}', "not text in UTF-8"),
    (b'{"id": "l", "problem": "\\ud83d", "answer": "1"}', "half a character"),
]
REWARD = """
def reward(problem, response):
    return 1.0 if problem.answer in response else 0.0
"""
BEST = '''
import torch
from torch import Tensor

from tepo.objectives import Layout, function


@function(takes="response", gives="response")
def best_g(layout: Layout, x: Tensor) -> Tensor:
    """Largest of the group."""
    same = layout.groups[:, None] == layout.groups[None]
    return torch.where(same, x[None], -torch.inf).amax(1) if len(x) else x
'''
OBJECTIVE = {
    "about": "A response's reward less the best of its group: the best is not pushed, the others are pushed down.",
    "like": "grpo_dapo",
    "functions": "below_best",
    "formula": {"A": "scale*(R - best_g(R))"},
    "constants": {"scale": {"value": 2.0, "source": "ours"}},
}
BENCHMARK = {
    "title": "Word problems",
    "dataset": {"path": "bags.jsonl"},
    "count": 20,
    "prompt": "boxed",
    "samples": 2,
    "temperature": 1.0,
    "max_new_tokens": 12,
}
STUDY = {
    "title": "Below the best",
    "baseline": "GRPO",
    "rows": [
        {"label": "untrained", "base": True},
        {"label": "GRPO", "objective": "grpo_dapo"},
        {"label": "Ours", "objective": "below_best"},
    ],
    "scales": {
        "laptop": {"models": ["./tiny"], "seeds": [0, 1], "overrides": [*SMALL.split(), "data.benchmarks=[bags]"]}
    },
}
CLAIM = {
    "name": "below_best",
    "sentence": "Twice the advantage is as good as once.",
    "a": {"label": "twice", "objective": "below_best"},
    "b": {"label": "once", "objective": "below_best", "overrides": ["objective.scale=1"]},
    "settings": [*SMALL.split(), "data.benchmarks=[add3]"],
    "rule": "not chosen",
    "region": {"between": [-2, 2]},
    "problems": 7001,
    "refuted_by": "a difference of two points",
}
TRL = """
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig
from tepo.integrations.trl import ObjectiveTrainer

def reward(completions, **_):
    return [float(sum(map(ord, text)) % 3) for text in completions]

quiet = dict(report_to="none", save_strategy="no", logging_steps=1, disable_tqdm=True, use_cpu=True, bf16=False)
small = dict(per_device_train_batch_size=8, num_generations=4, max_completion_length=12, max_steps=4, seed=1)
args = GRPOConfig("out", num_iterations=2, learning_rate=1e-3, gradient_checkpointing=False, **quiet, **small)
prompts = Dataset.from_list([{"prompt": f"{number}+{number}="} for number in range(8)])
model = AutoModelForCausalLM.from_pretrained("tiny")
before = torch.cat([part.detach().flatten().clone() for part in model.parameters()])

own = dict(train_dataset=prompts, processing_class=AutoTokenizer.from_pretrained("tiny"))
trainer = ObjectiveTrainer(objective="tepo", model=model, reward_funcs=reward, args=args, **own)
trainer.train()

after = torch.cat([part.detach().flatten() for part in trainer.model.parameters()])
tokens = [row["actor/kl_tokens"] for row in trainer.state.log_history if "actor/kl_tokens" in row]
print("moved", float((after - before).abs().max()), "tokens of the KL", tokens)
"""


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    user = User.of_wheel(tmp_path_factory.mktemp("day"))
    yield user
    user.leaves()


def test_a_day(user: User) -> None:
    # nine o'clock: problems of one's own; a BOM, blank lines and Windows' ends of lines are none of the mistakes
    good = [json.dumps(row).encode() for row in word_problems(40)]
    twice = json.dumps(word_problems(1)[0]).encode()
    lines = [b"\xef\xbb\xbf" + good[0], b"", *good[1:], *(line for line, _ in BAD_ROWS), twice]
    (user.folder / "words.jsonl").write_bytes(b"\r\n".join(lines))
    said = user.types("data verify words.jsonl", code=2)
    for number, (_, mistake) in enumerate(BAD_ROWS, start=len(good) + 2):
        assert re.search(rf"line {number}: {mistake}", said), (number, mistake, said)
    assert f"lines 1, {len(lines)} have the same id 'word-0'" in said
    assert '{"id", "problem", "answer"} on each line' in said
    refused = user.types(f"train data=words.jsonl {SMALL}", code=2)
    assert "line 42: no problem" in refused
    assert "more mistakes: `tepo data verify` lists them" in refused

    # ten: they are mended, and what no line shows is said of the whole
    other = {**word_problems(1)[0], "id": "other", "answer": "77"}
    unread = {"id": "unread", "problem": "How many cases?", "answer": r"\begin{cases} \frac{"}
    write(
        user.folder / "words.jsonl", "\r\n".join([*(row.decode() for row in good), *map(json.dumps, (other, unread))])
    )
    said = user.types("data verify words.jsonl", code=1)
    assert "42 problems" in said
    assert "word-0, other: the same problem with the answers" in said
    assert "golds that the grader cannot read: unread" in said
    write(user.folder / "words.jsonl", "\n".join(row.decode() for row in good) + "\n")
    assert "40 problems" in user.types("data verify words.jsonl")

    # eleven: a model with a vocabulary of its own
    save_family(user.folder / "tiny", "qwen2")
    train = f"train model=./tiny data=words.jsonl objective=grpo_dapo {SMALL} --quiet"
    said = user.types(f"{train} train.max_prompt_tokens=8", code=2)
    assert "40 of 40 prompts are longer than 8 tokens" in said
    run = re.search(r"run ([0-9a-f]{12}): 2 steps", user.types(f"{train} {SHORT}"))
    assert run
    metrics = (user.folder / "runs" / run[1] / "metrics.jsonl").read_text().splitlines()
    assert 0 < json.loads(metrics[0])["critic/score/mean"] < 1

    # noon: a benchmark, some of whose problems are in the training set
    own = [{**row, "id": f"bag-{number}"} for number, row in enumerate(word_problems(20, seed=1))]
    own[0] = {**own[0], **{key: word_problems(1)[0][key] for key in ("problem", "answer")}}
    write(user.folder / "evals/bags.jsonl", "".join(json.dumps(row) + "\n" for row in own))
    user.declares("evals/bags.yaml", BENCHMARK)
    assert "bags: 20 problems" in user.types("data verify bags")
    for model in ("./tiny", f"runs/{run[1]}"):
        assert re.search(r"bags +[│|] +20 +[│|] +\d+\.\d\d", user.types(f"eval bags --model {model}"))

    # one: a reward
    write(user.folder / "rewards/named.py", REWARD)
    other = re.search(r"run ([0-9a-f]{12}): 2 steps", user.types(f"{train} {SHORT} data.reward=rewards/named.py"))
    assert other
    assert other[1] != run[1]
    assert "named" in user.types(f"explain {other[1]}")

    # two: an advantage of one's own
    write(user.folder / "functions/below_best.py", BEST)
    user.declares("objective/below_best.yaml", OBJECTIVE)
    checked = user.types("explain below_best --check")
    assert checked.count("pass") == len(CHECKS), checked
    assert "best_g(R)" in user.types("explain below_best")

    # three: a study with the untrained model and two seeds, and its records
    user.declares("experiments/bags.yaml", STUDY)
    words = f"--data words.jsonl --set {SHORT}"
    assert "5 runs" in user.types(f"plan bags {words}")
    user.types(f"ablate bags {words} --jobs 2")
    table = user.types(f"table bags {words} --format csv")
    assert all(re.search(rf"{label}\b.*\bbags,", table) for label in ("untrained", "GRPO", "Ours")), table
    assert "bags: 5 runs from the store" in user.types(f"records write bags {records(words)}")
    (user.folder / "runs").rename(user.folder / "elsewhere")
    shown = user.types(f"table bags {words} --records --store nothing --format csv")
    assert scores(shown) == scores(table) != []
    others = user.types("table bags --data words.jsonl --records --store nothing")
    assert "4 stale records not used: of other settings" in others  # the untrained model has none

    # four: a claim, which too few seeds do not decide
    user.declares("experiments/claims.yaml", {"claims": [CLAIM | {"seeds": [100, 101, 102]}]})
    assert "fewer than 8 seeds decide little" in user.types("table", "claims", code=2)
    user.declares("experiments/claims.yaml", {"claims": [CLAIM | {"seeds": list(range(100, 108))}]})
    assert "Your own claims,,below_best,below_best,runs,Runs,,,,,0 of 16" in user.types("claims --format csv")

    # five: TEPO in somebody else's trainer
    write(user.folder / "with_trl.py", TRL)
    moved, tokens = re.search(r"moved (\S+) tokens of the KL (.*)", user.python("with_trl.py")).groups()
    assert float(moved) > 0
    assert max(json.loads(tokens)) > 0  # TEPO's own term acts from the second update of a rollout on


def records(words: str) -> str:
    """The options of `ablate` as `records` knows them."""
    return words.replace("--data ", "--set data=")


def scores(table: str) -> list[str]:
    return [line for line in table.splitlines() if line.startswith("Measured,")]
