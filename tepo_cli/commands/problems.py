"""`tepo data`: problem sets, and graded answers."""

import json
import math
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from tepo.common.errors import RunFailed, UserError, unknown_name
from tepo_cli.cli_options import Store

_SETS = "Benchmarks, training sets or files of problems, with settings of training (default: every set not generated)."
_PAIRS = "List every pair above 0.8: benchmark problem, training problem, Jaccard index."
app = typer.Typer(help="Problem sets and answers: verify, grade, regrade.", no_args_is_help=True)


@app.command()
def verify(names: Annotated[list[str] | None, typer.Argument(help=_SETS, show_default=False)] = None) -> None:
    """Check the problem sets and print their hashes.

    They are read from files, TEPO_DATA or the hub. A set that is not the pinned one is an error that names the rows;
    the others are checked all the same. Of data of yours a table says what became of each column; settings are those of
    `tepo train`, as data.fields.problem=COLUMN. Exit code 1 where a gold of yours is a guess or cannot be read, or a
    problem of yours has two that differ.

    \b
    tepo data verify aime24
    tepo data verify FILE.csv data.fields.problem=COLUMN"""
    from tepo.common import paths
    from tepo.config.own_files import is_own, unquoted
    from tepo.problems.training_sets import training_names
    from tepo.reporting.progress import say

    known_names, chosen, settings = [*paths.names("evals"), *training_names()], list[str](), list[str]()
    for word in names or ():
        key, setting, value = word.partition("=")
        if setting and key in ("data", "data.problems"):
            chosen.append(unquoted(value))
        elif setting and re.fullmatch(r"[+~]*\w+(\.\w+)*", key) and not Path(word).is_file():
            settings.append(word)
        else:
            chosen.append(word)
    for name in chosen:
        if not is_own("data", name) and name.partition(":")[0] not in known_names:
            raise unknown_name("benchmark or training set", name, known_names)
    if settings and (not chosen or not all(is_own("data", name) for name in chosen)):
        raise UserError(
            "settings are for data of yours", where=" ".join(settings), fix="tepo data verify FILE KEY=VALUE"
        )
    failed, wrong = list[str](), list[str]()
    everything = chosen or known_names
    for number, name in enumerate(everything, 1):
        say(f"{number} of {len(everything)}: {name}")
        try:
            wrong += [name] if _verified(name, settings, skip_generated=not chosen) else []
        except UserError as error:
            if len(everything) == 1:
                raise
            typer.echo(f"{name}: NOT VERIFIED\n  " + str(error).replace("\n", "\n  "))
            failed.append(name)
    if failed:
        raise UserError(f"not verified: {', '.join(failed)}", fix="see the lines about them")
    if wrong:
        raise RunFailed(f"golds to mend in {', '.join(wrong)}", fix="see the lines about them")


def _verified(name: str, settings: list[str], *, skip_generated: bool) -> bool:
    """Print what there is to say of one set; tell whether it is the caller's and has golds to mend. settings: those of
    `tepo train`, for data of the caller's. Raises UserError when it is broken, not there or not the pinned one."""
    from tepo.common import paths
    from tepo.common.text import counted
    from tepo.config.compose import compose
    from tepo.config.own_files import is_own
    from tepo.problems.benchmarks import load_benchmark
    from tepo.problems.data_reader import read_data
    from tepo.problems.findings import find, other_forms, some_of
    from tepo.problems.grader import Grader, GraderOptions
    from tepo.problems.hashes import set_hash
    from tepo.problems.training_sets import load_training_problems, training_names
    from tepo_cli.screen import show

    pinned, options, read = "", GraderOptions(), None
    own_set, graded = is_own("data", name), True
    if own_set:
        config = compose([f"data={name}", *settings]) if settings else None
        if config:
            options = GraderOptions.of_training(config.grader)
            graded = not config.data.reward or not all(reward.own for reward in config.data.reward.values())
        fields, columns = (config.data.fields, config.data.columns) if config else ({}, [])
        read = read_data(name, fields, columns, most=None)
        problems = list(read.problems)
    elif name in training_names():
        problems = load_training_problems(name)
    else:
        benchmark = load_benchmark(name)
        if benchmark.procedural and skip_generated:
            return False
        problems, options = benchmark.load_problems(), benchmark.grader
        pinned = "" if benchmark.hash or benchmark.procedural else f"; not pinned, as {name}.yaml has no `hash`"
        own_set = paths.find("evals", name.partition(":")[0]).parent != paths.shipped("evals")
    typer.echo(f"{name}: {counted(len(problems), 'problem')}, content {set_hash(problems)}{pinned}")
    if read:
        show(("column", "becomes", "changed"), read.columns, wrapped=("becomes", "changed"))
        for line in read.lines():
            typer.echo(f"  {line}")
    guessed = bool(read and read.guessed)
    if not graded:
        typer.echo("  golds are not tried: data.reward judges without the grader")
        return guessed
    with Grader(options) as grader:
        findings = find(problems, grader, math.inf)
    for line in findings.several:
        typer.echo(f"  {line}")
    if findings.unread:
        typer.echo(f"  golds that the grader cannot read: {', '.join(findings.unread)}")
    if findings.repeated:
        typer.echo(
            f"  remark: {counted(len(findings.repeated), 'problem')} more than once, {some_of(findings.repeated)}"
        )
    if own_set and (line := other_forms(problems, options)):
        typer.echo(f"  remark: {line}")
    return own_set and bool(guessed or findings.unread or findings.several)


@app.command()
def contamination(
    training: Annotated[str, typer.Argument(help="A training set, or a file NAME.jsonl.")] = "dapo_math",
    rows: Annotated[bool, typer.Option("--rows", help=_PAIRS)] = False,
) -> None:
    """Count benchmark problems that a training set holds.

    They are there almost verbatim (Jaccard index of 24-character shingles); counted by benchmark.

    \b
    tepo data contamination dapo_math --rows"""
    from tepo.problems.benchmarks import load_benchmark
    from tepo.problems.contamination import SAME, SIMILAR, overlaps
    from tepo.problems.training_sets import dataset_benchmarks, load_training_problems

    problems = load_training_problems(training)
    benchmarks = {name: load_benchmark(name).load_problems() for name in dataset_benchmarks()}
    similar = overlaps([problem for members in benchmarks.values() for problem in members], problems, SIMILAR)
    same = [overlap for overlap in similar if overlap.jaccard > SAME]
    typer.echo(f"{'benchmark':14} {'problems':>8} {f'above {SAME}':>10} {f'above {SIMILAR}':>10}")
    for name, members in benchmarks.items():
        ids = {problem.id for problem in members}
        counts = [len(ids & {overlap.problem for overlap in part}) for part in (same, similar)]
        typer.echo(f"{name:14} {len(members):8} {counts[0]:10} {counts[1]:10}")
    out = {overlap.training for overlap in same}
    typer.echo(f"{len(out)} of {len(problems)} problems of {training} are left out with data.exclude_contaminated=true")
    if rows:
        for overlap in same:
            typer.echo(f"{overlap.problem} {overlap.training} {overlap.jaccard:.3f}")


_CHUNK = 512
_GIVEN_UP = "; {} ran out of the grader's budget and count as wrong"
_NAMED = 20  # bad rows


@app.command()
def grade(
    file: Annotated[str, typer.Argument(help='JSON lines with "gold" and "prediction"; - reads standard input.')],
    output: Annotated[
        Path | None, typer.Option(help="Write here (appears when all is graded) instead of to standard output.")
    ] = None,
    boxed_only: Annotated[
        bool, typer.Option("--boxed-only", help="As in training: a prediction without a box is no answer.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="CPU seconds one answer may take.")] = 3.0,
) -> None:
    """Grade answers: rows of {"gold", "prediction"}.

    Each row is written back with verdict, reason, extracted and seconds.

    The answer of a prediction is its last box. Without any box it is what follows "answer is", or the last formula of a
    sentence, or all of the prediction if it is short.

    \b
    tepo data grade FILE.jsonl
    echo '{"gold": "1/2", "prediction": "0.5"}' | tepo data grade -"""
    from tepo.common.files import write_atomic
    from tepo.problems.grader import Grader, GraderOptions, given_up
    from tepo.problems.grader.options import FALLBACKS
    from tepo.problems.rows import pair_of

    options = GraderOptions(timeout=timeout, fallbacks=() if boxed_only else FALLBACKS)
    rows, lines, verdicts = _rows(file), list[str](), []
    with Grader(options) as grader:
        for start in range(0, len(rows), _CHUNK):
            chunk = rows[start : start + _CHUNK]
            graded = grader.grade(list(map(pair_of, chunk)))
            verdicts += graded
            for row, verdict in zip(chunk, graded, strict=True):
                seconds = round(verdict.seconds, 6)
                outcome = {
                    "verdict": verdict.correct,
                    "reason": verdict.reason,
                    "extracted": verdict.extracted,
                    "seconds": seconds,
                }
                lines.append(json.dumps({**row, **outcome}) + "\n")  # ASCII: an answer may hold lone surrogates
            if output is None:
                sys.stdout.write("".join(lines))
                sys.stdout.flush()
                lines.clear()
    if output is not None:
        write_atomic(output, "".join(lines), "--output FILE")
    lost, right = given_up(verdict.reason for verdict in verdicts), sum(verdict.correct for verdict in verdicts)
    summary = f"{right} of {len(rows)} right{_GIVEN_UP.format(lost) if lost else ''}"
    sys.stderr.write(f"{summary}; {grader.fingerprint}\n")


def _rows(file: str) -> list[dict[str, Any]]:
    """The rows of a file or of standard input. Raises UserError naming every line that cannot be graded (the first
    _NAMED of them)."""
    if file != "-" and (Path(file).is_dir() or not Path(file).exists()):  # a pipe is no regular file
        fix = 'a file of JSON lines {"gold": …, "prediction": …}, or - for standard input'
        raise UserError("a folder, not a file" if Path(file).is_dir() else "no such file", where=file, fix=fix)
    data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    rows, wrong = [], {}
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            try:
                rows.append(_row(line))
            except UserError as error:
                wrong[number] = error
    where = "standard input" if file == "-" else file
    if not rows and not wrong:
        raise UserError("no rows", where=where, fix='{"gold": …, "prediction": …} on each line')
    if wrong:
        what = [f"{len(wrong)} of {len(rows) + len(wrong)} rows cannot be graded:"]
        what += [f"  line {number}: {error.what}" for number, error in wrong.items()][:_NAMED]
        what += [f"  and {len(wrong) - _NAMED} more"] if len(wrong) > _NAMED else []
        raise UserError("\n".join(what), where=where, fix=next(iter(wrong.values())).fix)
    return rows


def _row(line: bytes) -> dict[str, Any]:
    """One row with gold and prediction. Raises UserError."""
    from tepo.problems.rows import AS_WRITTEN, KeyTwice, pair_of

    try:
        row = json.loads(line.decode("utf-8-sig", "surrogatepass"), **AS_WRITTEN)
    except UnicodeDecodeError:
        raise UserError("not UTF-8 text", fix="save the file as UTF-8 (iconv -f latin1 -t utf-8 …)") from None
    except KeyTwice as error:
        raise UserError(str(error), fix="leave one out") from None
    except (ValueError, RecursionError):
        raise UserError("not JSON", fix='one object a line: {"gold": "…", "prediction": "…"}') from None
    pair_of(row)
    return dict(row)


@app.command()
def regrade(
    run: Annotated[str, typer.Argument(help="A run (folder or id), the folder of one evaluation, or a store.")],
    store: Store = Path("runs"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the flipped verdicts; change nothing.")] = False,
) -> None:
    """Grade stored responses with the grader of today.

    Shows every flipped verdict, and stores verdicts and scores.

    \b
    tepo data regrade runs"""
    from tepo.evaluation.regrade import evaluations
    from tepo.evaluation.regrade import regrade as regrade_one
    from tepo.problems.benchmarks import load_benchmark
    from tepo.problems.grader import Grader
    from tepo.store.evaluation_result import load_result
    from tepo.store.run_folder import RunFolder

    for folder in evaluations(Path(run) if Path(run).is_dir() else store / run):
        with nullcontext() if dry_run else RunFolder.of_evaluation(folder).lock("measure"):
            result = load_result(folder)
            assert result  # `evaluations` lists finished ones
            with Grader(load_benchmark(result.benchmark).grader) as grader:
                change = regrade_one(folder, grader, write=not dry_run)
        for flip in change.flips:
            now, was = ("right", "wrong") if flip.correct else ("wrong", "right")
            verdicts = f"{was} ({flip.reason_before}) -> {now} ({flip.reason})"
            answers = f"gold {flip.gold!r}, answer {flip.extracted!r}"
            print(f"  {flip.problem} sample {flip.sample}: {verdicts}; {answers}")
        before, after = f"{100 * change.before:.2f}", f"{100 * change.after:.2f}"
        accuracy = f"{before} -> {after}" if change.flips else f"{after}, as before"
        rest = _GIVEN_UP.format(change.timeouts) if change.timeouts else ""
        rest += " (nothing written)" if dry_run else ""
        print(f"{folder}: {len(change.flips)} of {change.samples} verdicts flipped; accuracy {accuracy}{rest}")
