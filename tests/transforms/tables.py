"""Tables of means under attack, for tests and for the documentation.

Print them with: python -m tests.transforms.tables
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedbilevel.transforms.clip import clip_to
from fedbilevel.transforms.protocol import RobustMean
from fedbilevel.transforms.robust_means import (
    CentredClipping,
    GeometricMedian,
    TrimmedMean,
)
from tests.transforms import attacks
from tests.transforms.attacks import Rows

DEVICES, COORDINATES = 20, 12
SHARES = 0.1, 0.2, 0.3, 0.4
ATTACKS: Mapping[str, Any] = {
    "sign flip": attacks.sign_flip,
    "ALIE": attacks.a_little_is_enough,
    "IPM": attacks.inner_product_manipulation,
    "scaled by 1,000": attacks.scaled,
}


class Case(NamedTuple):
    """Updates of honest and of bad devices, in this order."""

    honest: Rows
    bad: Rows

    @property
    def rows(self) -> Rows:
        return np.concatenate([self.honest, self.bad])

    @property
    def spread(self) -> float:
        """Largest distance of an honest device from the honest mean."""
        return float(norms(self.honest - self.honest.mean(axis=0)).max())

    @property
    def offset(self) -> float:
        """Distance of the honest mean from `idle`, which is 0."""
        return float(np.linalg.norm(self.honest.mean(axis=0)))


def norms(rows: Rows) -> Rows:
    return np.asarray(np.linalg.norm(rows, axis=1))


def attacked(attack: Any, share: float, seed: int = 0, **settings: float) -> Case:
    own = 1 + np.random.default_rng(seed).normal(size=(DEVICES, COORDINATES))
    bad = round(share * DEVICES)
    return Case(own[bad:], attack(own[bad:], own[:bad], **settings))


def tree(rows: Rows) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return a row, or stacked rows, as two variables."""
    first, rest = np.split(rows, [4], axis=-1)
    return jnp.asarray(first).reshape(*first.shape[:-1], 2, 2), {"w": jnp.asarray(rest)}


def flat(update: tuple[jax.Array, dict[str, jax.Array]]) -> Rows:
    first, rest = update
    return np.concatenate([np.ravel(first), np.ravel(rest["w"])])


@jax.jit
def apply(mean: RobustMean, updates: Any, weights: jax.Array, idle: Any) -> Any:
    # The numbers of a mean are arguments, so means of one structure share a program.
    return mean(updates, weights, idle)


def mean_of(mean: RobustMean | None, rows: Rows, weights: Rows | None = None) -> Rows:
    """Return a mean of rows; None is the plain mean."""
    weights = np.ones(len(rows)) if weights is None else weights
    if mean is None:
        return np.asarray(np.average(rows, axis=0, weights=weights))
    idle = tree(np.zeros(rows.shape[1], rows.dtype))
    return flat(apply(mean, tree(rows), jnp.asarray(weights), idle))


def clipped(rows: Rows, norm: float) -> Rows:
    return np.asarray(jax.vmap(lambda row: clip_to(row, jnp.asarray(norm)))(rows))


def attack_table() -> dict[tuple[str, float], dict[str, float]]:
    """Return distances from the honest mean, in units of the honest spread."""
    table = {}
    for name, attack in ATTACKS.items():
        for share in SHARES:
            case = attacked(attack, share)
            radius = float(np.median(norms(case.rows)))
            means: dict[str, RobustMean | None] = {
                "plain": None,
                "trimmed": TrimmedMean(0.4),
                "median": GeometricMedian(),
                "centred": CentredClipping(radius, steps=3),
            }
            table[name, share] = {
                label: float(
                    np.linalg.norm(mean_of(mean, case.rows) - case.honest.mean(axis=0))
                    / case.spread
                )
                for label, mean in means.items()
            }
    return table


def small_site_table() -> dict[str, float]:
    """Return how far a site with 0.6 % of the data moves means, by its update × 1,000.

    The unit is the length of the same mean when that site is honest.
    """
    random = np.random.default_rng(0)
    sizes = np.append(random.lognormal(sigma=0.5, size=DEVICES - 1), 0.0)
    sizes[-1] = 0.006 / 0.994 * sizes.sum()
    honest = 1 + random.normal(size=(DEVICES, COORDINATES))
    attack = honest.copy()
    attack[-1] *= 1000
    norm = float(np.median(norms(attack)))
    means: dict[str, Any] = {
        "plain": lambda rows: mean_of(None, rows, sizes),
        "clipped norms": lambda rows: mean_of(None, clipped(rows, norm), sizes),
        "trimmed": lambda rows: mean_of(TrimmedMean(0.1), rows, sizes),
        "median": lambda rows: mean_of(GeometricMedian(), rows, sizes),
        "centred": lambda rows: mean_of(CentredClipping(norm, steps=3), rows, sizes),
    }
    table = {}
    for name, mean in means.items():
        before, after = mean(honest), mean(attack)
        table[name] = float(np.linalg.norm(after - before) / np.linalg.norm(before))
    return table


def main() -> None:
    for (name, share), row in attack_table().items():
        cells = " | ".join(f"{value:.3g}" for value in row.values())
        print(f"| {name} | {share:.0%} | {cells} |")
    for name, value in small_site_table().items():
        print(f"| {name} | {value:.3g} |")


if __name__ == "__main__":
    with jax.enable_x64(True):
        main()
