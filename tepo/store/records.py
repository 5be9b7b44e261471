"""Records of finished runs: the frames of `tepo.store.facts` as Parquet, a folder a study, beside the studies' files.

records/NAME/runs.parquet      a row a run: what it is, how it ended, who made it when, what it cost
             scores.parquet    right answers, problem by problem
             curves.parquet    the metrics that are drawn or summed, with few digits
             content.json      the runs, and a hash of what the frames hold: a file by another version of Parquet's
                               writer has other bytes and the same content

`pandas.read_parquet("records/stability/scores.parquet")` reads one of them without tepo; `tepo.results("stability")`
joins them with the plan of the study.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tepo.common.errors import UserError
from tepo.common.files import commit_folder, parse_json
from tepo.common.parquet import read_parquet
from tepo.store.cost import Cost
from tepo.store.early_stop import read_ending
from tepo.store.evaluation_result import Validated
from tepo.store.facts import COUNT, SCORES, Facts, joined_scores
from tepo.store.stored_tokens import pack_excerpt, unpack_excerpt

FRAMES = ("runs", "scores", "curves")
CONTENT = "content.json"
NAME = ("study", "label", "model", "seed")  # one run at a time has these
_RUNS = pa.schema(
    {
        "run": pa.string(),
        "recipe": pa.int32(),
        "study": pa.string(),
        "label": pa.string(),
        "model": pa.string(),
        "seed": pa.int64(),
        "words": pa.list_(pa.string()),
        "trained": pa.int32(),
        **dict.fromkeys(("ending", "made", "costs", "validation", "excerpt"), pa.string()),  # JSON, null for nothing
    }
)
_COUNTS = {"right": pa.int16(), "samples": pa.int16(), "timeouts": pa.int32()}
_SCORES = pa.schema({name: _COUNTS.get(name, pa.string()) for name in SCORES})
_SCHEMAS = {"runs": _RUNS, "scores": _SCORES, "curves": pa.schema({"run": pa.string(), "step": pa.int64()})}
_NEEDED = {*_RUNS.names[:8], *_SCORES.names, "step"}  # have a value in every row
_FIX = "restore it from the repository, or move it away and write it anew: `tepo records write`"


def read_frames(folder: Path, names: Sequence[str] = FRAMES) -> Facts:
    """Frames of a folder, `runs` as they are stored (`opened` gives their values); empty ones where there is no folder,
    and for those that are not asked for. Raises UserError naming the file that is damaged."""
    frames: dict[str, pd.DataFrame] = {}
    for name in FRAMES:
        if name not in names or not folder.is_dir():
            frames[name] = pd.DataFrame(columns=_SCHEMAS[name].names)
            continue
        frames[name] = _read(folder / f"{name}.parquet").to_pandas()
    if not len(frames["scores"]):
        frames["scores"] = joined_scores([])
    return Facts(**frames)


def _read(path: Path) -> pa.Table:
    """A file of records, texts in categories but for those of runs. Raises UserError where it is none."""
    schema = _SCHEMAS[path.stem]
    try:
        table = read_parquet(path, None, keep_categories=path.stem != "runs")
        if path.stem == "curves":
            schema = _curves_schema(table.column_names)
        if not _plain(table.schema).equals(schema):
            raise ValueError(f"its columns are not {', '.join(schema.names)}, or hold other kinds of values")
        if any(table[name].null_count for name in schema.names if name in _NEEDED):
            raise ValueError("a value is missing")
        if path.stem == "scores":
            right, samples = table["right"], table["samples"]
            counted = pc.and_(pc.greater_equal(right, 0), pc.less_equal(right, samples))
            if not pc.all(counted, min_count=0).as_py():
                raise ValueError("right answers of more samples than there are")
        return table
    except (OSError, ValueError, TypeError, KeyError, NotImplementedError) as error:  # pyarrow's own are among them
        fault = "the file is missing" if isinstance(error, FileNotFoundError) else str(error).splitlines()[0]
        raise UserError(f"the records are damaged: {fault}", where=str(path), fix=_FIX) from None


def _curves_schema(names: Sequence[str]) -> pa.Schema:
    """Behind run and step a column a metric."""
    kinds = {"run": pa.string(), "step": pa.int64(), COUNT: pa.int64()}
    return pa.schema({name: kinds.get(name, pa.float64()) for name in dict.fromkeys(("run", "step", *names))})


def _plain(schema: pa.Schema) -> pa.Schema:
    """Types of values, in categories or not; as they are read lists have another name for their items."""
    return pa.schema(
        {field.name: field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in schema}
    )


def write_frames(folder: Path, frames: Facts) -> None:
    """Write a folder of records whole, with fixed options, rows in order: the same records give the same content. Keeps
    the files where that is what they hold."""
    runs = frames.runs.sort_values([*NAME, "run"], ignore_index=True)
    order = {run: place for place, run in enumerate(runs["run"])}
    scores = frames.scores.astype(dict.fromkeys(("run", "benchmark", "problem", "grader", "task"), object))
    scores = _ordered(scores, order, ["benchmark", "problem"])
    curves = _ordered(frames.curves.astype({"run": object}), order, ["step"])
    metrics = sorted(name for name in set(curves) - {"run", "step"} if curves[name].notna().any())
    tables = {
        "runs": pa.Table.from_pandas(runs[_RUNS.names], schema=_RUNS, preserve_index=False),
        "scores": pa.Table.from_pandas(scores[_SCORES.names], schema=_SCORES, preserve_index=False),
        "curves": pa.Table.from_pandas(
            curves[["run", "step", *metrics]], schema=_curves_schema(metrics), preserve_index=False
        ),
    }
    index = _index(tables)
    if (folder / CONTENT).is_file() and _stored(folder) == index == read_index(folder):
        return
    with commit_folder(folder) as scratch:
        for name, table in tables.items():
            pq.write_table(
                table.replace_schema_metadata(),
                scratch / f"{name}.parquet",
                compression="zstd",
                compression_level=19,
                version="2.6",
                data_page_version="2.0",
                data_page_size=1 << 22,
                row_group_size=1 << 22,
                write_statistics=False,
                write_page_checksum=True,
                store_schema=False,
            )
        lines = ",\n".join(f"{_json(run)}: {_json(name)}" for run, name in index["runs"].items())  # a run a line
        text = f'{{"sha256": "{index["sha256"]}", "runs": {{\n{lines}\n}}}}\n'
        (scratch / CONTENT).write_text(text, encoding="utf-8")


def read_index(folder: Path) -> dict[str, Any]:
    """The runs of a folder, each with its study, label, model and seed, and the hash of its content. Raises UserError
    where that is damaged."""
    path = folder / CONTENT
    try:
        index = parse_json(path.read_bytes())
        if not (isinstance(index["sha256"], str) and all(len(name) == len(NAME) for name in index["runs"].values())):
            raise ValueError("it holds no runs")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"the records are damaged: {error}", where=str(path), fix=_FIX) from None
    return dict(index)


def _index(tables: Mapping[str, pa.Table]) -> dict[str, Any]:
    """The content of an index. The hash is of the values of the tables, whatever the files that hold them."""
    hashed = sha256()
    for name in sorted(tables):
        for column in tables[name].column_names:
            hashed.update(_json([name, column, _values(tables[name].column(column))]).encode())
    runs = tables["runs"]
    names = zip(*(runs[name].to_pylist() for name in NAME), strict=True)
    return {"sha256": hashed.hexdigest(), "runs": dict(zip(runs["run"].to_pylist(), map(list, names), strict=True))}


def _values(column: pa.ChunkedArray) -> list[Any]:
    """`to_pylist`, which makes an object of Arrow's a value and takes several times as long."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_list(column.type):
        return list(column.to_pylist())
    if not column.null_count or pa.types.is_string(column.type):  # missing texts are None
        return list(column.to_numpy().tolist())
    values, missing = column.fill_null(0).to_numpy().tolist(), column.is_null().to_numpy()
    return [None if gone else value for value, gone in zip(values, missing, strict=True)]


def check_content(folder: Path) -> None:
    """Raises UserError where the frames of a folder are not those that were written into it."""
    if _stored(folder) != read_index(folder):
        raise UserError("the records are not those that were written", where=str(folder), fix=_FIX)


def _stored(folder: Path) -> dict[str, Any]:
    return _index({name: _read(folder / f"{name}.parquet") for name in FRAMES})


def _ordered(frame: pd.DataFrame, order: Mapping[str, int], by: Sequence[str]) -> pd.DataFrame:
    return (
        frame.assign(order=frame["run"].map(order))
        .dropna(subset="order")
        .sort_values(["order", *by], ignore_index=True, kind="stable")
        .drop(columns="order")
    )


def stored(values: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a run with values for JSON."""
    validation = values["validation"]
    return {
        "ending": None if values["ending"] is None else _json(asdict(values["ending"])),
        "made": _json([dict(session) for session in values["made"]]),
        "costs": _json([asdict(cost) for cost in values["costs"]]),
        "validation": None if validation is None else _json(asdict(validation)),
        "excerpt": None if values["excerpt"] is None else _json(pack_excerpt(values["excerpt"])),
    }


def opened(row: Any, where: Path) -> dict[str, Any]:
    """The values of a stored run. Raises UserError for what `stored` did not make."""
    readers: dict[str, Callable[[Any], Any]] = {
        "ending": read_ending,
        "made": lambda value: tuple(dict(session) for session in value),
        "costs": lambda value: tuple(Cost(**cost) for cost in value),
        "validation": _validation,
        "excerpt": unpack_excerpt,
    }
    values = {}
    for name, read in readers.items():
        text = getattr(row, name)
        try:
            values[name] = read(parse_json(text)) if isinstance(text, str) else None
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            what = f"the records are damaged: {name} of run {row.run}: {error}"
            raise UserError(what, where=str(where), fix=_FIX) from None
    return values


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _validation(value: Mapping[str, Any]) -> Validated:
    right = {name: tuple(map(int, counts)) for name, counts in value["right"].items()}
    return Validated(str(value["problems"]), float(value["share"]), right)
