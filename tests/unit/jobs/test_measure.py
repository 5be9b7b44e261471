import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.evaluation.settings import Settings
from tepo.jobs.measure import Request, evaluate_missing, measure
from tepo.jobs.open_sampler import trainers_sampler
from tepo.jobs.weights import Weights
from tepo.problems.benchmarks import Benchmark
from tepo.sampling.backends import SamplerOptions
from tepo.sampling.vllm import vllm_sampler
from tepo.store.evaluation_result import SAMPLES, load_result
from tepo.store.run_folder import RunFolder
from tepo.store.samples_file import table_of, write_table
from tepo.training.run import Run
from tepo_cli.show_scores import find_target
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
    for changes, said in (
        ({"wrap": "raw"}, "add3 was measured with wrap auto, not raw"),
        ({"thinking": True}, "add3 was measured with thinking None, not True"),
        ({"system": "Be brief."}, "add3 was measured with system '', not 'Be brief.'"),
        ({"policy": {"weights": "other"}}, "add3 was measured with policy"),
    ):
        with pytest.raises(UserError, match=said) as caught:
            measure(asked(tmp_path, **changes), ["add3"])
        assert caught.value.where == str(tmp_path / FOLDER)
    (tmp_path / FOLDER / "result.json").write_text(json.dumps(STORED | {"task": STORED["task"] | {"fingerprint": "x"}}))
    with pytest.raises(UserError, match="another definition of the benchmark"):
        measure(asked(tmp_path), ["add3"])


def test_the_sampler_is_opened_once_for_what_is_missing_and_closed(tmp_path: Path) -> None:
    run, opened, closed, rows = RunFolder(tmp_path / "run"), [], [], []
    one, two, three = (replace(ones(), name=name) for name in ("one", "two", "three"))

    @contextmanager
    def dice(missing: Sequence[Benchmark]) -> Iterator[tuple[Dice, Letters]]:
        opened.append([benchmark.name for benchmark in missing])
        try:
            yield Dice(), Letters()
        finally:
            closed.append(len(opened))

    def report(name: str, done: int, total: int) -> None:
        rows.append((name, done, total))

    settings = Settings({"weights": "w"}, rows_per_part=40)
    (first,) = evaluate_missing(run, [two], settings, dice)
    results = evaluate_missing(run, [one, two, three], settings, dice, report)
    assert [result.benchmark for result in results] == ["one", "two", "three"]
    assert results[1] == first
    assert opened == [["two"], ["one", "three"]]
    assert closed == [1, 2]
    assert rows == [(name, done, 80) for name in ("one", "three") for done in (0, 40, 80)]
    assert evaluate_missing(run, [three, one], settings, dice) == [results[2], results[0]]
    assert len(opened) == 2
    assert run.measured() == ["one", "three", "two"]
    assert [load_result(run.evaluation(result.benchmark)) for result in results] == results


def test_an_engine_that_measures_does_not_sleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else needs its memory: vLLM's own allocator, which sleeping takes, is left out. It decodes as many rows as
    in training."""

    class Asked(Exception):
        """With what vLLM would be opened."""

    def ask(options: vllm_sampler.EngineOptions, stop: Sequence[int], **how: object) -> None:
        raise Asked(options, how)

    monkeypatch.setattr(vllm_sampler, "VllmSampler", ask)
    config = compose(["sampler=vllm", "sampler.max_rows=7", "sampler.memory_fraction=0.06"])
    with (
        pytest.raises(Asked) as asked,
        trainers_sampler(Run(config), Weights.of_base("package:laptop", None), RunFolder(tmp_path)),
    ):
        pass
    options, how = asked.value.args
    assert not how.get("sleep")
    assert how["memory_fraction"] == 0.06
    assert (options.max_rows, options.dtype, options.tensor_parallel) == (7, "float32", 1)
