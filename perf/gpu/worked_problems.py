"""Word problems with worked solutions, made by a seed, and a base that has seen a few of them: a run of a small
language model needs neither a file nor a network, and most of its groups are mixed.

Training has problems of one and two steps. What is measured is apart from them in one thing or more: other numbers,
other wording, one step more.
"""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from tepo.policy.model.load_policy import load_tokenizer
from tepo.problems.prompt_format import render_prompt

_NAMES = ("Ada", "Ben", "Carla", "David", "Emma", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kim", "Lena")
_THINGS = ("apples", "books", "cards", "eggs", "marbles", "pencils", "stamps", "stickers", "tickets", "shells")
_NUMBERS = {"a": (40, 90), "b": (2, 12), "c": (2, 6), "d": (2, 12)}
_FEW = {"a": (4, 5), "b": (1, 2), "c": (1, 1), "d": (1, 2)}  # answers from 0 to 7, as those of make_policy
_KINDS = (  # text, and its steps; x is the result of the one before
    ("{n} has {a} {t} and gets {b} more. How many {t} does {n} have now?", "a + b"),
    ("{n} has {a} {t} and gives {b} of them to {m}. How many {t} does {n} have left?", "a - b"),
    ("There are {c} boxes with {b} {t} in each. How many {t} are there in all?", "c * b"),
    ("{n} has {a} {t}, gets {b} more and then loses {d}. How many {t} does {n} have now?", "a + b; x - d"),
    ("{n} has {a} {t}, gives {b} to {m} and {d} to a friend. How many {t} does {n} have left?", "a - b; x - d"),
    ("{n} buys {c} bags with {b} {t} each and already had {a}. How many {t} does {n} have now?", "c * b; x + a"),
    ("{n} has {b} {t} and {m} has {d}. Together they want {c} times as many. How many is that?", "b + d; x * c"),
)
_OTHER_WORDING = (
    ("A shop starts the day with {a} {t} and sells {b}. How many {t} remain?", "a - b"),
    ("Each of {c} children brings {b} {t}. How many {t} do they bring together?", "c * b"),
    ("A shelf holds {a} {t}. {n} takes away {b}, and {m} puts {d} on it. How many {t} are on it now?", "a - b; x + d"),
    ("{n} fills {c} rows with {b} {t} and has {d} left over. How many {t} are there?", "c * b; x + d"),
)
_ONE_STEP_MORE = (
    (
        "{n} has {a} {t}, gets {b} more, gives {d} to {m} and loses {c}. How many {t} does {n} have?",
        "a + b; x - d; x - c",
    ),
    ("{n} buys {c} bags with {b} {t} each, had {a} and loses {d}. How many {t} does {n} have?", "c * b; x + a; x - d"),
)
BENCHMARKS = {"other_numbers": _KINDS, "other_wording": _OTHER_WORDING, "one_step_more": _ONE_STEP_MORE}
_BENCHMARK = """\
title: {name}
dataset: {{path: {name}.jsonl}}
count: {count}
prompt: boxed
samples: 4
temperature: 1.0
max_new_tokens: 64
"""
RATE, BATCH = 2e-5, 16  # of the warm start


class Worked(NamedTuple):
    """A problem, its solution, which ends in the boxed answer, and the answer."""

    text: str
    solution: str
    answer: int


def problems(
    seed: str, kinds: tuple[tuple[str, str], ...] = _KINDS, held: bool = False, few: bool = False
) -> Iterator[Worked]:
    """Problems without end. held: those with the numbers that training never has, one in five."""
    random = Random(seed)
    while True:
        text, steps = random.choice(kinds)
        numbers = {name: random.randint(*ends) for name, ends in (_FEW if few else _NUMBERS).items()}
        if (sum(numbers[name] for name in numbers if name in steps) % 5 == 0) != held:
            continue
        solution, result = "", 0
        for step in steps.split("; "):
            left, sign, right = step.split()
            one, other = (numbers.get(name, result) for name in (left, right))
            result = {"+": one + other, "-": one - other, "*": one * other}[sign]
            solution += f"{one} {sign} {other} = {result}. "
        name, friend = random.sample(_NAMES, 2)
        words = text.format(n=name, m=friend, t=random.choice(_THINGS), **numbers)
        yield Worked(words, f"{solution}\\boxed{{{result}}}", result)


def write(folder: Path, train: int, count: int, few: bool) -> dict[str, str]:
    """Fill a folder with train.jsonl and the benchmarks. Returns the overrides that name them."""
    (folder / "evals").mkdir(exist_ok=True)
    sources = {"train.jsonl": (problems("train", few=few), train)}
    for name, kinds in BENCHMARKS.items():
        sources[f"evals/{name}.jsonl"] = problems(name, kinds, held=True, few=few), count
        (folder / f"evals/{name}.yaml").write_text(_BENCHMARK.format(name=name, count=count))
    for path, (source, size) in sources.items():
        answers: dict[str, int] = {}
        while len(answers) < size:
            one = next(source)
            answers[one.text] = one.answer
        rows = [{"id": f"{i}", "problem": text, "answer": str(one)} for i, (text, one) in enumerate(answers.items())]
        (folder / path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"data": str(folder / "train.jsonl"), "data.benchmarks": f"[{','.join(BENCHMARKS)}]"}


def warm_start(source: str, target: str, device: str, steps: int, few: bool) -> list[float]:
    """Show a model `steps` batches of worked problems, and save it in bfloat16. Returns the losses.

    Weights are float32, products bfloat16."""
    from transformers import AutoModelForCausalLM

    tokenizer: Any = load_tokenizer(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).to(device)
    ends = model.generation_config.eos_token_id
    end = ends[0] if isinstance(ends, list) else ends
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    drawn, losses = problems("warm start", few=few), []
    for _ in range(steps):
        ids, labels = batch(list(islice(drawn, BATCH)), tokenizer, end)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(input_ids=ids.to(device), labels=labels.to(device), use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.to(torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)
    return losses


def batch(drawn: list[Worked], tokenizer: Any, end: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and labels [rows, T], padded on the right; labels where the solution stands."""
    prompts = [render_prompt(one.text, tokenizer, prompt="boxed") for one in drawn]
    before = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    after = tokenizer([one.solution for one in drawn], add_special_tokens=False)["input_ids"]
    ids = [torch.tensor([*prompt, *solution, end]) for prompt, solution in zip(before, after, strict=True)]
    labels = [torch.cat([torch.full((len(p),), -100), row[len(p) :]]) for p, row in zip(before, ids, strict=True)]
    return pad_sequence(ids, True, end), pad_sequence(labels, True, -100)


if __name__ == "__main__":
    source, target, device, steps, *rest = sys.argv[1:]
    print(json.dumps(warm_start(source, target, device, int(steps), "few" in rest)))
