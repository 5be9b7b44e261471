"""A file of records: `records/NAME.jsonl.xz`, JSON lines, which `xzcat` prints.

    {"benchmark": "3f2a…", "name": "add3", "samples": 4, …, "problems": [ids]}   what benchmarks were, each once
    {"made_by": "91ac…", "tepo": "0.1.0", "commit": …, "cpu": …}                 versions and machines, each once
    {"run": "0d7d…", "study": …, "label": …, "right": {"3f2a…": "4434…"}, …}     a run; right: of each problem, in order
    {"metrics": "0d7d…", "steps": 36, …}                                         of a run: `thinned_metrics`
    {"excerpt": "0d7d…", "before": {…}, "after": {…}, …}                         of a few runs: responses with tokens

Lines of a kind stand together, which saves a tenth of the size.
"""

import json
import lzma
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tepo.common.errors import UserError
from tepo.common.files import content_hash, parse_json, write_atomic
from tepo.store.cost import Cost
from tepo.store.early_stop import read_ending
from tepo.store.evaluation_result import RIGHT, Validated
from tepo.store.excerpt import Again, Excerpt, pack_excerpt, unpack_excerpt
from tepo.store.records.run_record import Measured, Record, Verdicts, facts_of
from tepo.store.records.thinned_metrics import pack, unpack

SUFFIX = ".jsonl.xz"
_LARGEST = 64 << 20  # bytes of text, 44 times those of the largest that ships (stability_more: 300 runs)
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "pb": 0}]  # text: bytes, not words of four


def read_records(path: Path) -> list[Record]:
    """The records of a file; none where there is no file. Raises UserError naming the line where it is damaged."""
    fix = "restore it from the repository, or move it away and write it anew: `tepo records write`"
    try:
        with lzma.open(path) as file:
            packed = file.read(_LARGEST + 1)
        lines = packed.decode().removesuffix("\n").split("\n") if packed else []
    except FileNotFoundError:
        return []
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise UserError(f"the file of records is damaged: {error}", where=str(path), fix=fix) from None
    _check_size(packed, path)
    benchmarks: dict[str, Measured] = {}
    makers: dict[str, Mapping[str, Any]] = {}
    records: dict[str, Record] = {}
    for number, line in enumerate(lines, start=1):
        try:
            value = parse_json(line)
            if "benchmark" in value:
                key = value.pop("benchmark")
                benchmarks[key] = Measured(**{**value, "problems": tuple(value["problems"])})
            elif "made_by" in value:
                makers[value.pop("made_by")] = value
            elif "metrics" in value:
                key = value.pop("metrics")
                unpack(value)  # now, not when it is drawn
                records[key] = replace(records[key], shown=value)
            elif "excerpt" in value:
                key = value.pop("excerpt")
                records[key] = replace(records[key], quoted=unpack_excerpt(value, _again(value, makers)))
            else:
                records[value["run"]] = _record(value, benchmarks, makers)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            what = f"line {number} of the records is damaged: {type(error).__name__} {error}"
            raise UserError(what, where=f"{path}, line {number}", fix=fix) from None
    return list(records.values())


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write a file of records: the same records give the same bytes, whatever their order."""
    shared: dict[str, dict[str, Any]] = {}
    records = sorted(records, key=lambda record: (record.name, record.id))
    runs = [_line(record, shared) for record in records]
    metrics = [{"metrics": record.id, **record.shown} for record in records if record.shown["steps"]]
    excerpts = [_excerpt_line(record.id, record.quoted, shared) for record in records if record.quoted]
    lines = [*dict(sorted(shared.items())).values(), *runs, *metrics, *excerpts]
    packed = "".join(f"{json.dumps(line, separators=(',', ':'), ensure_ascii=False)}\n" for line in lines).encode()
    _check_size(packed, path)
    write_atomic(path, lzma.compress(packed, filters=_FILTERS), "--out DIR")


def _check_size(packed: bytes, path: Path) -> None:
    """Raises UserError for more than `_LARGEST`: a file of 160 kB may hold a gigabyte of zeros."""
    if len(packed) > _LARGEST:
        what = f"the file of records holds more than {_LARGEST >> 20} MiB"
        raise UserError(what, where=str(path), fix="300 runs take 1.5 MB: split the study, or move the file away")


def merged(old: Iterable[Record], new: Iterable[Record]) -> list[Record]:
    """The new records, and of the old ones those of other runs. A run that has become another one by a change of its
    study, the code or the problems replaces what it was."""
    new = list(new)
    ids, names = {record.id for record in new}, {record.name for record in new}
    return [*(record for record in old if record.id not in ids and record.name not in names), *new]


def _line(record: Record, shared: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The line of a record; what it shares with others goes to `shared`."""
    return {
        "run": record.id,
        "recipe": record.recipe,
        "study": record.study,
        "label": record.label,
        "model": record.model,
        "seed": record.seed,
        "words": record.words,
        "ending": None if record.ended is None else asdict(record.ended),
        "made": _made_line(record.made, shared),
        "cost": [asdict(cost) for cost in record.cost],
        **({} if record.validation is None else {"validation": _validation_line(record.validation)}),
        "timeouts": {name: one.timeouts for name, one in record.verdicts.items() if one.timeouts},
        "right": {
            _key("benchmark", asdict(one.on), shared): _written(one.right, one.on.samples)
            for one in record.verdicts.values()
        },
    }


def _made_line(made: Iterable[Mapping[str, Any]], shared: dict[str, dict[str, Any]]) -> list[list[Any]]:
    return [[_key("made_by", facts_of(one), shared), one.get("started"), one.get("ended")] for one in made]


def _made(line: list[list[Any]], makers: Mapping[str, Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    return tuple({"started": started, "ended": ended, **makers[key]} for key, started, ended in line)


def _excerpt_line(run: str, excerpt: Excerpt, shared: dict[str, dict[str, Any]]) -> dict[str, Any]:
    again = excerpt.again and {"made": _made_line(excerpt.again.made, shared), "differs": excerpt.again.differs}
    return {"excerpt": run, "again": again, **pack_excerpt(excerpt)}


def _again(line: dict[str, Any], makers: Mapping[str, Mapping[str, Any]]) -> Again | None:
    again = line["again"]
    return None if again is None else Again(_made(again["made"], makers), int(again["differs"]))


def _validation_line(validation: Validated) -> dict[str, Any]:
    right = {name: _written(counts, _samples(name)) for name, counts in validation.right.items()}
    return {"problems": validation.problems, "share": validation.share, **({"right": right} if right else {})}


def _validation(line: dict[str, Any]) -> Validated:
    right = {name: _counts(text, _samples(name)) for name, text in line.get("right", {}).items()}
    return Validated(**{**line, "right": right})


def _samples(name: str) -> int:
    return int(name.partition(RIGHT)[2])


def _written(right: Iterable[int], samples: int) -> str:
    """Counts up to `samples`, a digit each where that is enough."""
    return ("" if samples < 10 else " ").join(map(str, right))


def _counts(text: str, samples: int) -> tuple[int, ...]:
    """Raises ValueError for what `_written` did not make."""
    right = tuple(map(int, text if samples < 10 else text.split()))
    if not all(0 <= count <= samples for count in right):
        raise ValueError(f"right answers: not one count up to {samples} a problem")
    return right


def _key(kind: str, value: dict[str, Any], shared: dict[str, dict[str, Any]]) -> str:
    key = content_hash(value)
    shared[f"{kind} {value.get('name', '')} {key}"] = {kind: key, **value}
    return key


def _record(line: dict[str, Any], benchmarks: Mapping[str, Measured], makers: Mapping[str, Any]) -> Record:
    """Raises ValueError, TypeError, KeyError or AttributeError for what `_line` did not make."""
    verdicts = {}
    for key, text in line["right"].items():
        on = benchmarks[key]
        right = _counts(text, on.samples)
        if len(right) != len(on.problems):
            raise ValueError(f"right answers on {on.name}: not one count up to {on.samples} a problem")
        verdicts[on.name] = Verdicts(on, right, line["timeouts"].get(on.name, 0))
    return Record(
        path=Path(line["run"]),
        recipe=line["recipe"],
        study=line["study"],
        label=line["label"],
        model=line["model"],
        seed=line["seed"],
        words=tuple(line["words"]),
        ended=None if line["ending"] is None else read_ending(line["ending"]),
        made=_made(line["made"], makers),
        cost=tuple(Cost(**cost) for cost in line["cost"]),
        shown=pack([]),  # until its line comes
        verdicts=verdicts,
        validation=_validation(line["validation"]) if "validation" in line else None,
    )
