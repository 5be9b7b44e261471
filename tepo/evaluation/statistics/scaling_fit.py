"""The saturating fit of scores over compute, and what it is worth. Formulas and their reasons: docs/evaluation.md.

    R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B)          Khatri et al. 2025 (arXiv 2510.13786)

R0 is the score of the untrained policy, or fitted too. A is the ceiling, C_mid the compute at half of the way to it, B
the steepness. The fit is by least squares, so its parameters are close to linear in the scores: a change of a score
moves them by the row of the pseudo-inverse of the Jacobian. That gives the share of each problem in them (`influence`),
and with it their interval over seeds and problems by the same code as for plain accuracies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from tepo.evaluation.statistics.intervals import LEVEL

Problems = Mapping[str, np.ndarray]
STEEPNESS = (0.25, 8.0)
EARLIEST = 0.01  # C_mid is at least this share of the first score's compute, and at most the compute of the last
FIRST_PART = 2 / 3  # of compute, from which the rest is predicted
FEWEST_SPARE, FEWEST_PREDICTED = 2, 2  # scores, beyond the number of parameters; and in the last third
_GRID = (60, 24)  # starts: C_mid, B
_AT_BOUND = 1e-3


@dataclass(frozen=True)
class Curve:
    """Scores of one run over compute: start: R0, None where it is fitted; compute [n], positive and rising; scores [n],
    shares."""

    start: float | None
    compute: np.ndarray
    scores: np.ndarray

    def until(self, compute: float) -> "Curve":
        kept = self.compute <= compute
        return Curve(self.start, self.compute[kept], self.scores[kept])


@dataclass(frozen=True)
class Fit:
    """values: A, log C_mid, log B, R0. bounds: [2, 4]. influence [4, n + 1]: how they move with the score of the
    untrained policy and each score; zero for one at its bound. residuals: [n], score minus fit. freedom: their degrees
    of freedom."""

    values: np.ndarray
    bounds: np.ndarray
    influence: np.ndarray
    residuals: np.ndarray
    freedom: int

    @property
    def ceiling(self) -> float:
        return float(self.values[0])

    @property
    def middle(self) -> float:
        return float(np.exp(self.values[1]))

    @property
    def steepness(self) -> float:
        return float(np.exp(self.values[2]))

    @property
    def start(self) -> float:
        return float(self.values[3])

    @property
    def no_ceiling(self) -> bool:
        """The scores show none: half of the way to it lies beyond the last of them, or A or B is at its bound."""
        low, high = _inside(self.values, self.bounds)
        return not bool(low[0] and high[0] and high[1] and low[2])

    @property
    def ceiling_at_bound(self) -> bool:
        """A is held by its bound, so its error is unknown."""
        return not bool(_inside(self.values, self.bounds)[:, 0].all())

    @property
    def compute_at_bound(self) -> bool:
        """C_mid is held by its bound: half of the way was done before the scores can show it, or lies beyond them."""
        return not bool(_inside(self.values, self.bounds)[:, 1].all())

    def at(self, compute: np.ndarray) -> np.ndarray:
        """Fitted scores."""
        return _law(self.values, np.asarray(compute, dtype=float))

    def log_compute(self, share: float) -> float:
        """Log compute at which this share of the way from R0 to A is reached; log C_mid for a half."""
        return float(self.values[1] + _odds(share) * np.exp(-self.values[2]))

    def ceiling_cells(self, problems: Problems) -> Problems:
        """Contribution of each problem to A, benchmark -> [P]; their mean is A itself. problems: benchmark -> [n + 1,
        P], the share of right responses to each problem, untrained and at each score."""
        return _contributions(self.ceiling, self.influence[0], problems)

    def speed_cells(self, share: float, problems: Problems) -> Problems:
        """The same for `log_compute`."""
        row = self.influence[1] - _odds(share) * np.exp(-self.values[2]) * self.influence[2]
        return _contributions(self.log_compute(share), row, problems)


@dataclass(frozen=True)
class Prediction:
    """The last third, predicted from the scores before it. miss: mean over seeds and scores of score minus prediction,
    in shares. noise: how large it is in 95% of cases by noise alone."""

    miss: float
    noise: float

    @property
    def good(self) -> bool:
        return abs(self.miss) <= self.noise


def fit(curve: Curve) -> Fit:
    """Least squares within bounds, from the best point of a grid: A in 0..1, B in STEEPNESS, C_mid from EARLIEST x the
    first score's compute to the last one's, R0 as given or in 0..1. Raises ValueError for fewer than FEWEST_SPARE
    scores more than parameters."""
    from scipy.optimize import least_squares  # here: a fifth of a second that tables without curves need not pay

    compute, scores = curve.compute, curve.scores
    fitted = [0, 1, 2] if curve.start is not None else [0, 1, 2, 3]
    if len(compute) < len(fitted) + FEWEST_SPARE:
        raise ValueError(f"a fit needs at least {len(fitted) + FEWEST_SPARE} scores, not {len(compute)}")
    steep = np.log(STEEPNESS)
    bounds = np.array([[0, np.log(EARLIEST * compute[0]), steep[0], 0], [1, np.log(compute[-1]), steep[1], 1]])
    best = _best_of_grid(curve, bounds)

    def full(values: np.ndarray) -> np.ndarray:
        return np.concatenate([values, best[len(values) :]])

    found = least_squares(
        lambda values: _law(full(values), compute) - scores,
        best[fitted],
        lambda values: _jacobian(full(values), compute)[:, fitted],
        bounds=bounds[:, fitted],
        x_scale=np.array([0.01, 0.1, 0.1, 0.01])[fitted],
        xtol=1e-12,
        ftol=1e-12,
    )
    values = full(found.x)
    slopes, inside = _jacobian(values, compute), _inside(values, bounds)
    free = [index for index in fitted if inside[:, index].all()]
    influence = np.zeros((4, len(compute) + 1))
    influence[free, 1:] = np.linalg.pinv(slopes[:, free])
    if curve.start is not None:
        influence[:, 0] = -influence[:, 1:] @ slopes[:, 3]
        influence[3, 0] = 1
    return Fit(values, bounds, influence, scores - _law(values, compute), len(compute) - len(fitted))


def predict_last_third(curves: Sequence[Curve]) -> Prediction:
    """Predict the last third of all seeds of a row from fits to the first FIRST_PART of their compute.

    The miss is linear in the scores, as the parameters are. Noise alone: the scores' own, with the variance and the
    correlation of neighbours (0 to 0.9) of the residuals of these fits, under Student's t with their degrees of
    freedom. Raises ValueError for too few scores."""
    parts = []
    for curve in curves:
        early = curve.until(FIRST_PART * curve.compute[-1])
        if len(curve.compute) - len(early.compute) < FEWEST_PREDICTED:
            raise ValueError(f"the last third holds fewer than {FEWEST_PREDICTED} scores")
        parts.append((curve, fit(early), len(early.compute)))
    freedom = sum(one.freedom for _, one, _ in parts)
    squares = sum(float((one.residuals**2).sum()) for _, one, _ in parts)
    products = sum(float((one.residuals[1:] * one.residuals[:-1]).sum()) for _, one, _ in parts)
    correlation = float(np.clip(products / squares, 0, 0.9)) if squares else 0.0
    misses, variances = [], []  # of score minus prediction, its variance being for scores of variance 1
    for curve, fitted, count in parts:
        late = curve.compute[count:]
        misses.append(float((curve.scores[count:] - fitted.at(late)).mean()))
        slopes = _jacobian(fitted.values, late).mean(axis=0)
        weights = np.concatenate([-slopes @ fitted.influence[:, 1:], np.full(len(late), 1 / len(late))])
        apart = np.abs(np.subtract.outer(np.arange(len(weights)), np.arange(len(weights))))
        variances.append(float(weights @ correlation**apart @ weights))
    deviation = np.sqrt(squares / freedom * sum(variances)) / len(parts)
    return Prediction(float(np.mean(misses)), float(stdtrit(freedom, (1 + LEVEL) / 2) * deviation))


def _contributions(value: float, row: np.ndarray, problems: Problems) -> Problems:
    return {name: value + row @ (x - x.mean(axis=1, keepdims=True)) for name, x in problems.items()}


def _odds(share: float) -> float:
    return float(np.log(share / (1 - share)))


def _share(values: np.ndarray, compute: np.ndarray) -> np.ndarray:
    """Share of the way to the ceiling, [n]."""
    return 1 / (1 + np.exp(np.exp(values[2]) * (values[1] - np.log(compute))))


def _law(values: np.ndarray, compute: np.ndarray) -> np.ndarray:
    return values[3] + (values[0] - values[3]) * _share(values, compute)


def _jacobian(values: np.ndarray, compute: np.ndarray) -> np.ndarray:
    """Derivatives of the fitted scores by the four parameters, [n, 4]."""
    share, steepness, way = _share(values, compute), np.exp(values[2]), values[1] - np.log(compute)
    slope = -(values[0] - values[3]) * share * (1 - share) * steepness
    return np.stack([share, slope, slope * way, 1 - share], axis=1)


def _best_of_grid(curve: Curve, bounds: np.ndarray) -> np.ndarray:
    """The point of a grid over C_mid and B with the smallest error, A and a fitted R0 being the best there."""
    middles, steepness = (np.linspace(bounds[0, i], bounds[1, i], size) for i, size in zip((1, 2), _GRID, strict=True))
    points = np.stack(np.meshgrid(middles, steepness, indexing="ij"), axis=-1).reshape(-1, 2)
    shares = 1 / (1 + np.exp(np.exp(points[:, 1:]) * (points[:, :1] - np.log(curve.compute))))
    if curve.start is not None:
        starts = np.full(len(points), curve.start)
        gained = shares @ (curve.scores - curve.start) / (shares**2).sum(axis=1)
    else:
        apart = shares - shares.mean(axis=1, keepdims=True)
        gained = apart @ curve.scores / np.maximum((apart**2).sum(axis=1), 1e-12)
        starts = np.clip(curve.scores.mean() - gained * shares.mean(axis=1), *bounds[:, 3])
    ceilings = np.clip(starts + gained, *bounds[:, 0])
    fitted = starts[:, None] + (ceilings - starts)[:, None] * shares
    best = ((fitted - curve.scores) ** 2).sum(axis=1).argmin()
    inner = np.clip([ceilings[best], *points[best], starts[best]], bounds[0] + 1e-9, bounds[1] - 1e-9)
    return inner if curve.start is None else np.array([*inner[:3], curve.start])


def _inside(values: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """[2, 4]: whether each parameter is away from its lower, and from its upper bound."""
    return np.greater(np.abs(bounds - values), _AT_BOUND)
