"""Procedural problems: right answers, honest chains, disjoint splits, stateless draws."""

import re
from operator import floordiv, mod, mul
from random import Random

import pytest

from tepo import paths
from tepo.config.compose import compose
from tepo.errors import UserError
from tepo.policy.alphabet import CHARACTERS, build_tokenizer
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.catalogue import TASKS
from tepo.problems.problem import Problem
from tepo.problems.procedural import Example, generate, generate_examples, split_of
from tepo.problems.tasks import Task, exact

MIXES = {"laptop": 7, "laptop_sparse": 3}  # benchmarks of each


def _gcd(text: str) -> int:
    one, two = map(int, re.findall(r"\d+", text))
    return max(d for d in range(1, one + 1) if one % d == 0 and two % d == 0)


def _gold(prompt: str) -> int:
    """The answer worked out from the prompt alone, by other means than the generator's."""
    numbers = list(map(int, re.findall(r"\d+", prompt)))
    if prompt.startswith("gcd"):
        return _gcd(prompt)
    if prompt.startswith("max"):
        return sorted(numbers)[-1]
    if prompt.startswith("sum"):
        return sum(map(int, str(numbers[0])))
    if prompt.startswith("sort"):
        return int("".join(sorted(str(numbers[0]))))
    if ":2" in prompt:
        return int(f"{numbers[0]:b}")
    if "x" in prompt:
        return next(x for x in range(1000) if numbers[0] * x + numbers[1] == numbers[2])
    return _value(prompt.removesuffix("="))


def _value(expression: str) -> int:
    """`4+8+1`, `146-38`, `7*6`, `38%7`, `21/3` (rounded down)."""
    for sign, operation in (("*", mul), ("%", mod), ("/", floordiv)):
        if sign in expression:
            return operation(*map(int, expression.split(sign)))
    return sum(int(term) for term in re.findall(r"[+-]?\d+", expression))


@pytest.mark.parametrize("name", sorted(TASKS))
def test_answers_and_chains_are_right(name):
    for example in generate_examples({name: 1}, 12, seed=3, split="train"):
        problem = example.problem
        assert int(problem.answer) == _gold(problem.prompt)
        assert problem.family == name
        text, answer = re.fullmatch(r"(.*)\\boxed\{(\d+)\}", example.solution()).groups()
        assert answer == problem.answer
        assert set(problem.prompt + text) <= set(CHARACTERS)
        assert example.guess() == f"\\boxed{{{answer}}}"


@pytest.mark.parametrize("name", ["add3", "mul3", "mod4", "gcd", "lin", "mul22"])
def test_every_equation_of_a_clean_chain_holds(name):
    """Read the chain as a person would:
    each `expression=result` must be true (a result may open the next expression)."""
    for example in generate_examples({name: 1}, 30, seed=4, split="train"):
        for part in example.solution().split("\\boxed")[0].strip(",").split(","):
            *sides, last = part.split("=")
            assert [_value(side) for side in sides] == [
                int(re.match(r"\d+", side).group()) for side in [*sides[1:], last]
            ]


@pytest.mark.parametrize(
    ("name", "operands", "chains"),
    [
        ("add2", (47, 85), {"7+5=12,4+8+1=13,", "7+5=12,", "4+8+1=13,", ""}),
        ("mul2", (47, 6), {"7*6=42,4*6=24+4=28,", "7*6=42,4*6+4=28,", "7*6=42,", "4*6=24+4=28,", "4*6+4=28,", ""}),
        ("ds4", (4839,), {"4+8=12+3=15+9=24,", "4+8+3=15+9=24,", "4+8=12+3+9=24,", "4+8+3+9=24,"}),
        ("sort3", (417,), {"4,14,147,", "14,147,", "4,147,", "4,14,", "4,", "14,", "147,", ""}),
    ],
)
def test_a_terse_chain_leaves_any_steps_out_and_keeps_the_answer(name, operands, chains):
    task, random = TASKS[name], Random(0)
    answer = task.chain(operands, exact)[1]
    example = Example(Problem("x", task.prompt(operands), str(answer), name), operands)
    assert {example.terse(random, 0.5) for _ in range(300)} == {f"{chain}\\boxed{{{answer}}}" for chain in chains}
    assert example.terse(random, 0.0) == example.solution()


def test_a_slip_is_carried_on_with():
    example = generate_examples({"add3": 1}, 1, seed=0, split="train")[0]
    one, two = map(int, re.findall(r"\d+", example.problem.prompt))
    wrong = example.solution(lambda value, others: others[1] if value == one % 10 + two % 10 else value)
    assert wrong != example.solution()
    assert f"={one % 10 + two % 10 + 1}," in wrong
    assert not wrong.endswith(f"{{{example.problem.answer}}}")


@pytest.mark.parametrize("name", sorted(TASKS))
def test_noisy_chains_end_and_stay_in_the_alphabet(name):
    random = Random(5)
    for example in generate_examples({name: 1}, 10, seed=5, split="train"):
        text = example.solution(lambda value, wrong: random.choice(wrong) if wrong and random.random() < 0.5 else value)
        assert set(text.split("\\boxed")[0]) <= set(CHARACTERS)
        assert re.search(r"\\boxed\{\d+\}$", text)


@pytest.mark.parametrize("mix", MIXES)
def test_training_prompts_never_meet_a_benchmark(mix):
    data = compose([f"data={mix}"]).data
    held_out = {problem.prompt for name in data.benchmarks for problem in load_benchmark(name).load_problems()}
    assert len(held_out) == MIXES[mix] * 200
    for seed in range(3):
        assert not held_out & {problem.prompt for problem in generate(data.tasks, 1500, seed, "train")}
    assert {split_of(prompt) for prompt in held_out} == {"test"}


@pytest.mark.parametrize("mix", MIXES)
def test_the_benchmarks_of_a_mix_fit_the_model(mix):
    config = compose([f"data={mix}"])
    tokenizer = build_tokenizer(256)
    assert len(config.data.benchmarks) == MIXES[mix]
    for name in config.data.benchmarks:
        benchmark = load_benchmark(name)
        assert paths.find("evals", name).stem == name
        assert (benchmark.count, benchmark.procedural.split) == (200, "test")
        for example in generate_examples(benchmark.procedural.tasks, 100, benchmark.procedural.seed, "test"):
            assert len(tokenizer(example.solution())["input_ids"]) < benchmark.max_new_tokens
            assert len(tokenizer(example.problem.prompt)["input_ids"]) + benchmark.max_new_tokens <= 256


def test_problem_i_depends_on_seed_split_and_i_alone():
    tasks = {"add3": 1.0, "gcd": 2.0, "lin": 1.0}
    long = generate(tasks, 400, 7, "train")
    assert long[:150] == generate(tasks, 150, 7, "train")
    assert long[:50] != generate(tasks, 50, 8, "train")
    assert not {p.prompt for p in long} & {p.prompt for p in generate(tasks, 400, 7, "test")}


def test_prompts_and_ids_are_unique_and_weights_hold():
    problems = generate({"add3": 3.0, "ds6": 1.0, "mod4": 0.0}, 2000, 0, "train")
    assert len({problem.prompt for problem in problems}) == len({problem.id for problem in problems}) == 2000
    share = sum(problem.family == "add3" for problem in problems) / 2000
    assert abs(share - 0.75) < 0.05
    assert {problem.family for problem in problems} == {"add3", "ds6"}


def test_a_small_space_repeats_instead_of_hanging():
    problems = generate({"bin3": 1}, 20, 0, "train")
    assert len(problems) == 20
    assert len({problem.prompt for problem in problems}) <= 4


def test_a_split_without_any_prompt_says_so(monkeypatch):
    monkeypatch.setitem(TASKS, "one", Task(lambda random: (3, 4), lambda operands: "3+4=", TASKS["add2"].chain))
    other = "test" if split_of("3+4=") == "train" else "train"
    with pytest.raises(UserError, match=f"no prompt in the {other} split"):
        generate({"one": 1}, 1, 0, other)


@pytest.mark.parametrize(
    ("tasks", "split", "message"),
    [
        ({"ad3": 1}, "train", "did you mean 'add3'"),
        ({"add3": -1}, "train", "not negative"),
        ({"add3": 0}, "train", "no task has"),
        ({"add3": 1}, "tset", "did you mean 'test'"),
    ],
)
def test_bad_input_is_named(tasks, split, message):
    with pytest.raises(UserError, match=message):
        generate(tasks, 1, 0, split)
