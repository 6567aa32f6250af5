"""The check that each example of a site is for one loss under `ExampleNoise`."""

from fedbilevel.data.devices import InMemoryDevices
from fedbilevel.federation.transport import RefusedError
from fedbilevel.transforms.example_noise import ExampleNoise
from fedbilevel.transforms.transformed import noise_of


def require_separate_losses(algorithm: object, held: InMemoryDevices) -> None:
    """Raise if both losses read the same examples, for which ε counts one of them.

    The server knows sizes only, so each site checks its own examples. Nobody can see
    examples that two sites hold.

    Args:
        algorithm: algorithm with its transforms.
        held: examples of the site, as those of one device.

    Raises:
        RefusedError: if the algorithm has `ExampleNoise` and both losses read the same
            examples.

    Example:
        >>> import numpy as np
        >>> from fedbilevel import ExampleNoise, FedBiO, LocalExamples, with_transforms
        >>> rows = np.arange(6.0)
        >>> algorithm = with_transforms(FedBiO(0.1), ExampleNoise(1.0, 1.0))
        >>> held = InMemoryDevices([LocalExamples(upper=rows[:2], lower=rows[2:])])
        >>> require_separate_losses(algorithm, held)
        >>> held = InMemoryDevices([LocalExamples(upper=rows[:2], lower=rows)])
        >>> require_separate_losses(algorithm, held)
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: the upper and the lower examples
        of the site are the same, but ε of ExampleNoise counts an example for one of the
        losses. Give each example either to the upper or to the lower loss
    """
    if isinstance(noise_of(algorithm), ExampleNoise) and held.find_copies():
        raise RefusedError(
            "the upper and the lower examples of the site are the same, but ε of "
            "ExampleNoise counts an example for one of the losses. Give each example "
            "either to the upper or to the lower loss"
        )
