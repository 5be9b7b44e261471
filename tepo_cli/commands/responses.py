"""`tepo responses`: the stored responses of an evaluation, alone or beside another run's."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tepo_cli.options import Store

if TYPE_CHECKING:
    from tepo.store.stored_responses import Answer

_RUN = "A run: its folder, its id or the beginning of it (`tepo list`), or base-… for an untrained policy."
_SHOW = "Problems to show; right and wrong: where the run has such a response."


def responses(
    run: Annotated[str, typer.Argument(help=_RUN)],
    benchmark: Annotated[str, typer.Argument(help="The benchmark, as its folder in eval/ is called.")],
    vs: Annotated[str | None, typer.Option(help="Another run, shown below it.", show_default=False)] = None,
    show: Annotated[Literal["all", "right", "wrong", "disagree"], typer.Option(help=_SHOW)] = "all",
    problem: Annotated[str | None, typer.Option(help="This problem alone.", show_default=False)] = None,
    search: Annotated[
        str | None, typer.Option(help="Only problems with this text in the prompt or a response.", show_default=False)
    ] = None,
    store: Store = Path("runs"),
) -> None:
    """Print the stored responses to a benchmark's problems with their verdicts: all of what the page shows a part of.

    `--show disagree` with `--vs`: problems of which one run answers at least half right, and the other does not."""
    from tepo.common.errors import UserError
    from tepo.store.stored_responses import answered, disagree

    if show == "disagree" and vs is None:
        raise UserError("with what?", where="--show disagree", fix="--vs RUN")
    read = {name: answered(_evaluation(name, benchmark, store)) for name in filter(None, (run, vs))}
    first = read[run]
    if problem is not None and problem not in {one.id for one in first}:
        raise UserError(f"no problem {problem!r}", where=f"{run}, {benchmark}", fix=f"for example {first[0].id}")
    others = [{one.id: one for one in own} for own in read.values()]
    for one in first:
        sides = [own[one.id] for own in others if one.id in own]
        texts = [one.prompt, *(answer.text for side in sides for answer in side.answers)]
        if (
            (problem is None or one.id == problem)
            and (search is None or any(search.lower() in text.lower() for text in texts))
            and (show not in ("right", "wrong") or any(answer.right is (show == "right") for answer in one.answers))
            and (show != "disagree" or (len(sides) == 2 and disagree(*sides)))
        ):
            print(f"{one.id}  {one.prompt.strip()}  gold answer {one.gold}")
            for name, side in zip(read, sides, strict=False):
                print("\n".join([f"  {name}: {side.right} of {side.samples} right", *map(_line, side.different)]))


def _line(entry: "tuple[Answer, int]") -> str:
    answer, count = entry
    times = f" x {count}" if count > 1 else ""
    cut = "" if answer.finished else ", cut off at the length limit"
    verdict = "right" if answer.right else "wrong"
    text = answer.text.strip().replace("\n", "\n        ")
    return f"    {verdict}{times} ({answer.reason}, {answer.tokens} tokens{cut}):\n        {text}"


def _evaluation(name: str, benchmark: str, store: Path) -> Path:
    """The folder of a finished evaluation."""
    from tepo.common.errors import UserError, unknown_name
    from tepo.store.find_run import find_run, nearest_run
    from tepo.store.run_folder import RunFolder

    folder = store / name
    found = RunFolder(folder) if (folder / "eval").is_dir() else find_run(name, store)
    if found is None:
        nearest = nearest_run(name, store)
        fix = f"{nearest} is the nearest" if nearest else "`tepo list` shows the runs"
        raise UserError(f"no run {name!r}", where=f"--store {store}", fix=fix)
    if benchmark not in found.measured():
        raise unknown_name("evaluation", benchmark, found.measured(), where=str(found.path))
    return found.evaluation(benchmark)
