"""The number of a site and the factors of its losses, for the data of its work."""

from typing import Any

import jax
import numpy as np

from fedbilevel.data.weights import with_terms
from fedbilevel.federation.enrolment import Enrolment
from fedbilevel.federation.transport import RefusedError
from fedbilevel.mathematics.problem import Upper
from fedbilevel.mathematics.sites import parts_by_site
from fedbilevel.transforms.example_noise import ExampleNoise
from fedbilevel.transforms.transformed import noise_of

Factors = tuple[float, float]
"""Factors of a site's upper and lower loss."""
LEVELS = "upper", "lower"


class SiteTerms:
    """The term of a site in the mean of each loss: its number and its factors.

    Args:
        number: number of the site.
        enrolment: numbers of its examples.
        x: start of the upper variable.
        algorithm: algorithm with its transforms.

    Attributes:
        usual: factors without a task; None if the losses depend neither on the number
            of the site nor on factors.

    Raises:
        RefusedError: if x has no row for the site, or if it has no examples of one loss
            but noise by example.

    Example:
        >>> from fedbilevel import FedBiO
        >>> terms = SiteTerms(2, Enrolment({}, {"": ""}, 0, 8), 0.5, FedBiO(0.1))
        >>> terms.usual, terms.of_task((0.0, 1.5))
        ((0.0, 1.0), (0.0, 1.5))
        >>> terms.of_task((0.5, 1.5))
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: the task has the factor 0.5 for
        the upper loss, but the site has no upper examples. Give the site the examples
        with which it enrolled, or start another run
    """

    def __init__(
        self, number: int, enrolment: Enrolment, x: Upper, algorithm: object
    ) -> None:
        self._number, self._levels = number, enrolment.levels
        self._has_noise = isinstance(noise_of(algorithm), ExampleNoise)
        parts = parts_by_site(x)
        for path, part in parts:
            rows = min(len(np.atleast_1d(leaf)) for leaf in jax.tree.leaves(part))
            if number >= rows:
                raise RefusedError(
                    f"x{path} has {rows} rows, but the number of this site among all "
                    f"sites is {number + 1}. Give x one row for each site of the run"
                )
        lacking = [level for level in LEVELS if level not in self._levels]
        if lacking and self._has_noise:
            raise RefusedError(
                f"the site has no {lacking[0]} examples, but the algorithm has noise "
                "by example, which needs examples of both losses at every site. Add "
                "examples, or remove ExampleNoise (example_noise in [transforms])"
            )
        self.usual: Factors | None = None
        if parts or lacking:
            self.usual = float("upper" not in lacking), float("lower" not in lacking)

    def of_task(self, factors: Factors | None) -> Factors | None:
        """Return the factors of a task's work; None if it does not depend on them.

        Args:
            factors: factors in the task; None if all are 1.

        Raises:
            RefusedError: if the site has no examples of a loss with a factor, or the
                algorithm has noise by example.
        """
        if factors is not None and self._has_noise:
            raise RefusedError(
                "the task has factors of the losses, but the algorithm has noise by "
                "example, which limits derivatives without factors. Give every site "
                "examples of both losses, and the same weight in both"
            )
        for level, factor in zip(LEVELS, factors or (1.0, 1.0), strict=True):
            if factor > 0 and level not in self._levels:
                raise RefusedError(
                    f"the task has the factor {factor:g} for the {level} loss, but the "
                    f"site has no {level} examples. Give the site the examples with "
                    "which it enrolled, or start another run"
                )
        return self.usual if factors is None else factors

    def add(self, data: Any, factors: Factors | None) -> Any:
        """Return the data of the site with its number and these factors.

        Args:
            data: data of the site, of arrays or of tensors.
            factors: result of `of_task`, or `usual`.
        """
        if factors is None:
            return data
        upper, lower = (np.asarray(factor, np.float64) for factor in factors)
        return with_terms(data, np.array(self._number), (upper, lower))
