"""Figures by matplotlib, which is imported here first, and from here outside of this folder: of all files named
`matplotlibrc` it reads that of the current folder before any other, and figures are drawn by none of them
(`curves.STYLE`)."""

import os

_here = os.open(".", os.O_PATH)
try:
    os.chdir("/")
    import matplotlib as matplotlib
finally:
    os.fchdir(_here)
    os.close(_here)

from matplotlib.figure import Figure as Figure  # noqa: E402
from matplotlib.patches import Rectangle as Rectangle  # noqa: E402
