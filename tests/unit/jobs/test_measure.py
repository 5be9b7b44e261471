import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.evaluation.regrade import regrade
from tepo.evaluation.settings import Settings
from tepo.jobs.measure import Request, evaluate_missing, measure
from tepo.jobs.open_sampler import SharedEngine, check_alike
from tepo.jobs.weights import Weights
from tepo.policy.model.load_policy import load_policy
from tepo.problems.benchmarks import Benchmark, load_benchmark
from tepo.problems.grader import Grader
from tepo.sampling.backends import SamplerOptions
from tepo.store.evaluation_result import SAMPLES, Result, load_result
from tepo.store.run_folder import RunFolder
from tepo.store.samples_file import read_table, table_of, write_table
from tepo.studies.plan_studies import plan_all
from tepo.training.run import Run
from tepo_cli.show_scores import find_target
from tests.support.runs import write
from tests.support.samplers import Dice, Letters, ones

# As versions before this file wrote it, in runs/base-7859a1c90930/eval/add3@first6@seed1/result.json;
# the two hashes of the problems are those of today's test split.
STORED = json.loads("""
{"benchmark": "add3", "problems": 6, "samples": 4, "accuracy": 0.5, "interval": null, "subsets": {},
 "scores": {"avg@4": 0.5, "pass@2": 0.75, "pass@4": 1.0, "maj@4": 0.75, "truncated": 0.0, "mean_tokens": 26.875},
 "grader": "grader 7 options ac2524c1", "timeouts": 0, "format": 1,
 "task": {"benchmark": "add3", "fingerprint": "96346a98a537", "grading": "d827049039f8",
          "content_hash": "73cd1d32640364855d44e84870fac15974b43d698828198d06c54e5338b7952e", "seed": 1, "limit": 6,
          "policy": {"weights": "00c3c6196172"}, "wrap": "auto", "thinking": null, "rows_per_part": 256}}
""")
# three of the problems with 3 right of 4, three with one right, one wrong and two without an answer
SAMPLES_OF_STORED = [
    {"problem": f"p{problem}", "sample": sample, "correct": sample < (3 if problem % 2 else 1), "reason": "",
     "extracted": None if sample > 1 else "1", "tokens": 24 if problem == sample == 0 else 27, "finish": "stop",
     "grader": STORED["grader"]}
    for problem in range(6) for sample in range(4)
]  # fmt: skip
FOLDER = "base-7859a1c90930/eval/add3@first6@seed1"


def asked(store: Path, **changes: object) -> Request:
    """As `tepo eval add3 --model package:laptop --limit 6 --seed 1` asks."""
    target = find_target("package:laptop", store, None)
    settings = Settings({"weights": target.weights.name}, seed=1, limit=6, wrap=target.wrap, thinking=target.thinking)
    # a sampler that this machine lacks: sampling would be an error
    return Request(target.weights, SamplerOptions("vllm", tensor_parallel=99), replace(settings, **changes), target.run)


def test_an_evaluation_of_an_earlier_version_is_believed(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir(parents=True)
    (tmp_path / FOLDER / "result.json").write_text(json.dumps(STORED))
    with pytest.raises(UserError, match="the samples behind the result are gone"):
        measure(asked(tmp_path), ["add3"])
    write_table(tmp_path / FOLDER / SAMPLES, table_of(SAMPLES_OF_STORED))
    (result,) = measure(asked(tmp_path), ["add3"])
    assert json.loads(json.dumps(asdict(result))) == STORED
    for changes in ({"wrap": "raw"}, {"policy": {"weights": "other"}}):
        with pytest.raises(UserError, match=f"add3 was measured with {next(iter(changes))}") as caught:
            measure(asked(tmp_path, **changes), ["add3"])
        assert caught.value.where == str(tmp_path / FOLDER)
    (tmp_path / FOLDER / "result.json").write_text(json.dumps(STORED | {"task": STORED["task"] | {"fingerprint": "x"}}))
    with pytest.raises(UserError, match="another definition of the benchmark"):
        measure(asked(tmp_path), ["add3"])


def test_the_sampler_is_opened_once_for_what_is_missing_and_closed(tmp_path: Path) -> None:
    run, opened, closed = RunFolder(tmp_path / "run"), [], []
    one, two, three = (replace(ones(), name=name) for name in ("one", "two", "three"))

    @contextmanager
    def dice(missing: Sequence[Benchmark]) -> Iterator[tuple[Dice, Letters]]:
        opened.append([benchmark.name for benchmark in missing])
        try:
            yield Dice(), Letters()
        finally:
            closed.append(len(opened))

    settings = Settings({"weights": "w"}, rows_per_part=40)
    (first,) = evaluate_missing(run, [two], settings, dice)
    results = evaluate_missing(run, [one, two, three], settings, dice)
    assert [result.benchmark for result in results] == ["one", "two", "three"]
    assert results[1] == first
    assert evaluate_missing(run, [three, one], settings, dice) == [results[2], results[0]]
    assert (opened, closed) == ([["two"], ["one", "three"]], [1, 2])
    assert [load_result(run.evaluation(result.benchmark)) for result in results] == results


LIMIT = 3


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Weights]:
    folder, policy = tmp_path_factory.mktemp("models"), load_policy("package:laptop")
    torch.manual_seed(0)
    for name in ("one", "two"):
        with torch.no_grad():
            for weight in policy.model.parameters():
                weight.add_(0.05 * weight.std() * torch.randn_like(weight))
        policy.model.save_pretrained(folder / name)
        policy.tokenizer.save_pretrained(folder / name)
    return [Weights.of_base(path, None) for path in ("package:laptop", str(folder / "one"), str(folder / "two"))]


def settings(weights: Weights) -> Settings:
    return Settings({"weights": weights.name}, limit=LIMIT)


def samples(run: RunFolder) -> Any:
    return read_table(run.evaluation("add3", LIMIT) / SAMPLES).to_pylist()


def test_each_model_has_the_results_that_it_has_alone(models: list[Weights], tmp_path: Path) -> None:
    together = [RunFolder(tmp_path / str(index)) for index in range(len(models))]
    events, results, options = list[str](), [], SamplerOptions("torch")

    @contextmanager
    def opening(weights: Weights) -> Iterator[tuple[Any, Any]]:
        events.append(f"open {weights.name}")
        with options.backend.open_model(weights.path, options, Path()) as sampler:
            yield sampler, load_policy(weights.path).tokenizer
        events.append("close")

    with SharedEngine() as engine:
        for weights, run in zip(models, together, strict=True):
            holding = partial(engine.holding, weights, "float32", partial(opening, weights))
            results += evaluate_missing(run, [load_benchmark("add3")], settings(weights), lambda _, own=holding: own())
        events.append("all measured")
    assert events == [f"open {models[0].name}", "all measured", "close"]
    for weights, run, result in zip(models, together, results, strict=True):
        alone = RunFolder(tmp_path / "alone" / run.path.name)
        request = Request(weights, options, settings(weights), alone)
        assert measure(request, ["add3"]) == [result]
        assert samples(alone) == samples(run)
    responses = [[row["response"] for row in samples(run)] for run in together]
    assert responses[0] != responses[1] != responses[2] != responses[0]


def test_models_of_two_architectures_are_refused(models: list[Weights], tmp_path: Path) -> None:
    check_alike(models)
    policy = load_policy(models[1].path)
    policy.model.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_position_embeddings": 64}))
    with pytest.raises(UserError, match="differs from package:laptop in max_position_embeddings"):
        check_alike([models[0], Weights.of_base(str(tmp_path), None)])


DECLARED = {"title": "mine", "dataset": {"path": "mine.jsonl"}, "count": 4, "samples": 1}
DECLARED |= {"temperature": 1.0, "max_new_tokens": 40}
ROWS = [
    {"id": f"m{number}", "problem": f"{number}+{number}=", "answer": str(2 * number)} for number in (111, 222, 333, 444)
]
STUDY = (
    "title: s\nrows:\n  - {label: base, base: true}\n"
    "scales:\n  laptop: {models: [laptop], seeds: [0], overrides: ['data.benchmarks=[mine]']}\n"
)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on TEPO_PATH with the benchmark `mine` and the study `study` on it."""
    write(tmp_path / "experiments" / "study.yaml", STUDY)
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    monkeypatch.delenv("TEPO_DATA", raising=False)
    declare(tmp_path)
    return tmp_path


def declare(folder: Path, rows: list[dict] = ROWS, **changes: object) -> None:
    write(folder / "evals" / "mine.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    (folder / "evals" / "mine.yaml").write_text(yaml.safe_dump(DECLARED | changes))


def test_the_fingerprint_is_of_the_rows_wherever_they_lie(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load_benchmark("mine").fingerprint
    assert [problem.id for problem in load_benchmark("mine").load_problems()] == ["m111", "m222", "m333", "m444"]
    (own / "evals" / "sub").mkdir()
    (own / "evals" / "mine.jsonl").rename(own / "evals" / "sub" / "other.jsonl")
    (own / "evals" / "mine.yaml").write_text(yaml.safe_dump(DECLARED | {"dataset": {"path": "sub/other.jsonl"}}))
    assert load_benchmark("mine").fingerprint == before
    (own / "evals" / "mine.yaml").write_text(yaml.safe_dump(DECLARED | {"dataset": {"path": "json", "file": "other"}}))
    monkeypatch.setenv("TEPO_DATA", str(own / "evals" / "sub"))
    assert load_benchmark("mine").fingerprint == before
    for row, changes in (
        ({"answer": "1"}, {}),
        ({"id": "n"}, {}),
        ({"problem": "111+111= "}, {}),
        ({}, {"samples": 2}),
    ):
        declare(own, [ROWS[0] | row, *ROWS[1:]], **changes)
        assert load_benchmark("mine").fingerprint != before


def test_a_stored_result_of_another_definition_is_refused(own: Path) -> None:
    """Until it is defined as it was, or graded again."""
    store = own / "runs"
    config = compose(["data.benchmarks=[mine]", f"store={store}"])

    def measured() -> list[Result]:
        return measure(Request.of(Run(config), trained=False), ["mine"])

    def refused(message: str) -> None:
        for ask in (measured, lambda: plan_all(["study"], "laptop", store=store)):
            with pytest.raises(UserError, match=message):
                ask()

    (result,) = measured()
    declare(own, [ROWS[0] | {"answer": "223"}, *ROWS[1:]])
    refused("another definition of the benchmark")
    declare(own)
    assert measured() == [result]
    plan_all(["study"], "laptop", store=store)
    declare(own, grader={"fallbacks": ["bare"]})
    refused("graded under other settings")
    with Grader(load_benchmark("mine").grader) as grader:
        regrade(RunFolder.of_base(config).evaluation("mine"), grader)
    (again,) = measured()
    assert again.accuracy >= result.accuracy
    plan_all(["study"], "laptop", store=store)
