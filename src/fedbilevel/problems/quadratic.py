"""A quadratic bilevel problem whose solution is known in closed form.

f_k(x, y) = ½‖y − b_k‖² + c_kᵀx + ½ r‖x‖²  and  g_k(x, y) = ½ yᵀA_k y − yᵀ(C_k x + d_k).
A bar over a letter is the mean over devices, all with equal weight.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from fedbilevel.metrics.reference import Reference
from fedbilevel.problems.scatter import scatter, scatter_curvature

LARGEST_CURVATURE = 4.0
"""The mean of a random quadratic's A_k has eigenvalues from 1 to this."""


@dataclass(frozen=True, eq=False)
class Quadratic:
    """The quadratics of K devices, with closed forms of y*(x), Φ, ∇Φ and x*.

    Attributes:
        matrices: A_k, positive definite.
        couplings: C_k.
        offsets: d_k.
        targets: b_k.
        shifts: c_k.
        ridge: r, above zero.

    Example:
        >>> import numpy as np
        >>> from fedbilevel.problems import Quadratic
        >>> one = np.ones((1, 1))
        >>> quadratic = Quadratic(
        ...     matrices=2 * one[None],
        ...     couplings=one[None],
        ...     offsets=one,
        ...     targets=one,
        ...     shifts=0 * one,
        ...     ridge=1.0,
        ... )
        >>> quadratic.lower_solution(np.array([3.0]))  # (x + 1) / 2
        array([2.])
        >>> quadratic.solution()  # of Φ(x) = ½((x + 1) / 2 − 1)² + ½x²
        array([0.2])
    """

    matrices: Float[np.ndarray, "devices lower lower"]
    couplings: Float[np.ndarray, "devices lower upper"]
    offsets: Float[np.ndarray, "devices lower"]
    targets: Float[np.ndarray, "devices lower"]
    shifts: Float[np.ndarray, "devices upper"]
    ridge: float

    def __post_init__(self) -> None:
        if not self.ridge > 0:
            raise ValueError(
                f"ridge is {self.ridge}, expected a number above 0: otherwise Φ might "
                "have no minimum."
            )

    def lower_solution(
        self, x: Float[np.ndarray, "upper"]
    ) -> Float[np.ndarray, "lower"]:
        """Return y*(x) = Ā⁻¹(C̄x + d̄)."""
        right = self.couplings.mean(0) @ x + self.offsets.mean(0)
        return np.asarray(np.linalg.solve(self.matrices.mean(0), right))

    def objective(self, x: Float[np.ndarray, "upper"]) -> float:
        """Return Φ(x), the mean of f_k(x, y*(x))."""
        distances = self.lower_solution(x) - self.targets
        return float(
            0.5 * np.mean(np.sum(distances**2, axis=1))
            + self.shifts.mean(0) @ x
            + 0.5 * self.ridge * x @ x
        )

    def hypergradient(
        self, x: Float[np.ndarray, "upper"]
    ) -> Float[np.ndarray, "upper"]:
        """Return ∇Φ(x) = c̄ + rx + C̄ᵀĀ⁻¹(y*(x) − b̄)."""
        distance = self.lower_solution(x) - self.targets.mean(0)
        adjoint = np.linalg.solve(self.matrices.mean(0), distance)
        gradient = self.shifts.mean(0) + self.ridge * x
        return np.asarray(gradient + self.couplings.mean(0).T @ adjoint)

    def solution(self) -> Float[np.ndarray, "upper"]:
        """Return x*, where ∇Φ vanishes."""
        zero = np.zeros(self.shifts.shape[1])
        # y*(x) = Sx + y*(0), so ∇Φ(x) = ∇Φ(0) + (rI + SᵀS)x.
        slope = np.linalg.solve(self.matrices.mean(0), self.couplings.mean(0))
        hessian = self.ridge * np.eye(len(zero)) + slope.T @ slope
        return np.asarray(np.linalg.solve(hessian, -self.hypergradient(zero)))

    def mean_local_hypergradient(
        self, x: Float[np.ndarray, "upper"], y: Float[np.ndarray, "lower"]
    ) -> Float[np.ndarray, "upper"]:
        """Return the mean of local hypergradients, c̄ + rx + mean_k(C_kᵀA_k⁻¹(y − b_k)).

        Example:
            >>> from fedbilevel.problems import random_quadratic
            >>> apart = random_quadratic(devices=2, heterogeneity=0.5)
            >>> x, y = apart.biased_solution()
            >>> bool(np.allclose(apart.mean_local_hypergradient(x, y), 0.0))
            True
        """
        distances = (y - self.targets)[..., None]
        adjoints = np.linalg.solve(self.matrices, distances)
        mixed = np.mean(self.couplings.transpose(0, 2, 1) @ adjoints, axis=0)[:, 0]
        return np.asarray(self.shifts.mean(0) + self.ridge * x + mixed)

    def biased_solution(
        self,
    ) -> tuple[Float[np.ndarray, "upper"], Float[np.ndarray, "lower"]]:
        """Return the (x, y) at which the mean of local hypergradients vanishes.

        At this point y = y*(x), and mean_k(∇x f_k − ∇²xy g_k [∇²yy g_k]⁻¹ ∇y f_k) =
        c̄ + rx + mean_k(C_kᵀA_k⁻¹(y − b_k)) = 0. LocalBSGM and LocalBSGVRM converge to
        it with one local step per exchange and the exact inverse of each device's
        Hessian. For homogeneous devices it is (x*, y*(x*)).

        Example:
            >>> from fedbilevel.problems import random_quadratic
            >>> alike = random_quadratic(devices=2)
            >>> bool(np.allclose(alike.biased_solution()[0], alike.solution()))
            True
        """
        upper = self.shifts.shape[1]
        maps = np.linalg.solve(self.matrices, self.couplings).transpose(0, 2, 1)
        pulls = np.einsum("kij,kj->ki", maps, self.targets)
        left = np.block(
            [
                [self.ridge * np.eye(upper), maps.mean(0)],
                [-self.couplings.mean(0), self.matrices.mean(0)],
            ]
        )
        right = [pulls.mean(0) - self.shifts.mean(0), self.offsets.mean(0)]
        solution = np.linalg.solve(left, np.concatenate(right))
        return solution[:upper], solution[upper:]

    def reference(self) -> Reference:
        """Return y*(x) and ∇Φ(x) for `fedbilevel.metrics.stationarity`.

        Example:
            >>> from fedbilevel.metrics import stationarity
            >>> from fedbilevel.problems import random_quadratic
            >>> quadratic = random_quadratic(devices=2)
            >>> x = quadratic.solution()
            >>> y = quadratic.lower_solution(x)
            >>> stationarity(quadratic.reference(), x, y).total(1.0) < 1e-12
            True
        """
        return Reference(
            lambda x, near: self.lower_solution(np.asarray(x, float)),
            lambda x, near: self.hypergradient(np.asarray(x, float)),
        )


def random_quadratic(
    *,
    devices: int,
    upper_size: int = 3,
    lower_size: int = 4,
    heterogeneity: float = 0.0,
    ridge: float = 0.3,
    seed: int = 0,
) -> Quadratic:
    """Return devices scattered about a random quadratic, which is their exact mean.

    y*, ∇Φ and x* depend on that mean alone. They are the same for every number of
    devices and every heterogeneity, given the other arguments; only
    `Quadratic.biased_solution` changes.

    Args:
        devices: K, the number of devices.
        upper_size: size of x.
        lower_size: size of y.
        heterogeneity: 0 for homogeneous devices, as the paper assumes; 1 for devices
            that differ about as much as the mean is large.
        ridge: r, above zero.
        seed: seed of all numbers.

    Raises:
        ValueError: if heterogeneity is above 0 with a single device.

    Example:
        >>> from fedbilevel.problems import random_quadratic
        >>> alike = random_quadratic(devices=2)
        >>> different = random_quadratic(devices=50, heterogeneity=1.0)
        >>> bool(np.allclose(alike.solution(), different.solution()))
        True
    """
    generator = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(generator.normal(size=(lower_size, lower_size)))
    curvatures = np.linspace(1.0, LARGEST_CURVATURE, lower_size)
    coupling = generator.normal(size=(lower_size, upper_size))
    offset, target = generator.normal(size=(2, lower_size))
    shift = generator.normal(size=upper_size)
    return Quadratic(
        scatter_curvature(
            generator, (basis * curvatures) @ basis.T, devices, heterogeneity
        ),
        scatter(generator, coupling, devices, heterogeneity),
        scatter(generator, offset, devices, heterogeneity),
        scatter(generator, target, devices, heterogeneity),
        scatter(generator, shift, devices, heterogeneity),
        ridge,
    )
