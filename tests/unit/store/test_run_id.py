import json
import os
import shutil
from pathlib import Path

import pytest

from tepo.common.errors import RunFailed, UserError
from tepo.common.paths import PACKAGE
from tepo.config.compose import compose
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import run_id
from tepo.training import run_keeper
from tepo.training.loop import train
from tepo.training.run import Run
from tests.support.runs import interrupted, small, write

ROWS = [{"id": f"p{number}", "problem": f"{number}+{number}=", "answer": str(2 * number)} for number in range(10, 30)]


def saved(path: Path, rows: list[dict]) -> Path:
    return write(path, "".join(json.dumps(row) + "\n" for row in rows))


def id_on(path: Path, *more: str) -> str:
    return run_id(compose(["data.kind=problems", f"data.problems={path}", *more]))


def test_the_same_problems_elsewhere_are_the_same_run(tmp_path: Path) -> None:
    first = saved(tmp_path / "a.jsonl", ROWS)
    lines = [json.dumps({"note": 1, **dict(reversed(row.items()))}) for row in ROWS]
    second = write(tmp_path / "else where" / "b.jsonl", "\n\n".join(lines))  # other bytes, the same problems
    assert id_on(first) == id_on(second) == id_on(first, "data.name=mine", "model.name=mine")
    os.utime(first, (0, 0))
    assert id_on(first) == id_on(second)


OTHERS = {
    "answer": [ROWS[0] | {"answer": "99"}, *ROWS[1:]],  # as long as the one before
    "white space": [ROWS[0] | {"problem": "10+10= "}, *ROWS[1:]],
    "order": ROWS[::-1],
    "fewer": ROWS[:-1],
}


@pytest.mark.parametrize("change", OTHERS)
def test_a_file_that_was_rewritten_is_another_run(tmp_path: Path, change: str) -> None:
    path = saved(tmp_path / "a.jsonl", ROWS)
    before = id_on(path)
    saved(path, OTHERS[change])
    assert id_on(path) != before
    saved(path, ROWS)
    assert id_on(path) == before


def test_a_declared_set_has_its_pinned_hash_and_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("TEPO_DATA", raising=False)
    ids = {id_on(Path("dapo_math")), id_on(Path("dapo_math"), "data.exclude_contaminated=true")}
    assert len(ids) == 2
    with pytest.raises(UserError, match="unknown training set 'dapo_mth'"):
        id_on(Path("dapo_mth"))


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "generation_config.json", "config.json", "chat_template.jinja", "model.safetensors"]
)
def test_a_model_folder_is_all_that_changes_what_it_says(tmp_path: Path, name: str) -> None:
    for folder in ("one", "other"):
        shutil.copytree(PACKAGE / "assets/laptop", tmp_path / folder)
    one, other = (run_id(compose([f"model.path={tmp_path / folder}"])) for folder in ("one", "other"))
    assert one == other == run_id(compose())  # the shipped base under other names
    (tmp_path / "one" / "recipe.json").write_text("{}")  # a record, which nothing loads
    assert run_id(compose([f"model.path={tmp_path / 'one'}"])) == one
    file = tmp_path / "one" / name
    before = RunFolder.of_base(compose([f"model.path={tmp_path / 'one'}"]))
    file.write_bytes(file.read_bytes() + b" " if file.exists() else b"{}")
    assert run_id(compose([f"model.path={tmp_path / 'one'}"])) != one
    assert RunFolder.of_base(compose([f"model.path={tmp_path / 'one'}"])) != before


@pytest.mark.parametrize(
    "words",
    [
        ["train.collapse_window=0"],
        ["train.keep_best=false"],
        ["sampler.memory_fraction=0.3"],
        ["objective.J=min(clip(w, 1 - low, high + 1)*A, A*w) - M*beta*kl"],  # another spelling
        ["data.tasks.bin4=0"],
        ["model.lora_rank=0", "model.lora_alpha=32"],
        ["engine.optimizer=adamw"],
        ["engine.offload=true", "engine.micro_batch_tokens=99", "engine.kernels=[layers]", "sampler.max_rows=3"],
        ["store=elsewhere", "grader.workers=3", "sampler.margin=3", "data.benchmarks=[add3]"],
        ["tracking.to=[wandb,trackio]", "tracking.offline=true", "tracking.name=mine"],
        ["train.checkpoint_every=7", "train.staleness=0", "train.adam_beta2=0.999"],
    ],
)
def test_what_changes_nothing_is_the_same_run(words: list[str]) -> None:
    assert run_id(compose(words)) == run_id(compose())


def test_what_changes_something_is_another_run() -> None:
    ranks = (["model.lora_rank=4"], ["model.lora_rank=8"], ["model.lora_rank=4", "model.lora_alpha=16"])
    engines = (["engine.optimizer=adamw_8bit"], ["engine=deepspeed"])
    orders = (["data.tasks.sort3=1", "data.tasks.bin4=1"], ["data.tasks.bin4=1", "data.tasks.sort3=1"])
    hub = tuple(["model.path=some/model", f"model.revision={40 * digit}"] for digit in "ab")
    rows = "objective=gspo beta=1 eps=1e-8 kl=k3(d) average=sums keep=finished".replace(" ", " objective.").split()
    text = "seed=1 data.tasks.add3=2 train.collapse_window=3 train.steps=35 train.learning_rate=2e-4 train.epochs=1 "
    text += "train.staleness=1 train.adam_beta2=0.95"
    plain = ([word] for word in (*rows, "objective.M=A > 0", *text.split()))
    several = ([], *plain, *ranks, *engines, *orders, *hub)
    assert len({run_id(compose(words)) for words in several}) == len(several)


@pytest.mark.parametrize(
    ("words", "known"),
    [
        ((), "d2d49200b171"),
        (("objective=grpo_dapo", "seed=2"), "b944c9813b1b"),
        (("sampler=vllm",), "47bbecac52c2"),
        (("engine=deepspeed",), "79a5d71a8584"),
        (("data=laptop_sparse", "objective=gspo"), "6db462772e04"),
    ],
)
def test_ids_of_runs_in_stores_and_records_stay(words: tuple[str, ...], known: str) -> None:
    assert run_id(compose(words)) == known


def test_a_file_that_changes_while_its_run_starts_is_not_trained_under_the_id_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "a.jsonl", ROWS)
    config = small(tmp_path / "runs", "data.kind=problems", f"data.problems={path}")
    open_state = run_keeper.open_state
    # between the id and the reading
    monkeypatch.setattr(run_keeper, "open_state", lambda *given: (saved(path, ROWS[::-1]), open_state(*given))[1])
    with pytest.raises(RunFailed, match="changed while the run was starting"):
        train(Run(config))
    (run,) = (tmp_path / "runs").iterdir()
    assert RunFolder(run).metrics() == []
    assert RunFolder(run).checkpoints() == []


def test_a_half_trained_run_is_not_continued_on_other_problems(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.jsonl", ROWS)
    words = ("data.kind=problems", f"data.problems={path}", "train.max_rounds=4")
    config = small(tmp_path / "runs", *words)
    old = interrupted(config)
    saved(path, ROWS[::-1])
    assert train(Run(config)) != old.path
    assert (old.manifest()["status"], old.checkpoints()) == ("interrupted", [1])
    saved(path, ROWS)  # the old file again: the old run goes on
    assert train(Run(config)) == old.path
    assert len(old.metrics()) == 3
