"""Stand-ins for the published benchmarks:
declared in a user's folder in front of tepo's own, rows in a folder for TEPO_DATA."""

import json
from pathlib import Path

import yaml

from tepo.problems.hashes import set_hash
from tepo.problems.problem import Problem
from tepo.problems.procedural.generator import generate

NAMES = ("aime24", "aime25", "amc", "math500", "omni_math", "olympiadbench", "minerva")  # the papers'


def make_sets(folder: Path, count: int = 3, **more: object) -> dict[str, str]:
    """Write evals/NAME.yaml and data/NAME.jsonl of `count` generated problems each.
    Returns the environment that puts them in front."""
    (folder / "evals").mkdir(parents=True)
    (folder / "data").mkdir()
    for number, name in enumerate((*NAMES, "gsm8k")):
        problems = [
            Problem(f"{name}-{index}", problem.prompt, problem.answer)
            for index, problem in enumerate(generate({"add3": 1.0, "gcd": 1.0}, count, number, "test"))
        ]
        write_rows(folder / "data" / f"{name}.jsonl", problems)
        sampled = name in NAMES[:3]
        declared = {
            "title": name,
            "dataset": {"path": "json", "data_files": ["nowhere.jsonl"]},
            "count": count,
            "hash": set_hash(problems),
            "samples": 2 if sampled else 1,
            "temperature": 0.6 if sampled else 0.0,
            "max_new_tokens": 72,
        }
        (folder / "evals" / f"{name}.yaml").write_text(yaml.safe_dump(declared | more))
    return {"TEPO_PATH": str(folder), "TEPO_DATA": str(folder / "data")}


def write_rows(path: Path, problems: list[Problem]) -> None:
    """A problem file as TEPO_DATA holds them."""
    path.write_text(
        "".join(
            json.dumps({"id": problem.id, "problem": problem.prompt, "answer": problem.answer}) + "\n"
            for problem in problems
        )
    )
