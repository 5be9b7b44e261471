import importlib.util
import lzma
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.commands import tepo
from tests.support.runs import SMALL, few_problems, write_study

pytestmark = [pytest.mark.slow, pytest.mark.disaster]

ROWS = {"untrained": {"base": True}, "GSPO": "gspo", "TEPO": "tepo"}
WORDS = (*SMALL, "train.steps=2", "train.validate_every=1", "data.benchmarks=[add3,max4]")


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    few_problems(folder)
    write_study(folder, "mine", ROWS, *WORDS, baseline="GSPO", seeds=(0, 1))
    called(folder, "ablate", "mine")
    written = called(folder, "records", "write", "mine")
    assert f"{folder / 'records' / 'mine'}: 5 runs from the store, 0 kept, 0 not recorded" in written
    return folder


NAMES = ("HF_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "SLURM_JWT", "DATABASE_URL")
SECRETS = {name: f"secret{number}-0123456789abcdef0123456789abcdef" for number, name in enumerate(NAMES)}


def called(folder: Path, *words: str, code: int = 0) -> str:
    own = {"TEPO_PATH": str(folder), "TRACKIO_DIR": str(folder / "trackio")}
    done = tepo(*words, cwd=folder, code=code, **own, **SECRETS)
    assert "Traceback" not in done.stderr
    assert not any(secret in done.stdout + done.stderr for secret in SECRETS.values())
    return done.stdout + done.stderr


def test_a_run_trained_anew_agrees_and_a_false_record_does_not(user: Path) -> None:
    checked = called(user, "records", "check", "mine", "--runs", "1", "--draw", "7")
    assert "--draw 7" in checked
    assert "recorded on" in checked
    path = user / "records" / "mine" / "scores.parquet"
    truth, scores = path.read_bytes(), pq.read_table(path)
    lines = zip(scores["benchmark"].to_pylist(), scores["right"].to_pylist(), strict=True)
    false = [right if name != "add3" else right - 1 if right else 1 for name, right in lines]
    place = scores.column_names.index("right")
    pq.write_table(scores.set_column(place, "right", pa.array(false, pa.int16())), path)
    refused = called(user, "records", "check", "mine", "--draw", "7", code=1)
    path.write_bytes(truth)
    assert "1 of 1 runs differ from their records" in refused
    assert " 20 " in refused  # problems of add3, all of them false
    shutil.rmtree(refused.partition("\nin: ")[2].partition("\n")[0])  # the run anew is kept, to be looked at


def test_what_lies_in_the_environment_is_in_no_stored_file(user: Path) -> None:
    trackers = ",".join(name for name in ("wandb", "tensorboard", "trackio") if importlib.util.find_spec(name))
    tracked = (f"tracking.to=[{trackers}]", "tracking.offline=true", "train.steps=1", "data.benchmarks=[add3]")
    called(user, "train", "--evaluate", *SMALL, *tracked, "store=tracked")
    (run,) = user.glob("tracked/*/config.json")
    called(user, "eval", "max4", "--model", str(run.parent), "--limit", "4")
    called(user, "report", "mine")
    files = [path for path in user.rglob("*") if path.is_file()]
    assert {"report.html", "README.md", "provenance.json", "log.txt", "config.json"} <= {path.name for path in files}
    told = [(path.name, name) for path in files for name, one in SECRETS.items() if one.encode() in content(path)]
    assert told == []


def content(path: Path) -> bytes:
    """The bytes of a file, unpacked where it is compressed."""
    if path.suffix == ".parquet":
        return str([pq.read_schema(path).metadata, pq.read_table(path).to_pylist()]).encode()
    return lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
