import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.evaluation.settings import Settings
from tepo.jobs import open_sampler
from tepo.jobs.measure import Request, evaluate_missing, measure
from tepo.jobs.open_sampler import SharedEngine, check_alike
from tepo.jobs.weights import Weights
from tepo.policy.model.load_policy import load_policy
from tepo.problems.benchmarks import load_benchmark
from tepo.sampling.backends import SamplerOptions
from tepo.store.evaluation_result import SAMPLES
from tepo.store.run_folder import RunFolder
from tepo.store.samples_file import read_table
from tepo.training.run import Run

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


class Openings:
    def __init__(self) -> None:
        self.opened: list[str] = []
        self.closed = 0

    @contextmanager
    def of(self, weights: Weights) -> Iterator[tuple[Any, Any]]:
        self.opened.append(weights.name)
        with SamplerOptions("torch").backend.open_model(weights.path, SamplerOptions("torch"), Path()) as sampler:
            yield sampler, load_policy(weights.path).tokenizer
        self.closed += 1


def test_each_model_has_the_results_that_it_has_alone(models: list[Weights], tmp_path: Path) -> None:
    openings, together = Openings(), [RunFolder(tmp_path / str(index)) for index in range(len(models))]
    benchmark, results = load_benchmark("add3"), []
    with SharedEngine() as engine:
        for weights, run in zip(models, together, strict=True):
            holding = partial(engine.holding, weights, "float32", partial(openings.of, weights))
            results += evaluate_missing(run, [benchmark], settings(weights), lambda missing, holding=holding: holding())
        assert openings.closed == 0
    assert (openings.opened, openings.closed) == ([models[0].name], 1)
    for weights, run, result in zip(models, together, results, strict=True):
        alone = RunFolder(tmp_path / "alone" / run.path.name)
        request = Request(weights, SamplerOptions("torch"), settings(weights), alone)
        assert measure(request, ["add3"]) == [result]
        assert samples(alone) == samples(run)
    responses = [[row["response"] for row in samples(run)] for run in together]
    assert responses[0] != responses[1] != responses[2] != responses[0]


def test_one_that_does_not_load_leaves_the_others(models: list[Weights], tmp_path: Path) -> None:
    openings, first, second = Openings(), *models[:2]
    gone = Weights(str(tmp_path / "gone"), "gone")
    with SharedEngine() as engine:
        with engine.holding(first, "float32", partial(openings.of, first)) as (sampler, _):
            before = sampler.model.state_dict()["lm_head.weight"].clone()
        with pytest.raises(UserError), engine.holding(gone, "float32", partial(openings.of, gone)):
            pass
        assert not engine.failed
        with engine.holding(second, "float32", partial(openings.of, second)) as (again, _):
            assert again is sampler
            assert not torch.equal(sampler.model.state_dict()["lm_head.weight"], before)
        with engine.holding(first, "float32", partial(openings.of, first)):
            assert torch.equal(sampler.model.state_dict()["lm_head.weight"], before)
    assert openings.opened == [first.name]
    with SharedEngine() as engine:  # one that does not open says so
        with pytest.raises(UserError), engine.holding(gone, "float32", partial(Openings().of, gone)):
            pass
        assert engine.failed


def test_models_of_two_architectures_are_refused(models: list[Weights], tmp_path: Path) -> None:
    check_alike(models)
    policy = load_policy(models[1].path)
    for folder, change in (("wide", {"rms_norm_eps": 0.5}), ("longer", {"max_position_embeddings": 64})):
        policy.model.save_pretrained(tmp_path / folder)
        policy.tokenizer.save_pretrained(tmp_path / folder)
        file = tmp_path / folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
        with pytest.raises(UserError, match=f"differs from package:laptop in {next(iter(change))}"):
            check_alike([models[0], Weights.of_base(str(tmp_path / folder), None)])


def test_on_a_cpu_ranks_of_shared_engines_are_measured_by_servers_of_whole_models(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A server of vLLM's takes a NUMA node there for each part of a model: on most machines it would not start."""
    asked: list[SamplerOptions] = []
    monkeypatch.setattr(open_sampler, "model_sampler", lambda weights, options, run: asked.append(options))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    config = compose(["sampler=vllm", "sampler.tensor_parallel=2", "engine.device=cpu", f"store={tmp_path}"])
    open_sampler.trainers_sampler(Run(config), Weights.of_base("package:laptop", None), RunFolder.of(config))
    assert [(options.tensor_parallel, options.data_parallel) for options in asked] == [(1, 2)]
