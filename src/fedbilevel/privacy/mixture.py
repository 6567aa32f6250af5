"""The privacy profile of a noised sum whose examples occur independently.

A batch has n examples, n from a Poisson distribution with mean B, each drawn uniformly
from N. So the numbers of occurrences of the N examples are independent, and each has a
Poisson distribution with mean B / N. Without replacing one example's terms by those of
others, as a fixed n does, there is no factor 2 of `profile`.

**Claim.** Let a device answer any number of adaptive queries. Query t uses the batch
b(t), and its answer is the sum of the batch's terms, each of norm at most C, with noise
of standard deviation mC. Let k_b be the number of queries of batch b. Then the device
with example e and the device where all terms of e are zero are dominated by the product
over b of the pairs

    P_b = Σ_j p_j N(j √k_b / m, 1)  and  Q_b = N(0, 1),

where p_j is the probability of j occurrences of e.

**Proof.** Fix the occurrences of all other examples: they are independent of those of
e, so divergences are at most the mean over them (joint convexity). Let z_t be the noise
of query t without e, and c_t the term of e, a function of earlier answers. The
likelihood ratio of all answers is Π_b Σ_j p_j exp(j S_b − j² V_b / 2), where
S_b = Σ_{b(t) = b} ⟨z_t, c_t⟩ / (mC)² and V_b = Σ_{b(t) = b} ‖c_t‖² / (mC)² ≤ k_b / m².
Append to each batch one more answer, a normal number with or without j times the shift
(k_b / m² − V_b)^{1/2}: a longer list of answers diverges at least as much, and now
V_b = k_b / m². Without e, each increment of an S_b is normal with a variance that
earlier answers determine, so E exp(i Σ u_b S_b + Σ u_b² k_b / 2m²) = 1, by taking
expectations from the last query to the first. So the S_b are independent normal numbers
with variance k_b / m², and the likelihood ratio has the distribution that it has for
the product of the pairs. The order of queries does not matter: two batches may
alternate. ∎

**Corollary.** The same holds if n has other probabilities q_n whose ratios to the
Poisson ones never increase with n. Given that the batch has o other examples, e occurs
j times with a probability in proportion to p_j q_{o+j} / Poisson(o + j), so its
occurrences are stochastically at most those of p. The number o does not depend on the
terms of e, so fix it as well. A smaller mixture Σ_j p'_j N(j √k_b / m, 1) is dominated
by P_b: likelihood ratios increase in the outcome, so the best sets of both directions
are half-lines, x > t for P' against Q and x < t for Q against P', and P' has at most
the probability of P_b in the former and at least that in the latter. So a batch may be
limited: a number above a capacity becomes 0, whose ratio is the largest. ∎

The pair is the mixture of Gaussians of Choquette-Choo, Ganesh, Steinke and Thakurta,
"Privacy amplification for matrix mechanisms" (2023). dp-accounting's distribution of it
inverts the loss point by point, which takes minutes on fine grids.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from fedbilevel.privacy.profile import Curve, Profile

MOST_STEPS = 200
"""Limit of Newton's steps; about ten suffice."""


def mixture_profile(
    epsilon: Curve, noise_multiplier: float, occurrences: Mapping[int, float]
) -> Profile:
    """Return δ at several ε ≥ 0.

    Args:
        epsilon: values of ε, at least 0.
        noise_multiplier: standard deviation of the noise divided by the clip.
        occurrences: probabilities of the numbers of terms of the example, without 0.

    Example:
        >>> import numpy as np
        >>> everyone = mixture_profile(np.ones(1), 1.0, {1: 1.0})
        >>> everyone.with_device.round(4)  # Gaussian mechanism
        array([0.1269])
    """
    # SciPy is imported when noise is accounted for: every run imports this module.
    from scipy.special import log_ndtr, ndtr

    shifts = np.array([0, *occurrences]) / noise_multiplier
    absent = max(0.0, 1.0 - sum(occurrences.values()))
    shares = np.array([absent, *occurrences.values()])
    shifts, shares = shifts[shares > 0], shares[shares > 0]
    above = _points(epsilon, shifts, shares)
    with_device = ndtr(np.subtract.outer(shifts, above)).T @ shares
    with_device -= np.exp(epsilon + log_ndtr(-above))
    without_device = np.zeros_like(epsilon)
    # The loss of an absent example is at most −log(absent).
    reached = epsilon < (-np.log(absent) if absent else np.inf)
    below = _points(-epsilon[reached], shifts, shares)
    logs = log_ndtr(-np.subtract.outer(shifts, below)).T + epsilon[reached, None]
    without_device[reached] = ndtr(below) - np.exp(logs) @ shares
    return Profile(np.maximum(with_device, 0.0), np.maximum(without_device, 0.0))


def _points(
    losses: Curve,
    shifts: Float[np.ndarray, "shifts"],
    shares: Float[np.ndarray, "shifts"],
) -> Curve:
    """Return the points x with log Σ_j p_j exp(a_j x − a_j²/2) equal to the losses.

    The function is convex and increases, so Newton's steps from the right never pass
    the solution.
    """
    logs = np.log(shares)
    positive = shifts > 0
    # One term alone reaches the loss at these points, to the right of the solution.
    starts = np.subtract.outer(losses, logs[positive]) / shifts[positive]
    x: Curve = (starts + shifts[positive] / 2).min(axis=1)
    for _ in range(MOST_STEPS):
        exponents = np.multiply.outer(x, shifts) + logs - shifts**2 / 2
        largest = exponents.max(axis=1)
        terms: Float[np.ndarray, "points shifts"] = np.exp(exponents - largest[:, None])
        total = terms.sum(axis=1)
        excess = largest + np.log(total) - losses
        step = excess * total / np.maximum(terms @ shifts, 1e-300)
        x = x - np.maximum(step, 0.0)
        if np.all(excess <= 1e-13 * (1 + np.abs(losses))):
            break
    return x
