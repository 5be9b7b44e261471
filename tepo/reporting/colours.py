"""One look per method, the same in every figure and on the page, tellable apart without colour vision.

Colours are Okabe and Ito's eight and Tol's muted set; where a colour returns, the dash pattern differs, so that every
pair of methods differs in colour or in dash.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

_OKABE_ITO = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "purple": "#CC79A7",
}
_TOL = {
    "indigo": "#332288",
    "teal": "#44AA99",
    "olive": "#999933",
    "wine": "#882255",
    "sand": "#DDCC77",
    "grey": "#767676",
}
PALETTE = {**_OKABE_ITO, **_TOL}

DASHES = {"solid": (), "dash": (5, 2), "dot": (1.2, 1.8), "dashdot": (6, 2, 1.2, 2), "longdash": (10, 3)}
# two methods that are compared everywhere; too pale on white
_FREE = [name for name in PALETTE if name not in ("black", "vermillion", "yellow")]


UNTRAINED = "base"  # the method of the untrained policy


@dataclass(frozen=True)
class Look:
    colour: str  # "#rrggbb"
    dash: tuple[float, ...]  # on/off lengths in line widths, empty for a solid line


METHODS = {
    UNTRAINED: ("grey", "dot"),
    "grpo": ("black", "dash"),
    "grpo_dapo": ("black", "solid"),
    "dr_grpo": ("grey", "dash"),
    "rloo": ("grey", "solid"),
    "reinforce": ("black", "dot"),
    "reinforce_pp": ("black", "dashdot"),
    "gspo": ("blue", "solid"),
    "gspo_token": ("blue", "dash"),
    "luspo": ("blue", "dot"),
    "gmpo": ("blue", "dashdot"),
    "seq_mean_token_mean": ("green", "dot"),
    "seq_mean_token_sum": ("green", "dash"),
    "gpg": ("green", "solid"),
    "cispo": ("sky", "solid"),
    "prefix_is": ("sky", "dash"),
    "sapo": ("sky", "dot"),
    "clip_cov": ("orange", "solid"),
    "kl_cov": ("orange", "dash"),
    "entropy_advantage": ("purple", "solid"),
    "tepo_max_entropy": ("purple", "dash"),
    "tepo_min_entropy": ("purple", "dot"),
    "steer": ("teal", "solid"),
    "steel": ("teal", "solid"),
    "tepo": ("vermillion", "solid"),
    "tepo_no_kl": ("vermillion", "dash"),
    "tepo_kl_negative": ("wine", "solid"),
    "tepo_kl_both": ("wine", "dash"),
    "tepo_kl_all": ("indigo", "solid"),
    "gtpo": ("olive", "solid"),
    "gtpo_v2": ("olive", "dash"),
    "gtpo_clipped": ("olive", "dot"),
    "grpo_s": ("sand", "solid"),
    "grpo_s_v2": ("sand", "dash"),
}
"""Colour and dash of the methods of the papers. "steel" is what the TEPO paper calls STEER. Others follow from the
name."""


def look(method: str) -> Look:
    """The look of a method; one without a fixed look gets one that no fixed look has from its name, always the same."""
    colour, dash = METHODS.get(method) or _from_name(method)
    return Look(PALETTE[colour], DASHES[dash])


def looks(methods: Mapping[str, str]) -> dict[str, Look]:
    """Label -> look for all rows of a study, no two alike while there are looks, so that a row keeps its own in every
    table and figure of the study.

    The first row of a method has the method's look. Further ones (other settings) take the other dashes of its colour,
    and when these are used up those of the colours that are free.
    """
    labels = list(methods)
    first = {methods[label]: label for label in reversed(labels)}
    result: dict[str, Look] = {}
    for label in sorted(labels, key=lambda label: first[methods[label]] != label):
        method_look, colours = look(methods[label]), {style.colour for style in result.values()}
        others = sorted((PALETTE[name] for name in _FREE), key=lambda colour: colour in colours)
        styles = [method_look, *_styles(method_look.colour), *(style for colour in others for style in _styles(colour))]
        result[label] = next((style for style in styles if style not in result.values()), method_look)
    return {label: result[label] for label in labels}


def _styles(colour: str) -> list[Look]:
    return [Look(colour, dash) for dash in DASHES.values()]


def _from_name(method: str) -> tuple[str, str]:
    number = int.from_bytes(hashlib.blake2b(method.encode(), digest_size=4).digest())
    free = [(colour, dash) for dash in DASHES for colour in _FREE if (colour, dash) not in METHODS.values()]
    return free[number % len(free)]
