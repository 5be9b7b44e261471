"""Figures are drawn as the package says, whatever lies in the current folder and whatever rows are called."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest

from tepo.reporting.figures.curves import STEP, TRAINING_PANELS, RunCurves, png, svg, training_figure

LABELS = ("$\\frac{$", "$x^2$", "a $ b", "\\$5 or $6", "$$", "\\begin{x} _^{}%&#", "\x07\x1b[2J<b>", "x" * 200)


def curves(label: str) -> RunCurves:
    return RunCurves(label, "tepo", 0, [{STEP: step, "critic/score/mean": step / 9} for step in range(1, 9)])


def test_a_label_is_text_and_no_formula() -> None:
    figure = training_figure(list(map(curves, LABELS)), TRAINING_PANELS)
    found = {
        "".join(one.itertext()) for one in ElementTree.fromstring(svg(figure)).iter("{http://www.w3.org/2000/svg}text")
    }
    assert found >= {label.replace("\x07\x1b", "\\x07\\x1b") for label in LABELS}
    assert png(figure, 20)


HOSTILE = "text.usetex: True\ntext.latex.preamble: \\input{stranger}\nsvg.hashsalt: x\nfont.size: 40\nbackend: module://evil\n"
DRAW = """
import hashlib, tepo.reporting.figures
from tests.unit.reporting.figures.test_style import curves, svg, training_figure, TRAINING_PANELS
print(hashlib.sha256(svg(training_figure([curves("a")], TRAINING_PANELS)).encode()).hexdigest())
"""


def drawn(folder: Path, before: str = "") -> str:
    words = [sys.executable, "-P", "-W", "error", "-c", before + DRAW]
    given = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}, "timeout": 120}
    done = subprocess.run(words, capture_output=True, text=True, check=False, **given)
    assert done.returncode == 0, done.stderr
    assert "matplotlibrc" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("before", ["", "import matplotlib\n"], ids=["a command", "a notebook that has imported it"])
def test_settings_of_the_current_folder_change_nothing(before: str, tmp_path: Path) -> None:
    """A notebook's matplotlib has read them; a command's does not even open them."""
    plain = drawn(tmp_path)
    (tmp_path / "matplotlibrc").write_text(HOSTILE)
    assert drawn(tmp_path, before) == plain
    if not before:
        (tmp_path / "matplotlibrc").unlink()
        os.mkfifo(tmp_path / "matplotlibrc")
        assert drawn(tmp_path) == plain


def test_the_callers_own_settings_are_his_afterwards() -> None:
    with matplotlib.rc_context({"font.size": 33}):
        svg(training_figure([curves("a")], TRAINING_PANELS))
        assert matplotlib.rcParams["font.size"] == 33


def test_every_figure_is_drawn_in_the_style() -> None:
    """No other settings are asked of matplotlib, and no text of a figure is a formula on purpose."""
    folder = Path(__file__).parents[4] / "tepo/reporting"
    files = [path for path in folder.rglob("*.py") if "matplotlib" in path.read_text()]
    used = {setting for path in files for setting in re.findall(r"rc_context\((.*)\)", path.read_text())}
    assert used == {"STYLE", '{**STYLE, "font.size": 8}'}
    assert not [path for path in files if re.search(r"pyplot|parse_math=True|usetex", path.read_text())]
