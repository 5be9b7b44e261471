import json
from pathlib import Path

import pytest
import torch

from tepo.common.errors import Diverged, UserError
from tepo.common.files import content_hash
from tepo.evaluation.evaluate import evaluate
from tepo.evaluation.responses import Tools
from tepo.evaluation.settings import Settings
from tepo.evaluation.writer import EvaluationTask
from tepo.policy.model.load_policy import load_policy
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.grader import Grader, GraderOptions
from tepo.problems.procedural.generator import generate
from tepo.problems.splits import split_of
from tepo.sampling.embedded.torch_sampler import TorchSampler
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import run_id
from tepo.training.loop import train
from tepo.training.rollout.prompt_stream import PromptStream
from tepo.training.run import Run
from tepo.training.validation import Validation, validation_sets
from tests.support.runs import lasting, tiny, weights, write
from tests.support.two_ranks import Exchange, on_two_ranks

FEW = ("train.prompts_per_step=2", "train.mini_batch_prompts=1")
EVERY = ("train.validate_every=2", "train.validation_problems=6", *FEW)


def problems(folder: Path, rows: list[tuple[str, str]]) -> tuple[str, str]:
    """The overrides for problems with these texts and answers."""
    lines = [json.dumps({"problem": text, "answer": answer}) + "\n" for text, answer in rows]
    path = write(folder / "own.jsonl", "".join(lines))
    return ("data.kind=problems", f"data.problems={path}")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return RunFolder(train(Run(tiny(tmp_path_factory.mktemp("measured"), *EVERY))))


def test_no_problem_of_training_or_of_a_test_set_is_validated_on(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    sets = validation_sets(config)
    assert [benchmark.name for benchmark, _ in sets] == config.data.benchmarks
    assert all(len(problems) == 50 for _, problems in sets)
    validated = {problem.prompt for _, problems in sets for problem in problems}
    assert {split_of(prompt) for prompt in validated} == {"validation"}
    tested = {problem.prompt for name in config.data.benchmarks for problem in load_benchmark(name).load_problems()}
    assert not validated & tested
    for seed in (0, 200):  # of a run and of one that reports
        stream = PromptStream(tiny(tmp_path, f"seed={seed}"), load_policy("package:laptop").tokenizer)
        assert not {problem.prompt for problem, _ in stream.items} & (validated | tested)


def test_a_run_that_is_validated_is_the_same_run(tmp_path: Path, measured: RunFolder) -> None:
    plain = train(Run(tiny(tmp_path, *FEW)))
    assert plain.name == measured.path.name
    assert weights(plain) == weights(measured.path)
    rows = lasting(measured.path)
    assert [any(key.startswith("val-core/") for key in row) for row in rows] == [False, True, True]  # every 2, the last
    assert [any(key.startswith("start/val-core/") for key in row) for row in rows] == [True, False, False]
    rest = [{key: value for key, value in row.items() if "val-" not in key} for row in rows]
    assert rest == lasting(plain)


def test_the_share_is_that_of_an_evaluation_of_the_checkpoint(tmp_path: Path, measured: RunFolder) -> None:
    config, logged = tiny(tmp_path, *EVERY), lasting(measured.path)[2]
    policy = load_policy(str(measured.checkpoint(3)))
    shares = []
    with Grader(GraderOptions()) as grader:
        sampler = TorchSampler(policy.model, policy.tokenizer)
        for benchmark, _ in validation_sets(config):
            task = EvaluationTask(benchmark, grader, tmp_path / benchmark.name)
            (result,) = evaluate([task], sampler, policy.tokenizer, Settings())
            assert logged[f"val-core/{benchmark.name}/acc/mean@4"] == pytest.approx(result.accuracy)
            right = logged[f"val-aux/{benchmark.name}/right@4"]  # of each problem
            assert (len(right), sum(right)) == (6, pytest.approx(6 * 4 * result.accuracy))
            shares.append(result.accuracy)
    assert logged["val-core/average"] == pytest.approx(sum(shares) / len(shares))


@pytest.mark.parametrize("ranks_of_an_engine", [1, 2])
def test_two_ranks_measure_what_one_does(tmp_path: Path, measured: RunFolder, ranks_of_an_engine: int) -> None:
    """Of the untrained policy, what a run measures before its first step."""
    config = tiny(tmp_path, *EVERY, f"sampler.tensor_parallel={ranks_of_an_engine}")
    policy = load_policy("package:laptop")
    with Grader(GraderOptions()) as grader:

        def measure(comm: Exchange | None) -> dict[str, float]:
            sampler = TorchSampler(policy.model, policy.tokenizer)
            return Validation(config, Tools(sampler, policy.tokenizer, grader), comm).measure()  # type: ignore[arg-type]

        ranks, alone = on_two_ranks(measure), measure(None)
    assert ranks == [alone, alone]
    assert 0 < alone["val-core/average"] < 1
    first = {name: value for name, value in lasting(measured.path)[0].items() if name.startswith("start/")}
    assert first == {f"start/{name}": value for name, value in alone.items()}


def test_a_policy_that_breaks_on_one_rank_has_diverged_on_all(tmp_path: Path) -> None:
    """A policy that is about to break has an answer to some problems. The other rank must not wait for those of the
    broken one, which goes on to end the run."""
    config = tiny(tmp_path, *EVERY)
    policies = [load_policy("package:laptop"), load_policy("package:laptop")]
    with torch.no_grad():
        policies[1].model.lm_head.weight.fill_(torch.nan)
    with Grader(GraderOptions()) as grader:

        def measure(comm: Exchange) -> str:
            policy = policies[comm.rank]
            tools = Tools(TorchSampler(policy.model, policy.tokenizer), policy.tokenizer, grader)
            with pytest.raises(Diverged) as caught:
                Validation(config, tools, comm).measure()  # type: ignore[arg-type]
            return caught.value.what

        healthy, broken = on_two_ranks(measure)
    assert healthy == "the policy has diverged on another rank"
    assert "probabilities are not numbers" in broken


def test_held_out_problems_are_not_trained_on(tmp_path: Path) -> None:
    """Of forty rows, among which five problems are there twice."""
    made = [(problem.prompt, problem.answer) for problem in generate({"max4": 1}, 35, 0, "train")]
    all_rows = problems(tmp_path, made + made[:5])
    config = tiny(tmp_path, *all_rows, "data.held_out=10", "train.steps=1", "train.validate_every=1")
    held_out = validation_sets(config)[0][1]
    stream = PromptStream(config, load_policy("package:laptop").tokenizer)
    assert len({problem.prompt for problem in held_out}) == 10
    assert len(held_out) + len(stream.items) == 40
    assert not {problem.prompt for problem in held_out} & {problem.prompt for problem, _ in stream.items}
    assert run_id(config) != run_id(tiny(tmp_path, *all_rows, "train.steps=1"))  # other problems are trained on
    (row,) = lasting(train(Run(config)))
    assert 0 <= row["val-core/held_out/acc/mean@1"] == row["val-core/average"] <= 1
    assert not any(name.startswith("start/") for name in row)  # measured once alone


def test_prompts_that_cannot_be_asked_are_refused_before_the_first_step(tmp_path: Path) -> None:
    """Not when they are first validated on, which may be at the end. The one that hashes lowest is held out."""
    wrong = min((f"{number}+1=<eos>" for number in range(100)), key=content_hash)
    words = problems(tmp_path, [*((f"{number}+1=", "1") for number in range(7)), (wrong, "1")])
    config = tiny(tmp_path, *words, "data.held_out=1", "train.validate_every=3")
    assert [problem.prompt for problem in validation_sets(config)[0][1]] == [wrong]
    with pytest.raises(UserError, match=r"control tokens of the model: .* \(<eos>\)"):
        train(Run(config))
    assert RunFolder.of(config).metrics() == []


@pytest.mark.parametrize(
    ("word", "message"),
    [("train.validate_every=1", "no problems to validate on"), ("data.held_out=8", "leaves none of 8 problems")],
)
def test_what_cannot_be_validated_is_refused_before_a_run_starts(tmp_path: Path, word: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        train(Run(tiny(tmp_path, *problems(tmp_path, [(f"{number}", "1") for number in range(8)]), word)))
    assert not any(tmp_path.rglob("metrics.jsonl"))
