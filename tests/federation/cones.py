"""A server that reads examples one by one through curvature, within a site's rules.

If examples share x, an upload of FedBiO contains z − H z for a z chosen by the server.
A y that predicts one class with certainty outside a cone of images, and three classes
with equal probability inside, makes H the curvature of the images in the cone, for any
labels. A cone that contains a single image reveals it. Three cones fit into one query.
Labels follow from sums of the images of a class.
"""

from typing import NamedTuple

import numpy as np

from tests.federation.reconstruction import (
    CLASSES,
    FAR,
    LEVELS,
    Claim,
    Victim,
    on_levels,
)

CONES = 3
STEEP = 1e5
"""Steepness of the predictions at the border of a cone."""
STRONG = 1e4
"""Scale of z, at which an image in a cone is far above rounding."""
LABELLING = 100
"""Number of queries for labels."""
MOST_QUERIES = 8
"""Maximum number of queries for one cone."""


class Cone(NamedTuple):
    """The images a with direction · a > border · sum of a.

    Attributes:
        direction: direction of the cone.
        border: threshold, moved in shrinking steps.
        step: next change of the threshold.
        queries: number of queries so far.
    """

    direction: np.ndarray
    border: float
    step: float
    queries: int = 0

    def moved(self, sign: int) -> "Cone":
        border = self.border + sign * self.step
        return self._replace(
            border=border, step=0.75 * self.step, queries=self.queries + 1
        )


def read_by_cones(victim: Victim, most: int) -> list[Claim]:
    """Read examples that share x and y, with one local step at rate 1.

    Args:
        victim: site, possibly with the default rules.
        most: maximum number of queries.
    """
    generator = np.random.default_rng(0)
    x = np.full_like(victim.problem.x, -FAR)
    spans = _spans(victim, x)
    claims: dict[bytes, Claim] = {}
    cones = [_new(generator, claims, x.size) for _ in range(CONES)]
    while victim.questions < most:
        y, z = np.zeros((2, CLASSES, x.size), np.float32)
        for place, cone in enumerate(cones):
            rows = slice(3 * place, 3 * place + 3)
            y[rows] = STEEP * (cone.direction - cone.border)
            z[3 * place] = STRONG * generator.uniform(0.5, 1, x.size)
            z[3 * place + 1] = -STRONG * generator.uniform(0, 0.4, x.size)
        upload = victim.ask(x=x, y=y, adjoint=z)
        if upload is None:
            break
        products = z.astype(float) - np.asarray(upload[2], float)
        for place, cone in enumerate(cones):
            rows = products[3 * place : 3 * place + 3]
            strength = np.linalg.svd(rows, compute_uv=False)
            image = _alone(rows, strength)
            if image is not None:
                label = _label(image, spans)
                claims.setdefault(image.tobytes(), Claim(image, label))
            if image is not None or cone.queries >= MOST_QUERIES:
                cones[place] = _new(generator, claims, x.size)
            else:
                cones[place] = cone.moved(-1 if strength[0] < 5 else 1)
    return list(claims.values())


def _new(generator: np.random.Generator, claims: dict[bytes, Claim], size: int) -> Cone:
    """Return a cone with a random direction, away from known images."""
    direction = generator.normal(size=size) / 8
    if claims:
        known = 8 * np.array(
            [claim.image / claim.image.sum() for claim in claims.values()]
        )
        for _ in range(3):
            inside = known @ direction
            near = known[inside > 0]
            if len(near):
                mixed = near @ near.T + 0.3 * np.eye(len(near))
                shift = np.linalg.solve(mixed, inside[inside > 0])
                direction = direction - near.T @ shift
    length = float(np.linalg.norm(direction))
    return Cone(direction, 0.13 * length, 0.06 * length)


def _alone(rows: np.ndarray, strength: np.ndarray) -> np.ndarray | None:
    """Return the image of a cone with a single image: its curvature has rank 1."""
    if strength[0] < 5 or strength[1] > 0.03 * strength[0]:
        return None
    image = LEVELS * on_levels(np.abs(rows[2]))
    whole: np.ndarray = np.round(image)
    return whole / LEVELS if np.abs(image - whole).max() < 0.2 else None


def _spans(victim: Victim, x: np.ndarray) -> dict[int, np.ndarray]:
    """Return the span of each class's images, from sums of them."""
    size = victim.algorithm.batch_size  # type: ignore[attr-defined]
    sums: dict[int, list[np.ndarray]] = {label: [] for label in range(CLASSES)}
    for question in range(LABELLING):
        sure = question % 2
        y = np.zeros_like(victim.problem.y)
        y[sure] = FAR
        upload = victim.ask(x=x, y=y)
        if upload is None:
            return {}
        rows = np.asarray(upload[1], float) * size
        for label in set(range(CLASSES)) - {sure}:
            sums[label].append(np.round(rows[label] * LEVELS))
    spans = {}
    for label, result in sums.items():
        _, strength, right = np.linalg.svd(np.array(result), full_matrices=False)
        spans[label] = right[strength > 1e-6 * strength[0]]
    return spans


def _label(image: np.ndarray, spans: dict[int, np.ndarray]) -> int:
    """Return the class whose span is closest to an image."""
    rest = {k: np.linalg.norm(image - image @ b.T @ b) for k, b in spans.items()}
    return min(rest, key=rest.__getitem__)
