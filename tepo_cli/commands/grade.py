"""`tepo grade`: grade answers from a file or standard input."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

_CHUNK = 512
_NAMED = 20  # bad rows


def grade(
    file: Annotated[str, typer.Argument(help='JSON lines with "gold" and "prediction"; - reads standard input.')],
    output: Annotated[
        Path | None, typer.Option(help="Write here (appears when all is graded) instead of to standard output.")
    ] = None,
    boxed_only: Annotated[
        bool, typer.Option("--boxed-only", help="As in training: a prediction without a box is no answer.")
    ] = False,
    relative_tolerance: Annotated[float, typer.Option(help="Relative slack on numbers (Minerva: 0.01).")] = 0.0,
    absolute_tolerance: Annotated[float, typer.Option(help="Absolute slack on numbers (OlympiadBench: 1e-8).")] = 0.0,
    timeout: Annotated[float, typer.Option(help="CPU seconds one answer may take.")] = 3.0,
    workers: Annotated[int, typer.Option(help="Worker processes; 0 is one per core.")] = 0,
) -> None:
    """Grade rows of {"gold", "prediction"} and write each back with verdict, reason, extracted and seconds.

    The answer of a prediction is its last box. Without any box it is what follows "answer is", or the last formula of a
    sentence, or all of the prediction if it is short.
    """
    from tepo.common.files import write_atomic
    from tepo.problems.graded_rows import pair_of
    from tepo.problems.grader import Grader, GraderOptions, given_up
    from tepo.problems.grader.options import FALLBACKS

    options = GraderOptions(
        timeout=timeout,
        workers=workers,
        fallbacks=() if boxed_only else FALLBACKS,
        relative_tolerance=relative_tolerance,
        absolute_tolerance=absolute_tolerance,
    )
    rows = _rows(file)
    lines: list[str] = []
    right = timeouts = 0
    with Grader(options) as grader:
        for start in range(0, len(rows), _CHUNK):
            chunk = rows[start : start + _CHUNK]
            verdicts = grader.grade(list(map(pair_of, chunk)))
            right += sum(verdict.correct for verdict in verdicts)
            timeouts += given_up(verdict.reason for verdict in verdicts)
            for row, verdict in zip(chunk, verdicts, strict=True):
                graded = {
                    "verdict": verdict.correct,
                    "reason": verdict.reason,
                    "extracted": verdict.extracted,
                    "seconds": round(verdict.seconds, 6),
                }
                lines.append(json.dumps({**row, **graded}))  # ASCII: an answer may hold lone surrogates
            if output is None:
                sys.stdout.write("".join(line + "\n" for line in lines))
                sys.stdout.flush()
                lines.clear()
        if output is not None:
            write_atomic(output, "".join(line + "\n" for line in lines), "--output FILE")
        spent = f"; {timeouts} ran out of the grader's budget and count as wrong" if timeouts else ""
        sys.stderr.write(f"{right} of {len(rows)} right{spent}; {grader.fingerprint}\n")


def _rows(file: str) -> list[dict[str, Any]]:
    """The rows of a file or of standard input.

    Raises UserError naming every line that cannot be graded (the first _NAMED of them).
    """
    from tepo.common.errors import UserError

    if file != "-" and not Path(file).is_file():
        raise UserError(
            "no such file", where=file, fix='a file of JSON lines {"gold": …, "prediction": …}, or - for standard input'
        )
    data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    rows, wrong = [], {}
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            try:
                rows.append(_row(line))
            except UserError as error:
                wrong[number] = error
    name, first = "standard input" if file == "-" else file, next(iter(wrong.values()), None)
    if len(wrong) == 1 and first:
        raise UserError(first.what, where=f"{name}, line {next(iter(wrong))}", fix=first.fix)
    if first:
        lines = [f"  line {number}: {error.what}" for number, error in wrong.items()]
        more = [f"  and {len(lines) - _NAMED} more"] if len(lines) > _NAMED else []
        raise UserError(
            "\n".join([f"{len(wrong)} of {len(rows) + len(wrong)} rows cannot be graded:", *lines[:_NAMED], *more]),
            where=name,
            fix=first.fix,
        )
    return rows


def _row(line: bytes) -> dict[str, Any]:
    """One row with gold and prediction. Raises UserError."""
    from tepo.common.errors import UserError
    from tepo.problems.graded_rows import pair_of

    try:
        row = json.loads(line.decode("utf-8-sig", "surrogatepass"))
    except UnicodeDecodeError:
        raise UserError("not UTF-8 text", fix="save the file as UTF-8 (iconv -f latin1 -t utf-8 …)") from None
    except (ValueError, RecursionError):
        raise UserError("not JSON", fix='one object a line: {"gold": "…", "prediction": "…"}') from None
    pair_of(row)
    return dict(row)
