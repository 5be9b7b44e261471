import resource
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tepo.common.errors import UserError
from tepo.common.parquet import read_parquet
from tepo.store.samples_file import SCHEMA, read_table, table_of, write_table


def row(number: int, response: str) -> dict[str, object]:
    texts = {name: f"{name} {number % 3}" for name in SCHEMA.names if SCHEMA.field(name).type == pa.string()}
    more = {"response": response, "extracted": None if number % 2 else "1", "correct": number % 2 == 0}
    return {**texts, **more, "sample": number, "tokens": 7, "logprob": -0.5}


def test_a_table_is_as_it_was_written(tmp_path: Path) -> None:
    written = table_of([row(number, "é" * number) for number in range(500)])
    write_table(tmp_path / "samples.parquet", written)
    assert read_table(tmp_path / "samples.parquet").equals(written)
    some = read_parquet(tmp_path / "samples.parquet", ["problem", "correct"])
    assert some.equals(written.select(["problem", "correct"]))
    write_table(tmp_path / "empty.parquet", table_of([]))
    assert read_table(tmp_path / "empty.parquet").num_rows == 0


BOMBS = {
    "a text again and again": lambda: pa.DictionaryArray.from_arrays(pa.array([0] * 9000, pa.int32()), ["x" * 2**20]),
    "one value again and again": lambda: pa.array(np.ones(60_000_000, bool)),
    "a long list in a row": lambda: pa.ListArray.from_arrays([0, 60_000_000], np.ones(60_000_000, bool)),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_one_sentence(bomb: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"problem": BOMBS[bomb]()}), path := tmp_path / "samples.parquet", compression="zstd")
    assert path.stat().st_size < 2**20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=r"not a readable Parquet file: holds .* more than is read") as refused:
        read_table(path)
    assert refused.value.where == str(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB
