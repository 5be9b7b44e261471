import shutil
import socket
import sys
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


def refusal(folder: Path, *words: str, scale: str = "laptop", slots: Slots | None = None) -> UserError:
    with pytest.raises(UserError) as caught:
        run_units(units(folder, *words, scale=scale), slots or Slots(), quiet=True)
    assert not (folder / "runs").exists()
    return caught.value


def test_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    error = refusal(tmp_path, "sampler=vllm")
    assert error.what == "vLLM is not installed"
    assert error.where.startswith("row 'GRPO/DAPO'")


def test_golds_that_cannot_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, row = tmp_path / "mine.jsonl", '{"id": "%s", "problem": "%s", "answer": "%s"}\n'
    words = (f"data={file}", "data.benchmarks=[add3]")
    file.write_text(row % ("a", "1+1=", "2") + row % ("b", "2+2=", "N/A"))
    check_study(units(tmp_path, *words), 1, 0, None)
    assert (
        caplog.text.count("1 of 2 golds cannot be read, so that only the same text is right: b (N/A is no answer)") == 1
    )
    file.write_text(row % ("b", "2+2=", "N/A"))
    error = refusal(tmp_path, *words)
    assert error.what.startswith("no reward would be given: 1 of 1 golds cannot be read")
    assert error.where.startswith("row 'GRPO/DAPO'")


def test_nothing_is_counted_of_a_model_whose_shape_is_not_known(tmp_path: Path) -> None:
    """The memory and the disk that it takes come out when it loads."""
    words = ("model.path=nobody/nothing", f"model.revision={'0' * 40}")
    check_study(units(tmp_path, *words), 1, 0, None)


def test_a_server_that_does_not_answer_ends_with_1(tmp_path: Path) -> None:
    words = ("sampler=vllm_server", "sampler.servers=[http://127.0.0.1:9]")
    with trust.caller():
        trust.say(words)
        error = refusal(tmp_path, *words)
    assert "does not answer" in error.what
    assert error.exit_code == 1


SENDING = """
title: sends
rows: [{{label: A, objective: grpo_dapo{row}}}]
scales: {{laptop: {{models: [laptop], seeds: [0]{scale}}}}}
{more}
"""


@pytest.mark.parametrize(
    "places",
    [
        {"row": ", overrides: ['{word}']"},
        {"row": ", overrides: ['++{word}']"},
        {"row": ", by_model: {{laptop: ['{word}']}}"},
        {"scale": ", overrides: ['{word}']"},
        {"more": "vary: {{where: {{one: ['{word}'], other: ['{word}', train.epochs=2]}}}}"},
    ],
    ids=str,
)
@pytest.mark.parametrize("word", ["sampler.servers=[{url}]", "tracking.to=[wandb]"])
def test_a_study_sends_nothing_to_places_that_its_caller_did_not_name(
    places: dict[str, str], word: str, tmp_path: Path
) -> None:
    """Refused before anybody is asked whether he answers. The same word of the caller's, or his trust, permits it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        word = word.format(url=f"http://127.0.0.1:{listener.getsockname()[1]}")
        key = word.partition("=")[0]
        given = {name: text.format(word=word) for name, text in places.items()}
        write(tmp_path / "experiments/mine.yaml", SENDING.format(**{"row": "", "scale": "", "more": ""} | given))
        refused = refusal(tmp_path)
        assert "the study sends" in refused.what
        assert f"{key}=" in refused.fix
        assert refused.fix.endswith("--trust permits it")
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()
    unit, *_ = units(tmp_path)
    (typed,) = (one for one in unit.overrides if key in one)
    for said in ({"words": [typed]}, {"trusts": True}):
        with trust.caller():
            trust.say(**said)  # type: ignore[arg-type]
            assert typed in unit.as_typed()


def test_problems_of_training_and_of_benchmarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "`datasets` is not installed" in refusal(tmp_path, "data=gsm8k_math").what
    error = refusal(tmp_path, "data.benchmarks=[add3,math500]")
    assert ("`datasets` is not installed" in error.what, error.where) == (True, "math500")


def test_ranks_that_an_engine_cannot_use(tmp_path: Path) -> None:
    """On Slurm's nodes too, whose packages and GPUs are not looked for here."""
    with pytest.raises(UserError, match="2 were started"):
        check_study(units(tmp_path), 1, 0, SlurmOptions(nodes=2))


@pytest.mark.parametrize(
    ("words", "scale", "asked", "visible", "jobs", "each"),
    [
        ((), "paper", None, 8, 1, 8),  # ranks of DeepSpeed: all of them
        ((), "paper", 2, 8, 2, 4),
        ((), "paper", 3, 8, 3, 2),
        ((), "paper", None, 6, 1, 6),
        (("sampler.tensor_parallel=4",), "paper", None, 6, 1, 4),  # as many as can share engines
        ((), "paper", 8, 4, 3, 1),  # three runs are to do
        ((), "paper", None, 0, 1, 0),
        (("engine=torch",), "paper", 2, 8, 2, 1),  # one device: a card of its own each
        (("engine=torch",), "paper", None, 8, 3, 1),  # and all cards that there are runs for
        (("engine=torch",), "paper", None, 2, 2, 1),
        (("engine.device=cpu",), "paper", None, 8, 1, 0),
        ((), "laptop", 8, 2, 5, 0),  # a core each
        ((), "laptop", None, 2, 1, 0),
        (("engine.device=cuda",), "laptop", 1, 2, 1, 1),
    ],
)
def test_gpus_where_nobody_says_how_many(
    tmp_path: Path, words: tuple[str, ...], scale: str, asked: int | None, visible: int, jobs: int, each: int
) -> None:
    *found, said = slots_of(units(tmp_path, *words, scale=scale), asked, visible)
    assert found == [jobs, each]
    gpus = f"{each} GPU{'s' * (each > 1)} each, of {visible} that are visible; --jobs N chooses"
    assert f"side by side on {gpus}" in said or visible == 0 or each == 0


def test_more_runs_side_by_side_than_gpus(tmp_path: Path) -> None:
    for words in ((), ("engine=torch",)):
        with pytest.raises(UserError, match="3 runs side by side, 2 GPUs visible here") as caught:
            slots_of(units(tmp_path, *words, scale="paper"), 8, 2)
        assert "--jobs 2" in caught.value.fix


def test_a_run_that_asks_for_the_gpu_that_it_is_not_given(tmp_path: Path) -> None:
    assert refusal(tmp_path, "engine.device=cuda", slots=Slots(gpus=0)).where == "row 'GRPO/DAPO', engine.device=cuda"


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="a GPU is here")
def test_gpus_that_are_not_here(tmp_path: Path) -> None:
    error = refusal(tmp_path, scale="paper", slots=Slots(jobs=2, gpus=4))
    assert error.what == "8 GPUs asked for, 0 visible here"
    assert error.where.startswith("--jobs 2 with --gpus 4")


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="a GPU is here")
def test_a_policy_that_main_memory_does_not_hold(tmp_path: Path) -> None:
    error = refusal(tmp_path, "model.path=Qwen/Qwen2.5-32B", scale="paper")
    assert error.what.startswith("no GPU here, and ")
    assert "Qwen/Qwen2.5-32B" in error.where


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
