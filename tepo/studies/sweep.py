"""A sweep on the command line, as Hydra writes it (`seed=0,1 objective=gspo,tepo train.learning_rate=1e-4,4e-4`), as a
study of one's own: every value with every other, each run the same that `tepo train` makes of its words."""

import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from tepo.common.errors import UserError
from tepo.config.compose import check_override, compose, is_text, number_kind
from tepo.config.own_files import unquoted
from tepo.formula.row import DEFAULT
from tepo.problems.benchmarks import check_measurable
from tepo.reporting.colours import looks
from tepo.studies.plan import Unit, unit_of
from tepo.studies.store_check import check_store
from tepo.studies.study import Scale, Study, StudyRow, check_seeds
from tepo.studies.vary import Vary, key_of

_PARTS = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[\[({]|[\])}]|,|[^'"\[\](){},]+|.""", re.DOTALL)
_DECIMAL = re.compile(r"-?[0-9]+,[0-9]+([eE][-+]?[0-9]+)?")  # 1,5e-4: a number with a comma, or 1 and 5e-4
_THOUSANDS = re.compile(r"[1-9](,[0-9]{3})+|[1-9][0-9]{1,2},0[0-9]{2}(,[0-9]{3})*")  # 1,024 or 16,000; 36,216 are two
_MOST = 10_000  # values that a range lists
_RANGE = re.compile(r"range\((-?\d+)(?:,\s*(-?\d+))?(?:,\s*(-?\d+))?\)")
_OTHERS = re.compile(r"(interval|glob|choice|sort|shuffle)\(.*\)")


def values_of(text: str) -> list[str]:
    """The values that `a,b` and `range(3)` list; commas in quotes and brackets are part of a value. One value where it
    lists no more. Raises UserError for a range of too many."""
    if match := _RANGE.fullmatch(text.strip()):
        ends = [int(number) for number in match.groups() if number]
        if ends[2:] == [0] or len(range(*ends)[: _MOST + 1]) > _MOST:
            raise UserError(f"a range has at most {_MOST:,} values", where=text, fix="range(3) or range(0, 10, 2)")
        return list(map(str, range(*ends)))
    values, depth = [""], 0
    for part in _PARTS.findall(text):
        depth += (part in "[({") - (part in "])}")
        if part == "," and not depth:
            values.append("")
        else:
            values[-1] += part
    return [value.strip() for value in values] if all(value.strip() for value in values) else [text]


def axes_of(words: Sequence[str]) -> dict[str, list[str]]:
    """Keys whose words list several values. A key that is text, a formula and a file that is there have one. Raises
    UserError for words of Hydra that are not understood."""
    axes: dict[str, list[str]] = {}
    for word in words:
        key, _, text = key_of(word), *word.partition("=")[1:]
        axes.pop(key, None)
        if is_text(key) or Path(unquoted(text)).exists():
            continue
        if not key.startswith("objective.") and (other := _OTHERS.fullmatch(text.strip())):
            fix = "write the values (a,b,c) or range(3); `vary:` of a study crosses settings"
            raise UserError(f"{other[1]}(…) of Hydra's sweeps is not understood", where=word, fix=fix)
        if len(values := values_of(text)) > 1:
            _check_commas(key, text)
            axes[key] = values
    return axes


def _check_commas(key: str, text: str) -> None:
    """Raise UserError for `1,5e-4` and `1,024`, which may be one number or two values. With a blank they are two."""
    number = ""
    if number_kind(key) is float and _DECIMAL.fullmatch(text):
        number = text.replace(",", ".")
    elif number_kind(key) is int and key != "seed" and _THOUSANDS.fullmatch(text):
        number = text.replace(",", "")
    if number:
        what = f"{text} may be the number {number} or the values {' and '.join(text.split(','))}"
        fix = f"{key}={number} for the number, '{key}={text.replace(',', ', ')}' in quotes for the values"
        raise UserError(what, where=f"{key}={text}", fix=fix)


def seeds_of(text: str, where: str = "seed") -> list[int]:
    """Seeds as they are typed. where: the option or setting. Raises UserError for what is no list of whole numbers."""
    values = values_of(text)
    if not all(re.fullmatch("[0-9]{1,19}", value) for value in values):
        raise UserError(f"not a list of seeds: {text!r}", where=where, fix="0,1,2 or 'range(3)'")
    return [int(value) for value in values]


def plan_sweep(words: Sequence[str], axes: Mapping[str, Sequence[str]], store: Path) -> list[tuple[Study, list[Unit]]]:
    """The study of a sweep with its units. Raises UserError for a word that is wrong, naming it."""
    words_by_key = {key_of(word): word for word in words}
    for key, values in axes.items():
        for value in values:
            check_override(f"{key}={value}")
    fixed_words = {key: word for key, word in words_by_key.items() if key not in axes}
    of = {
        key: axes.get(key) or ([fixed_words[key].partition("=")[2]] if key in fixed_words else [])
        for key in ("objective", "model")
    }
    seeds = [seed for value in axes.get("seed", [fixed_words.get("seed", "seed=0")[5:]]) for seed in seeds_of(value)]
    rest = [word for key, word in fixed_words.items() if key not in ("objective", "model", "seed", "store")]
    vary: Vary = {
        key: {value: (f"{key}={value}",) for value in values}
        for key, values in axes.items()
        if key not in ("objective", "model", "seed")
    }
    names = of["objective"] or [DEFAULT]
    row_looks = looks({Path(name).stem: name for name in names})
    rows = tuple(StudyRow(Path(name).stem, name, look=row_looks[Path(name).stem]) for name in names)
    scale = fixed_words["scale"].partition("=")[2] if "scale" in fixed_words else compose(()).scale
    settled = Scale((), tuple(check_seeds(seeds)), vary=vary)
    title = f"Sweep over {', '.join(axes)}"
    baseline = rows[0].label if len(rows) > 1 else None
    study = Study(title=title, rows=rows, scales={scale: settled}, baseline=baseline, name="sweep")
    units = []
    for model, row, seed in product(of["model"] or [""], study.rows_at(scale), seeds):
        of_model = [f"model={model}"] if model else []
        row_words = (f"objective={row.objective}", *of_model, *rest, *row.setting.overrides)
        unit = unit_of(row, model or compose(row_words).model.name, row_words, seed, store)
        check_measurable(unit.config.data)
        units.append(unit)
    check_store(units)
    return [(study, units)]
