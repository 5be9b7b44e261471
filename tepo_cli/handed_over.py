"""`python -m tepo_cli.handed_over FILE WORDS…`: what `hand_over` begins.

FILE: the number of an open file with a pickled call. WORDS: of the command that goes on, for who lists processes."""

import pickle
import sys

from tepo_cli.main import main


def _call() -> None:
    with open(int(sys.argv[1]), "rb") as file:
        work, arguments = pickle.load(file)
    work(*arguments)


if __name__ == "__main__":
    main(_call)
