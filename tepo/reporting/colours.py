"""One look per method, the same in every figure and on the page, tellable apart without colour vision.

Colours are Okabe and Ito's eight and Tol's muted set; where a colour returns, the dash pattern differs, so that every pair of
methods differs in colour or in dash.
"""

import hashlib
from dataclasses import dataclass

_OKABE_ITO = {"black": "#000000", "orange": "#E69F00", "sky": "#56B4E9", "green": "#009E73", "yellow": "#F0E442", "blue": "#0072B2", "vermillion": "#D55E00", "purple": "#CC79A7"}
_TOL = {"indigo": "#332288", "teal": "#44AA99", "olive": "#999933", "wine": "#882255", "sand": "#DDCC77", "grey": "#767676"}
PALETTE = {**_OKABE_ITO, **_TOL}

DASHES = {"solid": (), "dash": (5, 2), "dot": (1.2, 1.8), "dashdot": (6, 2, 1.2, 2)}


@dataclass(frozen=True)
class Look:
    """colour: "#rrggbb". dash: on/off lengths in line widths, empty for a solid line."""

    colour: str
    dash: tuple[float, ...]


METHODS = {
    "base": ("grey", "dot"),
    "grpo": ("black", "dash"),
    "grpo_dapo": ("black", "solid"),
    "dr_grpo": ("grey", "dash"),
    "gspo": ("blue", "solid"),
    "gspo_bounds_tepo": ("blue", "dash"),
    "gpg": ("green", "solid"),
    "cispo": ("sky", "solid"),
    "prefix_is": ("sky", "dash"),
    "prefix_is_full": ("sky", "dot"),
    "clip_cov": ("orange", "solid"),
    "kl_cov": ("orange", "dash"),
    "entropy_advantage": ("purple", "solid"),
    "steer": ("teal", "solid"),
    "steel": ("teal", "solid"),
    "tepo": ("vermillion", "solid"),
    "tepo_no_kl": ("vermillion", "dash"),
    "tepo_kl_negative": ("wine", "solid"),
    "tepo_kl_both": ("wine", "dash"),
    "tepo_kl_all": ("teal", "dash"),
    "tepo_kl_all_beta_1": ("indigo", "solid"),
    "tepo_kl_all_beta_0.1": ("indigo", "dash"),
    "tepo_kl_all_beta_0.01": ("indigo", "dot"),
    "tepo_kl_all_beta_0.001": ("indigo", "dashdot"),
    "tepo_kl_all_beta_0.0001": ("blue", "dot"),
    "tepo_max_entropy": ("purple", "dash"),
    "tepo_min_entropy": ("purple", "dot"),
    "seq_mean_token_sum": ("green", "dash"),
    "gtpo": ("olive", "solid"),
    "gtpo_v2": ("olive", "dash"),
    "grpo_s": ("sand", "solid"),
    "grpo_s_v2": ("sand", "dash"),
}


def look(method: str) -> Look:
    """The look of a method; one without a fixed look gets one from its name, always the same."""
    colour, dash = METHODS.get(method) or _from_name(method)
    return Look(PALETTE[colour], DASHES[dash])


def _from_name(method: str) -> tuple[str, str]:
    number = int.from_bytes(hashlib.blake2b(method.encode(), digest_size=4).digest())
    colours = [name for name in PALETTE if name not in ("black", "vermillion", "yellow")]  # the two methods compared everywhere; too pale on white
    return colours[number % len(colours)], list(DASHES)[number // len(colours) % len(DASHES)]
