"""The privacy profile of a subsampled noised sum: δ as a function of ε.

Balle, Barthe and Gaboardi, "Privacy amplification by subsampling: tight analyses via
couplings and divergences" (2018), Theorem 2 (advanced joint convexity), with the
couplings of their Section 4 for a device whose terms are replaced by zero.

Let D contain the device and D' not. With probability η the device has k ≥ 1 terms in
the sum; μ₁ and μ₁' are the results then, μ₀ the result otherwise, the same for both:
D = (1 − η) μ₀ + η μ₁ and D' = (1 − η) μ₀ + η μ₁'. For α' = e^ε ≥ 1,
α = 1 + (α' − 1) / η and β = α' / α,

    H_α'(D ‖ D') = η H_α(μ₁ ‖ (1 − β) μ₀ + β μ₁')
                 ≤ η ((1 − β) H_α(μ₁ ‖ μ₀) + β H_α(μ₁ ‖ μ₁')).

Given the places of the device's k terms, the other terms of μ₁ and μ₁' are equal, and
in μ₀ other devices are in those k places. So the centres of μ₁ and μ₁' differ by at
most k clips, those of μ₁ and μ₀ by at most 2k clips, those of μ₁' and μ₀ by at most k.
The factor 2 is the reason that sampling a fixed number is not Poisson sampling.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Curve = Float[np.ndarray, "points"]


class Profile(NamedTuple):
    """Upper bounds of δ at several ε ≥ 0, in both directions.

    Attributes:
        with_device: bound of H(D ‖ D').
        without_device: bound of H(D' ‖ D).
    """

    with_device: Curve
    without_device: Curve


def gaussian_divergence(log_alpha: Curve, distance: float) -> Curve:
    """Return H_α of two unit Gaussians, for α ≥ 1.

    Balle and Wang, "Improving the Gaussian mechanism" (2018), equation 6:
    H_α = Φ(d/2 − log(α)/d) − α Φ(−d/2 − log(α)/d).

    Args:
        log_alpha: log α, at least 0.
        distance: distance d of the centres, above 0.

    Example:
        >>> import numpy as np
        >>> gaussian_divergence(np.zeros(1), distance=1.0).round(4)
        array([0.3829])
    """
    # SciPy is imported when noise is accounted for: every run imports this module.
    from scipy.special import log_ndtr

    first = log_ndtr(distance / 2 - log_alpha / distance)
    second = log_alpha + log_ndtr(-distance / 2 - log_alpha / distance)
    result: Curve = np.exp(first) * -np.expm1(np.minimum(second - first, 0.0))
    return result


def profile(
    epsilon: Curve, noise_multiplier: float, occurrences: Mapping[int, float]
) -> Profile:
    """Return upper bounds of δ at several ε ≥ 0.

    Args:
        epsilon: values of ε, at least 0.
        noise_multiplier: standard deviation of the noise divided by the clip.
        occurrences: probabilities of the numbers of terms of the device, without 0.

    Example:
        >>> import numpy as np
        >>> everyone = profile(np.ones(1), 1.0, {1: 1.0})
        >>> sample = profile(np.ones(1), 1.0, {1: 0.1})
        >>> bool(everyone.with_device > sample.with_device > 0.0)
        True
    """
    total = min(sum(occurrences.values()), 1.0)
    # log α, without overflow of e^ε and without cancellation.
    log_alpha = epsilon + np.log(np.exp(-epsilon) - np.expm1(-epsilon) / total)
    beta = np.minimum(np.exp(epsilon - log_alpha), 1.0)
    with_device, without_device = np.zeros_like(epsilon), np.zeros_like(epsilon)
    for number, share in occurrences.items():
        near = gaussian_divergence(log_alpha, number / noise_multiplier)
        far = gaussian_divergence(log_alpha, 2 * number / noise_multiplier)
        with_device += share * ((1 - beta) * far + beta * near)
        without_device += share * near
    # Joint convexity with the same sample on both sides.
    alone = sum(
        share * gaussian_divergence(epsilon, number / noise_multiplier)
        for number, share in occurrences.items()
    )
    return Profile(np.minimum(with_device, alone), without_device)


def lower_hull(x: Curve, y: Curve) -> Curve:
    """Return the largest convex function below some points, at these points.

    A divergence H_α is convex in α, so a bound of it at some α bounds it by the hull.

    Args:
        x: abscissae, strictly ascending.
        y: ordinates.

    Example:
        >>> import numpy as np
        >>> lower_hull(np.arange(4.0), np.array([3.0, 3.0, 1.0, 0.0])).tolist()
        [3.0, 2.0, 1.0, 0.0]
    """
    corners: list[tuple[float, float]] = []
    for x_next, y_next in zip(x.tolist(), y.tolist(), strict=True):
        while len(corners) > 1:
            (x_first, y_first), (x_last, y_last) = corners[-2:]
            rise = (y_last - y_first) * (x_next - x_first)
            if rise < (y_next - y_first) * (x_last - x_first):
                break
            corners.pop()
        corners.append((x_next, y_next))
    nodes = np.array(corners)
    result: Curve = np.interp(x, nodes[:, 0], nodes[:, 1])
    return result
