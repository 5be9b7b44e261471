"""`python -m tests.reference runs [--record]` trains ten small runs and compares the hashes of their metrics and
weights with those of this kind of CPU; exit code 1 where a run ends with other bits. `… texts FOLDER` writes every
recorded table and claim as text, so that two commits are compared by `diff -r`."""

import argparse
import sys
import tempfile
from pathlib import Path

from tepo.studies.study import load_study, study_names
from tests.reference.runs import kind, record, recorded_hashes, reference_runs, trained_hashes
from tests.support.commands import tepo

SCALES = ("laptop", "small_lm", "smollm2")  # those with records


def write_texts(folder: Path) -> int:
    """Write `NAME-SCALE.md` for each table that records may fill, of the claims one a scale. Returns how many."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = [(name, scale) for name in study_names() for scale in SCALES if scale in load_study(name).scales]
    tables += [("claims", scale) for scale in SCALES]
    for name, scale in tables:
        words = ("--scale", scale, "--records", "--format", "markdown", "--store", str(folder / "none"))
        (folder / f"{name}-{scale}.md").write_text(tepo("table", name, *words).stdout)
    return len(tables)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.reference", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("runs", help="train the ten runs and compare their hashes")
    runs.add_argument("--record", action="store_true", help="keep them as those of this kind of CPU")
    commands.add_parser("texts", help="write every recorded table").add_argument("folder", type=Path)
    given = parser.parse_args()
    if given.command == "texts":
        sys.stdout.write(f"{write_texts(given.folder)} tables in {given.folder}\n")
        return
    known, hashes = recorded_hashes(), {}
    sys.stdout.write(f"{kind()}{'' if known else ': no hashes on record, compare them with those of another commit'}\n")
    for name in reference_runs():
        with tempfile.TemporaryDirectory() as store:
            hashes[name] = trained_hashes(name, Path(store))
        said = {None: "", True: "  as recorded", False: "  OTHER BITS"}[known[name] == hashes[name] if known else None]
        sys.stdout.write(f"{name}: metrics and weights {hashes[name]}{said}\n")
        sys.stdout.flush()
    if given.record:
        record(hashes)
    sys.exit(not given.record and bool(known) and known != hashes)


if __name__ == "__main__":
    main()
