"""A real vLLM server behind the sampler's contract, and what happens when it is not there."""

import os
import socket

import numpy as np
import pytest
import torch

from tepo.errors import RunFailed, UserError
from tepo.policy.load_policy import load_policy
from tepo.policy.location import resolve
from tepo.sampling.sampler import SamplingParams
from tepo.sampling.stop_tokens import stop_tokens
from tepo.sampling.vllm_sampler import EngineOptions
from tepo.sampling.vllm_server import VllmServerSampler, local_server
from tests.integration.tiny import logprobs

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_server_samples_and_syncs_as_the_contract_says(tmp_path):
    policy, path = load_policy("package:laptop"), resolve("package:laptop")
    prompts = [
        policy.tokenizer("12+34=", add_special_tokens=False)["input_ids"],
        policy.tokenizer("7*8=", add_special_tokens=False)["input_ids"],
    ]
    stops = stop_tokens(policy.model, policy.tokenizer)
    options = EngineOptions(path, "float32", 128)
    with local_server(options, port=free_port(), log=tmp_path / "log", cpu=True) as url:
        sampler = VllmServerSampler([url], stops, max_length=128, exchange=tmp_path / "exchange")
        handed: dict[int, list] = {}
        drawn = sampler.sample(
            prompts,
            [1, 2],
            SamplingParams(n=4, temperature=0.8, max_new_tokens=30),
            on_group=lambda place, group: handed.update({place: group}),
        )
        assert [handed[0], handed[1]] == drawn
        again = sampler.sample(prompts[1:], [2], SamplingParams(n=2, temperature=0.8, max_new_tokens=30))
        assert all(np.array_equal(a.tokens, b.tokens) for a, b in zip(drawn[1], again[0], strict=False))
        assert len({response.tokens.tobytes() for response in drawn[0]}) > 1
        check(policy, prompts, drawn, stops, 0.8)
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
        sampler.sync(policy.model.state_dict())
        after = sampler.sample(prompts, [1, 2], SamplingParams(n=4, temperature=1.0, max_new_tokens=30))
        check(policy, prompts, after, stops, 1.0)
        with pytest.raises(UserError, match="do not fit"):
            sampler.sample([[2] * 120], [1], SamplingParams(n=1, temperature=1.0, max_new_tokens=30))
        assert not list((tmp_path / "exchange").iterdir())
        sampler.close()
    gone = VllmServerSampler.__new__(VllmServerSampler)
    with pytest.raises(RunFailed, match="does not answer"):
        gone._post(url, "/v1/completions", {})


def check(policy, prompts, drawn, stops, temperature):
    for prompt, group in zip(prompts, drawn, strict=True):
        for response in group:
            expected = logprobs(policy.model, prompt, response.tokens.tolist(), temperature)
            assert np.allclose(response.logprobs, expected, atol=1e-4)
            assert (response.tokens[-1] in stops) == response.finished


def test_no_server_there():
    with pytest.raises(RunFailed, match="does not answer"):
        VllmServerSampler([f"http://127.0.0.1:{free_port()}"], [1], max_length=8, exchange=os.devnull)
    with pytest.raises(UserError, match="no vLLM server is named"):
        VllmServerSampler([], [1], max_length=8, exchange=os.devnull)


def test_a_taken_port(tmp_path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        with (
            pytest.raises(UserError, match="is taken"),
            local_server(EngineOptions("nowhere", "float32", 8), port=holder.getsockname()[1], log=tmp_path / "log"),
        ):
            pass


def test_a_server_that_cannot_start_says_why(tmp_path):
    with (
        pytest.raises(UserError, match="did not start: Invalid repository"),
        local_server(EngineOptions(str(tmp_path), "float32", 8), port=free_port(), log=tmp_path / "log", cpu=True),
    ):
        pass
