"""Data of the page: stored samples, problem by problem, and token dumps, as many of each as fit. They are compressed,
so that the page stays small: its script unpacks them when they are shown."""

import gzip
import json
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tepo.store.samples_file import GradedResponse, ProblemAnswers
from tepo.store.stored_tokens import TokenDump, TokenResponse


def packed(content: Any) -> str:
    """A text, or another value as JSON, as gzip in base64 (no time stamp: the same content gives the same text)."""
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return b64encode(gzip.compress(text.encode(), compresslevel=7, mtime=0)).decode()


BYTES = 1_000_000
"""Size of the samples in the page at most: about a third of what the page may have."""


@dataclass(frozen=True)
class RunSamples:
    """Responses of one run, by benchmark: none for a run that is left out of the comparison."""

    id: str
    label: str
    benchmarks: Mapping[str, Sequence[ProblemAnswers]]


def pack_samples(runs: Sequence[RunSamples], budget: int = BYTES) -> dict[str, Any]:
    """The first problems of each benchmark, the same share of all, so that the text has at most `budget` characters.
    Beside it the number of runs, of runs left out, of problems shown, and of all that are stored.

    A problem on the page has all its samples of all runs."""
    compared_runs = [run for run in runs if run.benchmarks]
    total = sum(len(problems) for problems in _by_problem(compared_runs, 1.0).values())
    share = 1.0
    while True:
        entries = [entry for problems in _by_problem(compared_runs, share).values() for entry in problems]
        text = packed({"runs": [[run.id, run.label] for run in compared_runs], "problems": entries})
        if len(text) <= budget or not entries:
            counts = {
                "runs": len(compared_runs),
                "left_out": len(runs) - len(compared_runs),
                "shown": len(entries),
                "total": total,
            }
            return {"text": text} | counts
        share *= min(0.9, 0.95 * budget / len(text))


def _by_problem(runs: Sequence[RunSamples], share: float) -> dict[str, list[list[Any]]]:
    """Benchmark -> [benchmark, problem, prompt, gold, different answers, for each run [answer's index, how often]]."""
    entries: dict[str, list[list[Any]]] = {}
    for name in dict.fromkeys(name for run in runs for name in run.benchmarks):
        every = [{problem.id: problem for problem in run.benchmarks.get(name, ())} for run in runs]
        ids = list(dict.fromkeys(problem for by_id in every for problem in by_id))
        entries[name] = [_entry(name, [by_id.get(id) for by_id in every]) for id in ids[: int(share * len(ids))]]
    return entries


def _entry(benchmark: str, answered: Sequence[ProblemAnswers | None]) -> list[Any]:
    problem = next(answers for answers in answered if answers is not None)
    number: dict[GradedResponse, int] = {}
    picked = [
        None
        if answers is None
        else [[number.setdefault(answer, len(number)), count] for answer, count in answers.different]
        for answers in answered
    ]
    return [benchmark, problem.id, problem.prompt, problem.gold, list(number), picked]


VIEWS = (
    ("entropy_change", "Entropy change", "diverging",
     "Entropy at the token now minus when it was sampled, in nats: blue where the policy became surer, orange where it "
     "became less sure."),
    ("kl_mask", "KL mask", "mask", "The tokens to which the objective's KL penalty applies."),
    ("advantage", "Advantage", "diverging",
     "How strongly the update pushes the token up (orange) or down (blue): how much better or worse its response did "
     "than its group."),
    ("ratio", "Ratio", "log",
     "The ratio of probabilities that the objective uses, now over when it was sampled: orange above 1, blue below."),
    ("log_ratio", "Token log-ratio", "diverging",
     "Logarithm of the token's own probability now over when it was sampled: orange more likely, blue less."),
    ("entropy", "Entropy", "sequential",
     "How uncertain the policy that sampled was at the token, in nats: the darker, the more open the choice."),
    ("clipped", "Clipped", "mask", "The tokens whose ratio is out of bounds: they push nothing in this update."),
    ("kl", "KL", "sequential", "What the KL penalty measures at the token, in nats."),
    ("weight", "Token weight", "sequential", "The factor on the token in the loss: 0 leaves it out."),
)  # fmt: skip
"""Token views in key order (1 …): value name, title, kind of colour scale, what it says. The page opens on the first
that differs within a response."""
_RESPONSES, _MOST, _LEAST = 2400, 32, 4  # of all dumps together, and of one


def token_data(shown: Sequence[tuple[str, TokenDump]]) -> dict[str, Any]:
    """Data of the token view. shown: a run's label and a dump, those of a run in step order.

    Of each dump as many responses as fit are taken, first those to prompts that most dumps have: these can be compared.
    """
    prompts = Counter(prompt for _, dump in shown for prompt in {response.prompt for response in dump.responses})
    limit = max(_LEAST, min(_MOST, _RESPONSES // max(1, len(shown))))
    dumps = [
        {
            "run": label,
            "step": dump.step,
            "responses": [
                _response(response)
                for response in sorted(dump.responses, key=lambda response: -prompts[response.prompt])[:limit]
            ],
        }
        for label, dump in shown
    ]
    return {"views": VIEWS, "dumps": dumps}


def _response(response: TokenResponse) -> dict[str, Any]:
    values = {name: [_short(number) for number in numbers] for name, numbers in response.values.items()}
    return vars(response) | {"values": values}


def _short(number: float | None) -> float | None:
    """Three significant digits: enough for a colour, a third of the bytes."""
    if number is None:
        return None
    short = float(f"{number:.3g}")
    return int(short) if short.is_integer() else short
