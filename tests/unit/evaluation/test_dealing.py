from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tepo.evaluation.evaluate import evaluate
from tepo.evaluation.scheduler import BenchmarkQueue, sample_all
from tepo.evaluation.settings import Settings
from tepo.evaluation.writer import EvaluationTask
from tepo.problems.benchmarks import Benchmark
from tepo.sampling.sampler import Response, SamplingParams
from tepo.store.evaluation_result import Result
from tests.support.samplers import Crowd, CrowdQueue, Dice, LastBox, Letters, ones

BENCHMARKS = [
    replace(ones(30, 4), name="some"),
    replace(ones(25, 1), name="single", temperature=0.5),
    replace(ones(7, 9), name="many", max_new_tokens=64),
]


def tasks(folder: Path, benchmarks: list[Benchmark] = BENCHMARKS) -> list[EvaluationTask]:
    return [EvaluationTask(one, LastBox(), folder / one.name) for one in benchmarks]


def run(folder: Path, sampler: Dice, **options: int) -> list[Result]:
    return evaluate(tasks(folder), sampler, Letters(), Settings(seed=7, **({"rows_per_part": 12} | options)))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each benchmark by itself, one slice after another."""
    folder = tmp_path_factory.mktemp("alone")
    for task in tasks(folder):
        evaluate([task], Dice(), Letters(), Settings(seed=7, rows_per_part=12))
    return folder


def same(folder: Path, other: Path) -> None:
    for one in BENCHMARKS:
        for file in ("samples.parquet", "result.json", "task.json"):
            assert (folder / one.name / file).read_bytes() == (other / one.name / file).read_bytes()
        assert not (folder / one.name / "parts").exists()


@pytest.mark.parametrize("side_by_side", [1, 10, 1000])
def test_the_same_files_whatever_ends_first(tmp_path: Path, alone: Path, side_by_side: int) -> None:
    for seed in range(2):
        crowd = Crowd(side_by_side, seed)
        assert [result.benchmark for result in run(tmp_path / str(seed), crowd)] == ["some", "single", "many"]
        same(tmp_path / str(seed), alone)
        assert sorted(crowd.asked) == sorted(f"{index}=" for one in BENCHMARKS for index in range(one.count))


def test_stopped_again_and_again_it_asks_only_for_what_is_missing(tmp_path: Path, alone: Path) -> None:
    calls = 0
    while True:
        try:
            run(tmp_path, Crowd(20, calls, stop_after=9))
            break
        except KeyboardInterrupt:
            calls += 1
        assert calls < 20, "what had ended was lost"
    assert calls > 3
    same(tmp_path, alone)


def test_what_a_slice_at_a_time_began_is_finished_in_any_order(tmp_path: Path, alone: Path) -> None:
    """And the other way round."""
    for folder, first, then in (
        (tmp_path / "one", Dice(20), Crowd(16, 0)),
        (tmp_path / "other", Crowd(16, 0, 20), Dice()),
    ):
        with pytest.raises(KeyboardInterrupt):
            run(folder, first)
        run(folder, then)
        same(folder, alone)
        assert len(then.asked) < 62


def test_a_part_holds_what_has_ended_and_a_damaged_one_is_sampled_again(tmp_path: Path, alone: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Crowd(20, 3, stop_after=40))
    parts = sorted(tmp_path.glob("*/parts/*.parquet"))
    assert len(parts) > 5
    for part in parts[::2]:
        part.write_bytes(part.read_bytes()[:-20])
    run(tmp_path, Crowd(20, 4))
    same(tmp_path, alone)


def test_a_benchmark_is_finished_before_the_others_end(tmp_path: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    sampler = Crowd(8, 1)
    evaluate(tasks(tmp_path), sampler, Letters(), Settings(rows_per_part=4), lambda *report: reports.append(report))
    assert reports[:3] == [("some", 0, 120), ("single", 0, 25), ("many", 0, 63)]
    for one in BENCHMARKS:
        done = [rows for name, rows, _ in reports if name == one.name]
        assert done == sorted(done)
        assert done[-1] == one.count * one.samples
    ended = [name for name, rows, total in reports if rows == total]
    assert reports[-1][0] == ended[-1] != ended[0]


def pile(groups: int, samples: int, limit: int) -> BenchmarkQueue:
    units = deque(range(index, index + 1) for index in range(groups))
    return BenchmarkQueue(
        [[65]] * groups, [0] * groups, SamplingParams(n=samples, temperature=1.0, max_new_tokens=limit), units
    )


def test_the_room_is_filled_until_nothing_is_left_and_not_more() -> None:
    crowd = Crowd(16, 0)
    piles = [pile(20, 5, 10), pile(40, 1, 10)]
    left = []
    for _ in sample_all(piles, crowd):
        left.append(sum(len(one.units) for one in piles))
    assert 16 <= crowd.most < 16 + 5
    assert len(crowd.asked) == 60
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0


class Lengths(Crowd):
    """Responses of a hundred tokens to A, of one token to everything else; in the order in which they were added."""

    def start(self, params: SamplingParams) -> CrowdQueue:
        self.started = super().start(params)
        self.started.finished = self._next  # type: ignore[method-assign]
        return self.started

    def _next(self, seconds: float | None = None) -> list[tuple[int, list[Response]]]:
        job = self.started.jobs.pop(0)
        self.asked.append("".join(map(chr, job.prompt)))
        tokens = np.zeros(100 if job.prompt == [65] else 1, dtype=np.int32)
        assert job.params is not None
        return [(job.number, [Response(tokens, tokens.astype(np.float32), None, True)] * job.params.n)]


def test_what_takes_longest_comes_first_as_far_as_it_is_known() -> None:
    """Groups of many responses; then the benchmark whose responses turned out long, whatever their limit."""
    groups, long, short = pile(3, 8, 200), pile(30, 1, 200), pile(30, 1, 400)
    groups.prompts, short.prompts = [[67]] * 3, [[66]] * 30
    sampler = Lengths(1, 0)
    for _ in sample_all([short, long, groups], sampler):
        pass
    assert sampler.asked[:2] == ["C", "B"], "unseen, a full length is expected of each response"
    assert "".join(sampler.asked[2:]).index("A" * 20) < 15
    assert sampler.asked[-15:] == ["B"] * 15
