"""Attacks of bad devices on a mean, of NumPy or of JAX arrays.

An attack returns the updates that bad devices send. It knows the honest devices'
updates and what the bad devices would send if they were honest (`own`).
"""

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.floating]


def sign_flip(honest: Rows, own: Rows, strength: float = 1.0) -> Rows:
    # Li, Xu, Chen, Giannakis and Ling, "RSA: Byzantine-robust stochastic aggregation
    # methods", AAAI 2019.
    return -strength * own


def scaled(honest: Rows, own: Rows, strength: float = 1e3) -> Rows:
    # Bagdasaryan, Veit, Hua, Estrin and Shmatikov, "How to backdoor federated
    # learning", AISTATS 2020, "model replacement".
    return strength * own


def inner_product_manipulation(honest: Rows, own: Rows, strength: float = 1.0) -> Rows:
    # Xie, Koyejo and Gupta, "Fall of empires: breaking Byzantine-tolerant SGD by inner
    # product manipulation", UAI 2019: −ε times the mean of the honest devices.
    return _repeated(-strength * honest.mean(axis=0), len(own))


def a_little_is_enough(
    honest: Rows, own: Rows, deviations: float | None = None
) -> Rows:
    # Baruch, Baruch and Goldberg, "A little is enough: circumventing defenses for
    # distributed learning", NeurIPS 2019: mean + z · standard deviation.
    z = largest_deviations(len(honest), len(own)) if deviations is None else deviations
    attack = honest.mean(axis=0) + z * honest.std(axis=0, ddof=1)
    return _repeated(attack, len(own))


def _repeated(row: Rows, count: int) -> Rows:
    rows: Rows = row[None].repeat(count, axis=0)
    return rows


def largest_deviations(honest: int, bad: int) -> float:
    # With `needed` honest devices beyond the attack, these and the bad ones are a
    # majority (s and z_max of the reference).
    needed = (honest + bad) // 2 + 1 - bad
    return NormalDist().inv_cdf((honest - needed) / honest)
