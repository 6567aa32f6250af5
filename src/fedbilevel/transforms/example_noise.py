"""Noise for differential privacy by example, added where gradients are computed."""

from dataclasses import dataclass

from fedbilevel.mathematics.settings import Scale, Switch, check_ranges, register
from fedbilevel.transforms.noise import Delta, Epsilon, check_source


@register
@dataclass(frozen=True)
class ExampleNoise:
    """Clipping and noise by example, on the device, in each of the five oracles.

    Every upload is (ε, δ)-differentially private by example, also for a server that
    sees it alone: nobody but the device itself is trusted. The oracle of a batch
    becomes

        (Σ_i clip(oracle of example i) + multiplier · clip · N(0, I)) / batch_size,

    where the results of `upper_gradients` are clipped jointly. The number of examples
    in the sum is Poisson distributed with mean `batch_size`. An example whose oracle is
    not finite counts as zero.

    A clipped Hessian product is biased: examples with large products have less weight.
    ε holds for an example that one device holds for one of the losses. Copies of whole
    arrays are refused; a person with several examples has several times this ε.

    Algorithms read examples by the oracles alone, so `AutoFedBiO`, which reads losses,
    is refused, and so is `ConjugateGradient`, whose number of products is unknown.

    Attributes:
        clip: largest norm of an example's oracle.
        multiplier: standard deviation of the noise on the sum over `clip`, for each
            call of an oracle. `fedbilevel noise` gives the multiplier for an ε.
        delta: δ; choose it below 1 / number of examples.
        epsilon: budget; a run stops before its ε exceeds it. None for no budget.
        from_seed: as for `GaussianNoise`.

    References:
        Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar and Zhang, Deep Learning with
        Differential Privacy, arXiv 1607.00133, Algorithm 1.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import BilevelProblem, FedBiO, InMemoryDevices
        >>> from fedbilevel import LocalExamples, run, with_transforms
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> rows = np.ones((4, 500), np.float32)
        >>> devices = InMemoryDevices(
        ...     [LocalExamples(rows[0], rows[1]), LocalExamples(rows[2], rows[3])]
        ... )
        >>> algorithm = with_transforms(
        ...     FedBiO(0.1, batch_size=8), ExampleNoise(clip=1.0, multiplier=2.0)
        ... )
        >>> problem = BilevelProblem(loss, loss)
        >>> *_, last = run(problem, algorithm, devices, 3.0, 0.0, rounds=5)
        >>> last.epsilon < 1
        True
    """

    clip: Scale
    multiplier: Scale
    delta: Delta = 1e-5
    epsilon: Epsilon | None = None
    from_seed: Switch = False

    def __post_init__(self) -> None:
        check_ranges(self)
        check_source(self)
