import re
from operator import floordiv, mod, mul
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tepo.common import paths
from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.policy.warmstart import CHARACTERS, build_tokenizer
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.hashes import rows_hash
from tepo.problems.problem import Problem
from tepo.problems.procedural.generator import Example, generate, generate_examples
from tepo.problems.procedural.task import exact
from tepo.problems.procedural.tasks import TASKS
from tepo.problems.splits import SPLITS, split_of

MIXES = {"laptop": 7, "laptop_sparse": 3, "chains_25": 1, "chains_70": 1, "chains_200": 1}  # benchmarks of each
SYMBOLIC = tuple(name for name in TASKS if "words" not in name)  # in the laptop's alphabet
OLDER = tuple(name for name in SYMBOLIC if not name.startswith("run"))
LAPTOP_TASKS = ("add3", "add4", "mul2", "mul3", "mod4", "gcd", "max4", "lin", "ds6")


def _gold(prompt: str) -> int:
    """The answer worked out from the prompt alone, by other means than the generator's."""
    numbers = list(map(int, re.findall(r"\d+", prompt)))
    if prompt.endswith("?"):
        return _told(prompt)
    if prompt.startswith("gcd"):
        return max(d for d in range(1, numbers[0] + 1) if numbers[0] % d == numbers[1] % d == 0)
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
    if "+" in prompt and "*" in prompt:
        return numbers[0] + numbers[1] * numbers[2]
    return _value(prompt.removesuffix("="))


_LESS = "gives away|loses|sells|takes out|break|use up|go to|sold|aside|borrowed|carried off"


def _told(story: str) -> int:
    """What a reader of a story gets, sentence by sentence."""
    first, *rest = (part for part in re.split(r"(?<=[.?]) ", story) if re.search(r"\d", part))
    value = int(re.findall(r"\d+", first)[0])
    for sentence in rest:
        number = int(re.findall(r"\d+", sentence)[0])
        if "times" in sentence:
            value *= number
        elif re.search("equal|evenly|divided", sentence):
            assert value % number == 0
            value //= number
        else:
            value += -number if re.search(_LESS, sentence) else number
        assert value > 0
    return value


def _value(expression: str) -> int:
    """`4+8+1`, `146-38`, `7*6`, `38%7`, `21/3` (rounded down)."""
    for sign, operation in (("*", mul), ("%", mod), ("/", floordiv)):
        if sign in expression:
            return operation(*map(int, expression.split(sign)))
    return sum(int(term) for term in re.findall(r"[+-]?\d+", expression))


@pytest.mark.parametrize("name", sorted(TASKS))
def test_answers_and_chains_are_right(name):
    random = Random(5)
    for example in generate_examples({name: 1}, 12, seed=3, split="train"):
        problem = example.problem
        assert int(problem.answer) == _gold(problem.prompt)
        assert problem.family == name
        text, answer = re.fullmatch(r"(.*)\\boxed\{(\d+)\}", example.solution()).groups()
        assert answer == problem.answer
        assert name not in SYMBOLIC or set(problem.prompt + text) <= set(CHARACTERS)
        assert example.guess() == f"\\boxed{{{answer}}}"
        # noisy chains end, and stay in the alphabet
        noisy = example.solution(
            lambda value, wrong: random.choice(wrong) if wrong and random.random() < 0.5 else value
        )
        assert name not in SYMBOLIC or set(noisy.split("\\boxed")[0]) <= set(CHARACTERS)
        assert re.search(r"\\boxed\{\d+\}$", noisy)


@pytest.mark.parametrize("name", ["add3", "mul3", "mod4", "gcd", "lin", "mul22"])
def test_every_equation_of_a_clean_chain_holds(name):
    """Each `expression=result` is true; a result may open the next expression."""
    for example in generate_examples({name: 1}, 30, seed=4, split="train"):
        for part in example.solution().split("\\boxed")[0].strip(",").split(","):
            *sides, last = part.split("=")
            results = [re.match(r"\d+", side).group() for side in [*sides[1:], last]]
            assert [_value(side) for side in sides] == list(map(int, results))


@pytest.mark.parametrize(
    ("name", "operands", "chains"),
    [
        ("add2", (47, 85), {"7+5=12,4+8+1=13,", "7+5=12,", "4+8+1=13,", ""}),
        ("mul2", (47, 6), {"7*6=42,4*6=24+4=28,", "7*6=42,4*6+4=28,", "7*6=42,", "4*6=24+4=28,", "4*6+4=28,", ""}),
        ("ds4", (4839,), {"4+8=12+3=15+9=24,", "4+8+3=15+9=24,", "4+8=12+3+9=24,", "4+8+3+9=24,"}),
    ],
)
def test_a_terse_chain_leaves_any_steps_out_and_keeps_the_answer(name, operands, chains):
    task, random = TASKS[name], Random(0)
    answer = task.chain(operands, exact)[1]
    example = Example(Problem("x", task.form(*operands), str(answer), name), operands)
    assert {example.terse(random, 0.5) for _ in range(300)} == {f"{chain}\\boxed{{{answer}}}" for chain in chains}
    assert example.terse(random, 0.0) == example.solution()


_SAID = {"plus": "+", "minus": "-", "times": "*", "divided by": "//", "/": "//", "is": "==", "makes": "==", "=": "=="}


@given(st.sampled_from(("words1", "words2", "largewords3")), st.integers(0, 500))
def test_a_chain_in_other_words_is_right_in_each_of_its_steps(name, seed):
    (example,) = generate_examples({name: 1}, 1, seed, "train")
    text = example.wording(Random(seed))
    assert text.endswith(f"\\boxed{{{example.problem.answer}}}")
    steps = re.findall(r"\d[^.,]*?(?:is|makes|=) ?\d+", text)
    assert len(steps) >= int(name[-1])
    for step in steps:
        said = re.sub("|".join(sorted(map(re.escape, _SAID), key=len, reverse=True)), lambda m: _SAID[m[0]], step)
        assert eval(said), step


def test_a_slip_is_carried_on_with():
    example = generate_examples({"add3": 1}, 1, seed=0, split="train")[0]
    one, two = map(int, re.findall(r"\d+", example.problem.prompt))
    wrong = example.solution(lambda value, others: others[1] if value == one % 10 + two % 10 else value)
    assert wrong != example.solution()
    assert f"={one % 10 + two % 10 + 1}," in wrong
    assert not wrong.endswith(f"{{{example.problem.answer}}}")


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


@given(st.lists(st.sampled_from(sorted(TASKS)), min_size=1, max_size=4), st.lists(st.integers(0), min_size=3))
def test_splits_have_no_prompt_in_common(names, seeds):
    """Whatever the tasks, and whichever seed each split is drawn by."""
    tasks = dict.fromkeys(names, 1.0)
    drawn = [
        {problem.prompt for problem in generate(tasks, 2, seed, split)}
        for split, seed in zip(SPLITS, seeds, strict=False)
    ]
    assert len(set.union(*drawn)) == sum(map(len, drawn))
    assert [{split_of(prompt) for prompt in prompts} for prompts in drawn] == [{split} for split in SPLITS]


def test_a_split_has_its_share_of_all_prompts():
    prompts = [f"{one}+{two}=" for one in range(100, 300) for two in range(100, 300)]
    shares = {split: sum(split_of(prompt) == split for prompt in prompts) / len(prompts) for split in SPLITS}
    assert shares == pytest.approx({"train": 0.8, "validation": 0.05, "test": 0.15}, abs=0.006)


@pytest.mark.parametrize(
    ("tasks", "count", "seed", "expected"),
    [
        (LAPTOP_TASKS, 500, 0, "d9fee8a1b9264c7a6f3138a6e22d859e8419450b9b4dd4b8d8df7e93dc190de1"),
        (("ds14", "sort10", "mod9"), 500, 7, "51af14e632e9d3fdb7f8720436d9273882598047f609e7da8d2da03881b26655"),
        (OLDER, 1000, 3, "f9ef9d012834ad46c551160d6ff852cb82d1d5c7171ae0d276f9e29adf9372c5"),
    ],
    ids=["laptop", "laptop_sparse", "all"],
)
def test_training_problems_are_those_from_before_there_was_a_validation_split(tasks, count, seed, expected):
    """The shipped bases saw them: ids, prompts and answers as the version before made them."""
    assert rows_hash(generate(dict.fromkeys(tasks, 1.0), count, seed, "train"), ids=True) == expected


def test_every_split_of_a_large_task_has_unique_prompts_and_a_small_one_uses_all_it_has():
    for split in SPLITS:
        assert len({problem.prompt for problem in generate({"mul3": 1}, 300, 0, split)}) == 300
    all_of_bin6 = [f"{number}:2=" for number in range(8, 64)]
    drawn = {problem.prompt for problem in generate({"bin6": 1}, 10, 0, "validation")}
    assert drawn == {prompt for prompt in all_of_bin6 if split_of(prompt) == "validation"}
    assert len({problem.prompt for problem in generate({"bin3": 1}, 20, 0, "train")}) <= 4  # repeats, and no hang


def test_problem_i_depends_on_seed_split_and_i_alone():
    tasks = {"add3": 1.0, "gcd": 2.0, "lin": 1.0}
    long = generate(tasks, 400, 7, "train")
    assert long[:150] == generate(tasks, 150, 7, "train")
    assert long[:50] != generate(tasks, 50, 8, "train")


def test_prompts_and_ids_are_unique_and_weights_hold():
    problems = generate({"add3": 3.0, "ds6": 1.0, "mod4": 0.0}, 2000, 0, "train")
    assert len({problem.prompt for problem in problems}) == len({problem.id for problem in problems}) == 2000
    share = sum(problem.family == "add3" for problem in problems) / 2000
    assert abs(share - 0.75) < 0.05
    assert {problem.family for problem in problems} == {"add3", "ds6"}


def test_bad_input_is_named():
    for tasks, message in (({"ad3": 1}, "did you mean 'add3'"), ({"add3": -1}, "not negative")):
        with pytest.raises(UserError, match=message):
            generate(tasks, 1, 0, "train")
