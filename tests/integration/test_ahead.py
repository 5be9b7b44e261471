"""A run whose rollouts a real vLLM server draws while it trains is that of the same server in turn: also after a kill,
and on two ranks over which the model is cut."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tepo.policy.model.model_location import resolve
from tepo.sampling.vllm.server_sampler import local_server
from tepo.sampling.vllm.vllm_sampler import EngineOptions
from tepo.store.run_folder import RunFolder
from tests.integration.commands import OwnSignal, program, ranks
from tests.integration.runs_in_turn import IN_TURN
from tests.unit.training.small import SMALL, lasting, small, weights

pytestmark = [pytest.mark.vllm, pytest.mark.disaster]
WORDS = ("train.steps=4", "train.staleness=1", "objective=tepo", "train.learning_rate=1e-4", "sampler=vllm_server")
PROGRAM = "tests.integration.runs_in_turn"
ROUNDS = "training/rollout_"  # the server's log-probs, whose last bits depend on what it decodes side by side


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The setting that names it."""
    options = EngineOptions(resolve("package:laptop"), "float32", 128)
    log = tmp_path_factory.mktemp("server") / "log"
    with local_server(options, log=log, cpu=True) as ready:
        yield f"sampler.servers=[{ready()}]"


def trained(store: Path, *words: str) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    run = RunFolder.of(small(store, *WORDS, *words))
    assert run.finished()
    rows = [{name: row[name] for name in row if not name.startswith(ROUNDS)} for row in lasting(run.path)]
    return rows, weights(run.path)


def test_a_killed_run_that_draws_beside_its_updates_is_that_which_draws_in_turn(server: str, tmp_path: Path) -> None:
    run = RunFolder.of(small(tmp_path / "beside", *WORDS, server))
    # within the second checkpoint, which is written beside the updates of the next step and the draw of the one after
    second = OwnSignal(signal.SIGKILL, run.path, "os.rename */checkpoints/step_000001", 6)
    jobs = [[*SMALL, *WORDS, server, f"store={tmp_path / 'beside'}"]]
    jobs += [[*SMALL, *WORDS, server, f"store={tmp_path / 'turn'}", IN_TURN]]
    program(PROGRAM, json.dumps(jobs[:1]), own_signal=second).end(code=-signal.SIGKILL)
    assert not run.finished()
    program(PROGRAM, json.dumps(jobs)).end(300)
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
def test_two_ranks_that_draw_beside_their_updates_train_as_in_turn(server: str, tmp_path: Path) -> None:
    """Under ZeRO-3, where the weights from before the updates are shards; two runs in the same processes."""
    words = (server, "engine=deepspeed", "engine.zero_stage=3")
    beside, turn = ([*SMALL, *WORDS, *words, f"store={tmp_path / name}"] for name in ("beside", "turn"))
    for rank in ranks(PROGRAM, json.dumps([beside, [*turn, IN_TURN]])):
        rank.end(300)
    assert trained(tmp_path / "beside", *words) == trained(tmp_path / "turn", *words)
