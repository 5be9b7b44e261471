"""False positives and negatives of the grader beside plain math-verify:
on the hand-made cases, and on every gold of the benchmarks.

    python -m perf.grader_quality --data DIR [--cases tests/data/grader_cases.jsonl] [--show NAME] [--verdicts FILE]

DIR holds NAME.jsonl with `id` and `answer`. Each gold must be accepted against itself and against its usual rewritings,
and rejected against another gold of its set and against itself with one digit changed. Prints Markdown tables, and what
the dearest answers took of the workers' CPU time. --verdicts keeps verdicts and reasons in a file, or shows how they
differ from those of an earlier revision that the file holds."""

import argparse
import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tepo.problems.grader import Grader, GraderOptions, Verdict, given_up

SETS = ("aime24", "aime25", "amc", "math500", "omni_math", "olympiadbench", "minerva")
AskedAnswer = tuple[str, str, str, bool]  # category, gold, response, expected verdict


def box(text: str) -> str:
    return f"\\boxed{{{text}}}"


def lines_of(path: Path) -> list[Any]:
    """The JSON of each line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def rewritings(gold: str) -> dict[str, str]:
    """Usual other spellings of the same answer, by what was changed; only those that apply."""
    whole = gold.strip()
    bare = whole.strip("$").strip() if whole.count("$") == 2 and whole[0] == whole[-1] == "$" else gold
    if bare.count("{") != bare.count("}") or "\\boxed" in bare or "\\(" in bare:
        # malformed, or a sentence: no answer of a model looks like it
        return {"itself": gold if "\\boxed" in gold else bare}
    made = {"itself": box(bare), "sentence": f"The answer is $\\boxed {{ {bare} }}$."}
    if "\\frac" in bare:
        made["dfrac"] = box(re.sub(r"\\frac(?![a-z])", r"\\dfrac", bare))
    if simple := re.fullmatch(r"(-?)\\frac\{(\d+)\}\{(\d+)\}", bare):
        made["slash"] = box(f"{simple[1]}{simple[2]}/{simple[3]}")
        made["unreduced"] = box(f"{simple[1]}\\frac{{{3 * int(simple[2])}}}{{{3 * int(simple[3])}}}")
    if re.fullmatch(r"-?\d+", bare):
        made["assignment"] = box(f"x = {bare}")
        made["decimal point"] = box(f"{bare}.0")
        if len(bare.lstrip("-")) > 3:
            made["thousands"] = box(f"{int(bare):,}".replace(",", "{,}"))
    if "(" in bare and "\\left" not in bare:
        made["left right"] = box(bare.replace("(", "\\left(").replace(")", "\\right)"))
    if re.fullmatch(r"-?\d+(, ?-?\d+)+", bare) and not re.fullmatch(r"\d{1,3}(,\d{3})+", bare):
        made["reversed list"] = box(", ".join(reversed(bare.split(","))))
    if re.search(r"\\sqrt\{\d+\}", bare):
        made["unicode root"] = box(re.sub(r"\\sqrt\{(\d+)\}", r"√\1", bare))
    return made


def changed_digit(gold: str) -> str | None:
    """The gold with its last digit outside subscripts raised by one; None without a digit."""
    places = [match.start() for match in re.finditer(r"\d", gold)]
    if not places:
        return None
    place = places[-1]
    return gold[:place] + str((int(gold[place]) + 1) % 10) + gold[place + 1 :]


def gold_rows(data: Path) -> list[AskedAnswer]:
    rows: list[AskedAnswer] = []
    for name in SETS:
        golds = [row["answer"] for row in lines_of(data / f"{name}.jsonl")]
        for index, gold in enumerate(golds):
            rows += [(f"{name}: {kind}", gold, response, True) for kind, response in rewritings(gold).items()]
            others = (other for other in (*golds[index + 1 :], *golds[:index]) if other != gold)
            if (other := next(others, None)) is not None:
                rows.append((f"{name}: another gold", gold, box(other), False))
            if (wrong := changed_digit(gold)) is not None:
                rows.append((f"{name}: a digit changed", gold, box(wrong), False))
    return rows


def case_rows(path: Path, data: Path | None) -> list[AskedAnswer]:
    """The hand-made cases; golds given by id are looked up in the data folder (left out without one)."""
    rows = [row for name in SETS if data for row in lines_of(data / f"{name}.jsonl")]
    answers = {row["id"]: row["answer"] for row in rows}
    found = [(case, case.get("gold") or answers.get(case.get("gold_id"))) for case in lines_of(path)]
    return [(case["category"], gold, case["prediction"], case["correct"]) for case, gold in found if gold is not None]


def with_tepo(rows: list[AskedAnswer]) -> list[Verdict]:
    with Grader(GraderOptions(fallbacks=("phrase", "formula", "bare"), workers=2)) as grader:
        return grader.grade([(gold, response) for _, gold, response, _ in rows])


def changes(path: Path, now: list[list[Any]]) -> str:
    """Differences from the verdicts in the file; without one, it is written."""
    if not path.exists():
        path.write_text("".join(json.dumps(line) + "\n" for line in now), encoding="utf-8")
        return f"{len(now)} verdicts written to {path}"
    before = lines_of(path)
    if [line[:4] for line in before] != [line[:4] for line in now]:
        raise SystemExit(f"{path} holds the verdicts of other rows")
    flips = [(old, new) for old, new in zip(before, now, strict=True) if old[4:] != new[4:]]
    shown = [f"{' | '.join(map(str, old[:3]))}: {old[4:]} then, {new[4:]} now" for old, new in flips]
    return "\n".join([*shown, f"{len(flips)} of {len(now)} verdicts or reasons differ"])


def with_math_verify(rows: list[AskedAnswer]) -> list[bool]:
    """math-verify as its README has it, the gold in a box (bare golds lose a quarter of the pairs)."""
    import logging

    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    found: dict[tuple[str, str], bool] = {}
    for _, gold, response, _ in rows:
        if (gold, response) not in found:
            boxed = gold if "\\boxed" in gold else box(gold)
            found[gold, response] = bool(verify(parse(boxed), parse(response)))
    return [found[gold, response] for _, gold, response, _ in rows]


def table(title: str, rows: list[AskedAnswer], graders: dict[str, list[bool]], show: str) -> None:
    """False positives and negatives of each grader by category, where there are any."""
    totals = Counter(category for category, *_ in rows)
    errors = {(name, category): [0, 0] for name in graders for category in (*totals, "**all**")}
    for index, (category, gold, response, expected) in enumerate(rows):
        for name, verdicts in graders.items():
            if verdicts[index] != expected:
                for key in (category, "**all**"):
                    errors[name, key][expected] += 1
                if show == name:
                    print("FN" if expected else "FP", category, "|", gold, "|", response)
    print(f"\n### {title}: {len(rows)} rows\n\n| category | rows |", *(f"{name} FP / FN |" for name in graders))
    print("|---|---:|" + "---:|" * len(graders))
    for category, count in {**totals, "**all**": len(rows)}.items():
        counted = [errors[name, category] for name in graders]
        if category == "**all**" or any(map(any, counted)):
            print(f"| {category} | {count} |", *("{} / {} |".format(*pair) for pair in counted))
    right = (1 - sum(errors[name, "**all**"]) / len(rows) for name in graders)
    print("| right | |", *(f"{100 * share:.2f} % |" for share in right))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of NAME.jsonl benchmark files")
    parser.add_argument("--cases", type=Path, default=Path("tests/data/grader_cases.jsonl"))
    parser.add_argument("--show", default="", help="print every wrong row of this grader (tepo or math-verify)")
    parser.add_argument("--only-tepo", action="store_true", help="leave math-verify out (it takes minutes)")
    parser.add_argument("--verdicts", type=Path, help="file of verdicts: written, or compared with if it is there")
    options = parser.parse_args()
    parts = {"hand-made cases": case_rows(options.cases, options.data)} if options.cases.exists() else {}
    if options.data:
        parts["golds of the benchmarks"] = gold_rows(options.data)
    judged: list[list[Any]] = []
    for title, rows in parts.items():
        started = time.perf_counter()
        verdicts = with_tepo(rows)
        judged += [[*row, verdict.correct, verdict.reason] for row, verdict in zip(rows, verdicts, strict=True)]
        dearest = ", ".join(f"{verdict:.2f}" for verdict in sorted({verdict.seconds for verdict in verdicts})[:-4:-1])
        lost = given_up(verdict.reason for verdict in verdicts)
        print(f"{title}: {time.perf_counter() - started:.1f} s; dearest {dearest} s of CPU time; given up: {lost}")
        graders = {"tepo": [verdict.correct for verdict in verdicts]}
        if not options.only_tepo:
            graders["math-verify"] = with_math_verify(rows)
        table(title, rows, graders, options.show)
    if options.verdicts:
        print(changes(options.verdicts, judged))


if __name__ == "__main__":
    main()
