import shutil
import socket
from pathlib import Path

import pytest

from tepo.common import trust
from tepo.common.errors import UserError
from tepo.launch.run_units import Slots, run_units
from tepo.launch.sbatch import SlurmOptions
from tepo.launch.unit_checks import check_study, slots_of
from tepo.policy.model.shapes import KNOWN
from tepo.studies.plan import Unit
from tepo.studies.plan_studies import plan_all
from tests.support.runs import write

STUDY = """
title: rows
rows:
  - {label: untrained, base: true}
  - {label: GRPO/DAPO, objective: grpo_dapo}
  - {label: GSPO, objective: gspo}
scales:
  laptop: {models: [laptop], seeds: [0, 1]}
  paper: {models: [qwen2.5-7b], seeds: [0]}
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "experiments/mine.yaml", STUDY)
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    monkeypatch.delenv("TEPO_DATA", raising=False)


def units(folder: Path, *words: str, scale: str = "laptop") -> list[Unit]:
    ((_, planned),) = plan_all(["mine"], scale, store=folder / "runs", overrides=words)
    return planned


def refusal(folder: Path, *words: str) -> UserError:
    with pytest.raises(UserError) as caught:
        run_units(units(folder, *words), Slots(), quiet=True)
    assert not (folder / "runs").exists()
    return caught.value


def test_golds_that_cannot_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, row = tmp_path / "mine.jsonl", '{"id": "%s", "problem": "%s", "answer": "%s"}\n'
    words = (f"data={file}", "data.benchmarks=[add3]")
    file.write_text(row % ("a", "1+1=", "2") + row % ("b", "2+2=", "N/A"))
    check_study(units(tmp_path, *words), 1, 0, None)
    assert caplog.text.count("1 of 2 golds cannot be read") == 1
    file.write_text(row % ("b", "2+2=", "N/A"))
    error = refusal(tmp_path, *words)
    assert error.what.startswith("no reward would be given: 1 of 1 golds cannot be read")
    assert error.where.startswith("row 'GRPO/DAPO'")


SENDING = """
title: sends
rows: [{{label: A, objective: grpo_dapo{row}}}]
scales: {{laptop: {{models: [laptop], seeds: [0]{scale}}}}}
{more}
"""


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("row", ", overrides: ['{word}']"),
        ("row", ", by_model: {{laptop: ['{word}']}}"),
        ("scale", ", overrides: ['{word}']"),
        ("more", "vary: {{where: {{one: ['{word}'], other: ['{word}', train.epochs=2]}}}}"),
    ],
)
@pytest.mark.parametrize("word", ["sampler.servers=[{url}]", "tracking.to=[wandb]"])
def test_a_study_sends_nothing_to_places_that_its_caller_did_not_name(
    place: str, text: str, word: str, tmp_path: Path
) -> None:
    """Refused before anybody is asked whether he answers. The same word of the caller's, or his trust, permits it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        word = word.format(url=f"http://127.0.0.1:{listener.getsockname()[1]}")
        key = word.partition("=")[0]
        parts = {"row": "", "scale": "", "more": ""} | {place: text.format(word=word)}
        write(tmp_path / "experiments/mine.yaml", SENDING.format(**parts))
        refused = refusal(tmp_path)
        assert "the study sends" in refused.what
        assert f"{key}=" in refused.fix
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()
    unit, *_ = units(tmp_path)
    (typed,) = (one for one in unit.overrides if key in one)
    for said in ({"words": [typed]}, {"trusts": True}):
        with trust.caller():
            trust.say(**said)  # type: ignore[arg-type]
            assert typed in unit.as_typed()


def test_ranks_that_an_engine_cannot_use(tmp_path: Path) -> None:
    """On Slurm's nodes too, whose packages and GPUs are not looked for here."""
    with pytest.raises(UserError, match="2 were started"):
        check_study(units(tmp_path), 1, 0, SlurmOptions(nodes=2))


@pytest.mark.parametrize(
    ("words", "scale", "asked", "visible", "jobs", "each"),
    [
        ((), "paper", None, 8, 1, 8),  # ranks of DeepSpeed: all of them
        (("sampler.tensor_parallel=4",), "paper", None, 6, 1, 4),  # as many as can share engines
        ((), "paper", 8, 4, 3, 1),  # three runs are to do
        (("engine=torch",), "paper", None, 8, 3, 1),  # one device: all cards that there are runs for
        ((), "laptop", 8, 2, 5, 0),  # a core each
    ],
)
def test_gpus_where_nobody_says_how_many(
    tmp_path: Path, words: tuple[str, ...], scale: str, asked: int | None, visible: int, jobs: int, each: int
) -> None:
    *found, _ = slots_of(units(tmp_path, *words, scale=scale), asked, visible)
    assert found == [jobs, each]


def test_a_disk_that_does_not_hold_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's jobs train at once: two units of three checkpoints each. One after another: one of three checkpoints,
    beside the weights of the other. 7B parameters of 2 bytes; 12 more each in a checkpoint."""
    planned = units(tmp_path, scale="paper")
    weights = 2 * KNOWN["Qwen/Qwen2.5-7B"].parameters
    trained = [unit for unit in planned if not unit.row.base]
    assert len(trained) == 2
    needed = {1: (3 * 7 + 1) * weights, 2: 2 * 3 * 7 * weights}

    class Disk:
        free, total = 0.0, 1e15

    monkeypatch.setattr(shutil, "disk_usage", lambda path: Disk)
    for at_once, size in needed.items():
        slurm = SlurmOptions(parallel=at_once, gpus=8)
        Disk.free = 1.001 * size
        check_study(planned, 1, 0, slurm)
        Disk.free = 0.999 * size
        with pytest.raises(UserError, match="GB free, the study's runs take"):
            check_study(planned, 1, 0, slurm)
