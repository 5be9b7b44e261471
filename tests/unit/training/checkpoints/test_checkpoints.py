"""Ranks are threads with a real barrier and real files; processes are in `tests/integration/test_kill_rank.py`."""

import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tepo.common.errors import UserError
from tepo.config.run_config import RunConfig
from tepo.policy.model.load_policy import Policy, load_policy
from tepo.policy.model.lora import full_state
from tepo.policy.model.model_location import resolve
from tepo.store.checkpoint_files import TensorFile
from tepo.store.run_folder import RunFolder, final_model
from tepo.training.checkpoints.model_files import model_files, write_beside_weights
from tepo.training.checkpoints.saver import Saver
from tepo.training.engine import optimizer_state
from tepo.training.engine.optimizer_state import Piece
from tepo.training.loop import train
from tepo.training.run import Run
from tests.support.models import engine_model
from tests.support.runs import assert_same_run, interrupted, tiny, write_files
from tests.support.two_ranks import Exchange, on_two_ranks

Work = Callable[[Saver, int], object]


def saved_by_two(run: RunFolder, work: Work) -> list[BaseException | None]:
    """What each of two ranks ended with."""

    def one(exchange: Exchange) -> BaseException | None:
        try:
            with Saver(run, exchange) as saver:  # type: ignore[arg-type]
                work(saver, exchange.rank)
        except BaseException as error:
            return error
        return None

    return on_two_ranks(one)


def part(rank: int) -> list[TensorFile]:
    return [TensorFile(f"{rank}.safetensors", {"a": torch.full((5,), rank)})]


def test_what_is_saved_is_the_state_at_that_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one takes no memory for a copy: what nobody trains any more is written from where it lies."""
    run, live = RunFolder(tmp_path), torch.zeros(1000)

    def files(folder: Path) -> list[TensorFile]:
        return [TensorFile("model.safetensors", {"a": live, "b": live})]  # two names of one tensor

    with Saver(run) as saver:
        for step in (1, 2):
            live.fill_(step)
            saver.save(step, {"prompts": step}, files)
            live.fill_(-1)  # the next update
        saver.check()
        saver.finish()
        monkeypatch.setattr(TensorFile, "copy", lambda self: pytest.fail("a copy"))
        live.fill_(3)
        saver.save(3, {"prompts": 3}, files, over=True)
    assert run.checkpoints() == [2, 3]
    assert run.progress(3)["prompts"] == 3
    for step in (2, 3):
        tensors = load_file(run.checkpoint(step) / "model.safetensors")
        assert [name for name, one in tensors.items() if one.eq(step).all()] == ["a", "b"]


def test_a_digest_is_of_what_training_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of every kind, small files, one file that the training waited for."""
    tensors = {
        "scalar": torch.tensor(3.0),
        "none": torch.empty(0),
        "bf16": torch.randn(5, 7).to(torch.bfloat16),
        "whole": torch.arange(9),
        "bits": torch.tensor([True, False]),
        "turned": torch.arange(6.0).reshape(2, 3).T,
    }

    def files(folder: Path) -> Iterator[TensorFile]:
        (folder / "small.json").write_text("{}")
        yield TensorFile("model.safetensors", tensors)
        yield TensorFile("optimizer/large.safetensors", {"a": torch.empty(1 << 20, dtype=torch.int8)})

    monkeypatch.setattr("tepo.training.checkpoints.saver._room", lambda ranks, on_cpu: 1000.0)
    run = RunFolder(tmp_path)
    with Saver(run) as saver:
        saver.save(1, {}, files)
    written = run.progress(1)
    names = {"model.safetensors", "optimizer/large.safetensors", "small.json"}
    assert written["sha256"].keys() == written["files"].keys() == names
    for name, own in written["sha256"].items():
        assert own == hashlib.sha256((run.checkpoint(1) / name).read_bytes()).hexdigest(), name


def test_without_the_files_of_a_lost_rank_nothing_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tepo.training.checkpoints.saver._GRACE", 0.3)
    run, gone = RunFolder(tmp_path), threading.Event()

    def endless(folder: Path) -> Iterator[TensorFile]:
        gone.set()
        raise SystemExit  # a rank that ends in the middle
        yield

    def work(saver: Saver, rank: int) -> None:
        saver.save(1, {}, lambda folder: part(rank))
        saver.finish()
        saver.save(2, {}, endless if rank else lambda folder: part(0))
        gone.wait()
        raise RuntimeError("Connection closed by peer")

    errors = saved_by_two(run, work)
    assert [type(error) for error in errors] == [RuntimeError, SystemExit]
    assert run.progress(1)["files"].keys() == {"0.safetensors", "1.safetensors"}
    assert run.checkpoints() == [1]
    assert list((tmp_path / "checkpoints").iterdir()) == [run.checkpoint(1)]
    (run.checkpoint(1) / "1.safetensors").unlink()  # copied half
    assert run.checkpoints() == []


def test_a_rank_that_cannot_write_ends_all_with_its_message(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)

    def blocked(folder: Path, rank: int) -> list[TensorFile]:
        if rank == 1:
            (folder / "1.safetensors").mkdir()  # in the way
        return part(rank)

    def work(saver: Saver, rank: int) -> None:
        saver.save(1, {}, lambda folder: part(rank))
        saver.save(2, {}, lambda folder: blocked(folder, rank))
        saver.finish()

    first, second = saved_by_two(run, work)
    assert {type(first), type(second)} == {UserError}
    assert first.what == f"rank 1: {second.what}"
    assert "a folder is in the way" in second.what
    assert run.checkpoints() == [1]


def test_by_the_clock_a_checkpoint_is_due_ten_minutes_after_the_last_on_the_first_rank(tmp_path: Path) -> None:
    def work(saver: Saver, rank: int) -> None:
        assert not saver.is_due(1, None)
        saver._written_at -= 601 if rank == 0 else 0
        assert saver.is_due(2, None)
        saver.save(2, {}, lambda folder: part(rank))
        assert [saver.is_due(3, None), saver.is_due(4, 2), saver.is_due(4, 3)] == [False, True, False]

    assert saved_by_two(RunFolder(tmp_path), work) == [None, None]


def test_a_checkpoint_that_takes_long_to_write_is_made_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that takes 100 seconds is followed by the next after 1,000; one that takes 20, after ten minutes."""
    clock, took = [0.0], [100.0]
    monkeypatch.setattr("tepo.training.checkpoints.saver.time.monotonic", lambda: clock[0])

    def slow(folder: Path) -> list[TensorFile]:
        clock[0] += took[0]
        return part(0)

    with Saver(RunFolder(tmp_path)) as saver:
        for took[0], gap in ((100.0, 1000), (20.0, 600)):
            saver.save(1, {}, slow)
            saver.finish()
            clock[0] += gap - 1
            assert not saver.is_due(2, None)
            clock[0] += 1
            assert saver.is_due(2, None)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_pieces_of_any_number_of_ranks_are_the_full_state(tmp_path: Path, ranks: int) -> None:
    """Cut unevenly into runs, read by one of another number of ranks."""
    full = torch.arange(35.0).reshape(5, 7)
    for rank, part in enumerate(full.flatten().tensor_split(ranks)):
        start = int(part[0])
        piece = Piece("exp_avg", "w", part if ranks > 1 else full, start if ranks > 1 else None)
        write_files(tmp_path, optimizer_state.files([piece], rank))
    for start, size in ((0, 35), (3, 11), (14, 21), (34, 1)):
        mine = torch.full((size,), -1.0)
        for piece in optimizer_state.read(tmp_path, {}):
            own, values = piece.overlap(start, size)
            mine[own] = values
        assert mine.tolist() == list(range(start, start + size))


@pytest.mark.parametrize(("tied", "ranks"), [(True, 1), (False, 2), (True, 3)])
def test_the_files_of_all_ranks_are_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tied: bool, ranks: int
) -> None:
    monkeypatch.setattr("tepo.training.checkpoints.model_files._WORTH_SHARING", 1000)
    model = engine_model(0, tied=tied)
    policy = Policy(model, load_policy("package:laptop").tokenizer)
    state = full_state(model)
    write_beside_weights(policy, tmp_path)
    own = [list(model_files(policy, state, tmp_path, rank, ranks)) for rank in range(ranks)]
    for files in own:
        write_files(tmp_path, files)
    names = [name for files in own for file in files for name in file.tensors]
    assert sorted(names) == sorted(set(state) - ({"lm_head.weight"} if tied else set()))
    assert (tmp_path / "model.safetensors.index.json").is_file() == (ranks > 1)
    assert len({file.name for files in own for file in files}) >= ranks
    sizes = [sum(file.bytes for file in files) for files in own]
    assert min(sizes) > 0
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[name], value) for name, value in state.items())
    assert AutoTokenizer.from_pretrained(tmp_path)("1+2=").input_ids


LAST = "checkpoints/step_000003"


def run_config(store: Path, *words: str) -> RunConfig:
    return tiny(store, "train.steps=4", "train.prompts_per_step=2", "train.mini_batch_prompts=1", *words)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores with one run: `half`, stopped after step 3 with checkpoints of steps 2 and 3, and `whole`, its end."""
    folder = tmp_path_factory.mktemp("runs")
    interrupted(run_config(folder / "half"), 3)
    shutil.copytree(folder / "half", folder / "whole")
    train(Run(run_config(folder / "whole")))
    return folder


def copied(runs: Path, name: str, store: Path) -> RunFolder:
    shutil.copytree(runs / name, store)
    return RunFolder.of(run_config(store))


Damage = Callable[[Path], object]


def flip(path: Path) -> None:
    """One bit, close to the end: of the last tensor."""
    held = bytearray(path.read_bytes())
    held[-100] ^= 1
    path.write_bytes(held)


def change(edit: Callable[[dict], object]) -> Damage:
    def damage(path: Path) -> None:
        held = json.loads(path.read_text())
        edit(held)
        path.write_text(json.dumps(held, indent=1))

    return damage


def lines(edit: Callable[[list[str]], list[str]]) -> Damage:
    return lambda path: path.write_text("".join(edit(path.read_text().splitlines(keepends=True))))


def hold(text: str) -> Damage:
    return lambda path: path.write_text(text)


PROGRESS, METRICS, CONFIG, MANIFEST = f"{LAST}/progress.json", "metrics.jsonl", "config.json", "manifest.json"
# What happens to the newest checkpoint or to the line of its step: the run goes on from the checkpoint before.
PASSED_OVER: list[tuple[str, Damage, str]] = [
    (f"{LAST}/model.safetensors", hold("cut"), "half-written: model.safetensors has 3 bytes"),
    (f"{LAST}/optimizer/00000-00000.safetensors", flip, "optimizer/00000-00000.safetensors is not as it was"),
    (PROGRESS, change(lambda held: held.update(prompts=held["prompts"] + 8)), "progress.json was changed"),
    (METRICS, lines(lambda rows: rows[:2]), "its metrics hold 2 of 3 steps, and lack step 3"),
]


@pytest.mark.parametrize(("file", "damage", "reason"), PASSED_OVER)
def test_a_run_goes_on_from_the_checkpoint_before(
    file: str, damage: Damage, reason: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(runs, "half", tmp_path / "store")
    damage(run.path / file)
    ours, whole = train(Run(run_config(tmp_path / "store"))), RunFolder.of(run_config(runs / "whole"))
    assert capsys.readouterr().err.count(f"{run.path / LAST} is passed over: {reason}") == 1
    assert_same_run(ours, whole.path)
    assert run.finished()


FINISHED = '{"status": "finished", "steps": 4, "recipe": 3}'
OTHER = "the stored configuration does not fit"


def falsely_finished(run: Path) -> None:
    """With a line for its last step."""
    (run / MANIFEST).write_text(FINISHED)
    lines(lambda rows: [*rows, '{"training/global_step": 4}\n'])(run / METRICS)


# What no checkpoint mends: what is said, and the file or folder that is named.
REFUSED: list[tuple[str, Damage, str, str]] = [
    (METRICS, lines(lambda rows: [rows[0], *rows]), "4 lines for 3 steps", METRICS),
    (".", lambda run: [flip(path) for path in run.glob("checkpoints/*/model.safetensors")], "not as it was", LAST),
    (CONFIG, change(lambda held: held["full"]["train"].update(learning_rate=1.0)), OTHER, CONFIG),
    (MANIFEST, hold(FINISHED), "says it is finished, but its metrics hold 3 of 4 steps", METRICS),
    (".", falsely_finished, "step_000004", "step_000004"),
]


@pytest.mark.parametrize(("file", "damage", "reason", "place"), REFUSED)
def test_a_run_that_no_checkpoint_mends_is_refused_and_left_alone(
    file: str, damage: Damage, reason: str, place: str, runs: Path, tmp_path: Path
) -> None:
    run = copied(runs, "half", tmp_path / "store")
    damage(run.path / file)
    files = [*run.path.glob("checkpoints/**/*.*"), run.metrics_file]
    before = {path: path.read_bytes() for path in files if path.is_file()}
    with pytest.raises(UserError) as caught:
        train(Run(run_config(tmp_path / "store")))
    assert reason in caught.value.what + caught.value.where
    assert caught.value.where.endswith(place)
    assert caught.value.exit_code == 2
    assert caught.value.fix
    assert {path: path.read_bytes() for path in files if path.is_file()} == before


@pytest.mark.parametrize("lost", [CONFIG, MANIFEST])
def test_it_is_not_written_for_another_run(lost: str, runs: Path, tmp_path: Path) -> None:
    """A folder called after a run that it does not hold, which lacks what says so."""
    run, config = copied(runs, "whole", tmp_path / "store"), run_config(tmp_path / "store", "seed=9")
    other = RunFolder.of(config)
    run.path.rename(other.path)
    (other.path / lost).unlink()
    with pytest.raises(UserError, match=r"no manifest says|does not fit the name|no configuration"):
        train(Run(config))


def test_a_folder_is_a_model_a_run_or_neither(runs: Path, tmp_path: Path) -> None:
    model = Path(resolve("package:laptop"))
    assert final_model(model) == model
    run = copied(runs, "half", tmp_path / "runs")
    last = run.checkpoint(3)
    assert final_model(run.path) == final_model(last) == last
    (last / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(UserError, match="the checkpoint is damaged"):
        final_model(last)
    with pytest.raises(UserError, match="no model and no checkpoint there"):
        final_model(tmp_path)
