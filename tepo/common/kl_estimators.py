"""Names of the estimators of a token's KL, for the configuration, which must not import torch, and the objectives."""

from typing import Literal

KlEstimator = Literal["k1", "k2", "k3", "abs", "r_k3", "k2_response", "full"]
DEFAULT: KlEstimator = "k3"
