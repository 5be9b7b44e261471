import contextlib
import re
import signal
import time
from functools import partial

import numpy as np
import pytest
import torch

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.policy.model.load_policy import load_policy
from tepo.policy.model.model_location import resolve
from tepo.sampling.sampler import Job, SamplingParams
from tepo.sampling.stop_tokens import stop_tokens
from tepo.sampling.vllm import server_sampler
from tepo.sampling.vllm.http import Connections
from tepo.sampling.vllm.server_sampler import VllmServerSampler, local_server
from tepo.sampling.vllm.vllm_sampler import EngineOptions
from tepo.store.run_folder import RunFolder
from tepo.training import setup
from tepo.training.loop import train
from tepo.training.rollout.rollout_source import Rollouts
from tepo.training.run import Run
from tests.support.commands import OwnSignal, Started, ranks
from tests.support.models import logprobs
from tests.support.runs import SMALL, lasting, small, weights
from tests.unit.sampling.definition import FILTERS, distribution

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.disaster]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The laptop model, a server that has it, a folder shared with the server, and two prompts."""
    policy, folder = load_policy("package:laptop"), tmp_path_factory.mktemp("server")
    options = EngineOptions(resolve("package:laptop"), "float32", 128)
    prompts = [policy.tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("12+34=", "7*8=")]
    with local_server(options, log=folder / "log", cpu=True) as ready:
        yield policy, ready(), folder / "exchange", prompts


@contextlib.contextmanager
def opened(served, stops=None):
    """A sampler at the server, with the policy's own stop tokens unless others are given."""
    policy, url, exchange, _ = served
    stops = stop_tokens(policy.model, policy.tokenizer) if stops is None else stops
    with contextlib.closing(VllmServerSampler([url], stops, max_length=128, exchange=exchange)) as sampler:
        yield sampler


def test_a_server_samples_and_syncs_as_the_contract_says(served, monkeypatch):
    """The weights in several files; in one: the runs below."""
    monkeypatch.setattr(server_sampler, "write_weights", partial(server_sampler.write_weights, bucket=1 << 16))
    policy, _, exchange, prompts = served
    stops = stop_tokens(policy.model, policy.tokenizer)
    with opened(served) as sampler:
        drawn = sampler.sample(prompts, [1, 2], SamplingParams(n=4, temperature=0.8, max_new_tokens=30))
        again = sampler.sample(prompts[1:], [2], SamplingParams(n=2, temperature=0.8, max_new_tokens=30))
        assert all(np.array_equal(a.tokens, b.tokens) for a, b in zip(drawn[1], again[0], strict=False))
        assert len({response.tokens.tobytes() for response in drawn[0]}) > 1
        check(policy, prompts, drawn, stops, 0.8)
        turn = SamplingParams(n=4, temperature=0.8, max_new_tokens=30, stop=(int(drawn[0][0].tokens[0]),))
        check(policy, prompts, sampler.sample(prompts, [1, 2], turn), [*stops, *turn.stop], 0.8)
        other = load_policy("package:laptop")
        with torch.no_grad():
            for parameter in other.model.parameters():
                parameter += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
        sampler.sync(other.model.state_dict())
        after = sampler.sample(prompts, [1, 2], SamplingParams(n=4, temperature=1.0, max_new_tokens=30))
        check(other, prompts, after, stops, 1.0)
        with pytest.raises(UserError, match="do not fit"):
            sampler.sample([[2] * 120], [1], SamplingParams(n=1, temperature=1.0, max_new_tokens=30))
        assert not list(exchange.iterdir())
        sampler.sync(policy.model.state_dict())


def test_a_server_draws_as_the_filters_say(served):
    policy, _, _, prompts = served
    params = SamplingParams(n=8, max_new_tokens=12, **FILTERS["all"])
    with opened(served) as sampler:
        groups = sampler.sample(prompts, [1, 2], params)
    for prompt, group in zip(prompts, groups, strict=True):
        for response in group:
            ids = torch.tensor([[*prompt, *response.tokens.tolist()]])
            with torch.no_grad():
                logits = policy.model(ids).logits[0, len(prompt) - 1 : -1].tolist()
            steps = zip(logits, response.tokens.tolist(), strict=True)
            drawn = [distribution(row, params)[token] for row, token in steps]
            assert np.exp(response.logprobs) == pytest.approx(drawn, rel=1e-3)


def metric(url: str, name: str) -> float:
    """A figure of the server's own, summed over its labels."""
    with Connections().open(url) as connection:
        connection.request("GET", "/metrics")
        figures = re.findall(rf"^vllm:{name}.* (\S+)$", connection.getresponse().read().decode(), re.MULTILINE)
    assert figures
    return sum(map(float, figures))


def until(condition, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_server_gives_up_what_is_aborted_or_dropped_and_takes_weights_at_once(served):
    """1,600 responses that never end: a server that is idle before it has made them has given them up."""
    policy, url, _, prompts = served
    params = SamplingParams(n=8, temperature=1.0, max_new_tokens=110)
    many = [Job(number, prompts[number % 2], number) for number in range(2, 202)]

    def busy():
        return metric(url, "num_requests_running") > 100

    def idle():
        return metric(url, "num_requests_running") == metric(url, "num_requests_waiting") == 0

    with opened(served, stops=[]) as sampler:
        expected = sampler.sample(prompts, [1, 2], params)
        made, queue = metric(url, "request_success_total"), sampler.start(params)
        queue.add(many)
        until(busy)
        queue.abort()
        assert queue.finished() == []
        sampler.sync(policy.model.state_dict())  # the server may still be giving them up
        queue.add([Job(number, prompts[number], number + 1) for number in range(2)])
        queue.add(many)
        until(busy)
        queue.drop(range(2, 202))
        done = []
        while len(done) < 2:
            done += queue.finished()
        for (_, group), other in zip(sorted(done, key=lambda one: one[0]), expected, strict=True):
            assert [a.tokens.tolist() for a in group] == [b.tokens.tolist() for b in other]
        assert queue.finished() == queue.finished(10.0) == []
        until(idle)
        queue.add(many)
        until(busy)
    until(idle)  # closing the sampler gives up what is under way
    assert metric(url, "request_success_total") - made < len(many) * params.n  # each time 256 may end meanwhile


def check(policy, prompts, drawn, stops, temperature):
    for prompt, group in zip(prompts, drawn, strict=True):
        for response in group:
            expected = logprobs(policy.model, prompt, response.tokens.tolist(), temperature)
            assert np.allclose(response.logprobs, expected, atol=1e-4)
            assert (response.tokens[-1] in stops) == response.finished


# runs that draw beside their updates; they leave other weights at the server ------------------------------------------
WORDS = ("train.steps=4", "train.staleness=1", "objective=tepo", "train.learning_rate=1e-4", "sampler=vllm_server")
IN_TURN = "IN TURN"
ROUNDS = "training/rollout_"  # the server's log-probs, whose last bits depend on what it decodes side by side


def train_all(runs):
    """One run after the other. IN_TURN: rollouts are drawn in turn with the updates and not beside them."""
    torch.set_num_threads(1)
    beside = setup.open_rollouts
    for words in runs:
        setup.open_rollouts = (lambda *given: Rollouts(*given[1:5])) if IN_TURN in words else beside
        train(Run(compose([word for word in words if word != IN_TURN])))


def trained(store, *words):
    run = RunFolder.of(small(store, *WORDS, *words))
    assert run.finished()
    rows = [{name: row[name] for name in row if not name.startswith(ROUNDS)} for row in lasting(run.path)]
    return rows, weights(run.path)


def test_a_killed_run_that_draws_beside_its_updates_is_that_which_draws_in_turn(served, tmp_path):
    """A run whose rollouts a server draws while it trains is that of the same server in turn."""
    server = f"sampler.servers=[{served[1]}]"
    run = RunFolder.of(small(tmp_path / "beside", *WORDS, server))
    # within the second checkpoint, which is written beside the updates of the next step and the draw of the one after
    second = OwnSignal(signal.SIGKILL, run.path, "os.rename */checkpoints/step_000001", 6)
    jobs = [[*SMALL, *WORDS, server, f"store={tmp_path / 'beside'}"]]
    jobs += [[*SMALL, *WORDS, server, f"store={tmp_path / 'turn'}", IN_TURN]]
    Started(train_all, jobs[:1], own_signal=second).end(code=-signal.SIGKILL)
    assert not run.finished()
    Started(train_all, jobs).end()
    assert trained(tmp_path / "beside", server) == trained(tmp_path / "turn", server)

    rows = run.metrics()
    assert len(rows) == 4
    for row in rows[:3]:
        assert row["training/rollout_logprobs_diff_max"] < 1e-3  # both of the policy that sampled
    for row in rows[1:3]:  # in the first step another rollout is drawn before
        beside_the_updates = row["timing_s/gen_beside"] - row["timing_s/gen"]  # gen: what the updates waited for
        assert beside_the_updates > 0.5 * min(row["timing_s/gen_beside"], row["timing_s/update_actor"])
    assert rows[2]["training/staleness"] == 1


@pytest.mark.deepspeed
def test_two_ranks_that_draw_beside_their_updates_train_as_in_turn(served, tmp_path):
    """Under ZeRO-3, where the weights from before the updates are shards; two runs in the same processes."""
    server = f"sampler.servers=[{served[1]}]"
    words = (server, "engine=deepspeed", "engine.zero_stage=3")
    beside, turn = ([*SMALL, *WORDS, *words, f"store={tmp_path / name}"] for name in ("beside", "turn"))
    for rank in ranks(train_all, [beside, [*turn, IN_TURN]]):
        rank.end()
    assert trained(tmp_path / "beside", *words) == trained(tmp_path / "turn", *words)
