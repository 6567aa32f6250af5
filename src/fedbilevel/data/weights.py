"""Weights of devices, also by level: means over those that have examples of a level."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from fedbilevel.data.devices import Devices, SizedDevices
from fedbilevel.mathematics.batches import SiteTerm
from fedbilevel.mathematics.problem import Upper
from fedbilevel.mathematics.sites import parts_by_site
from fedbilevel.plurals import there_are

DeviceWeights: TypeAlias = ArrayLike | Mapping[str, float] | None
"""A weight for each device, by number or by name; None for equal weights."""


class Weights(NamedTuple):
    """Weights of the devices in the mean of each loss, in any unit.

    Attributes:
        upper: weights of the upper losses, f̄ = Σ_k v_k f_k / Σ_k v_k.
        lower: weights of the lower losses.
    """

    upper: DeviceWeights = None
    lower: DeviceWeights = None


Weighting: TypeAlias = DeviceWeights | Weights
"""Weights of the devices, for both losses or for each; None for equal weights."""
LARGEST_FACTOR = 10**6
"""The largest factor of a loss that a site accepts."""


class LevelWeights(NamedTuple):
    """Weights of the devices in the mean of each loss, both with sum 1.

    Attributes:
        upper: v, 0 for devices without upper examples.
        lower: w, 0 for devices without lower examples.

    Example:
        >>> levels = LevelWeights(np.array([0.0, 1.0]), np.array([0.5, 0.5]))
        >>> levels.devices
        array([0.25, 0.75])
    """

    upper: Float[np.ndarray, "devices"]
    lower: Float[np.ndarray, "devices"]

    @property
    def devices(self) -> Float[np.ndarray, "devices"]:
        """Weights of the devices in a run, m = (v + w) / 2, with sum 1.

        Both losses are means with these weights if device k has the losses
        v_k / m_k f_k and w_k / m_k g_k. Both factors are at most 2, so no loss has more
        than twice its curvature.
        """
        mean: Float[np.ndarray, "devices"] = (self.upper + self.lower) / 2
        return mean


def level_weights(devices: Devices, weights: Weighting) -> LevelWeights:
    """Return the weights of both losses, 0 for devices without examples.

    Raises:
        ValueError: if weights are invalid, or all devices with examples have weight 0.

    Example:
        >>> from fedbilevel import InMemoryDevices, LocalExamples
        >>> ones = np.ones(3)
        >>> devices = InMemoryDevices(
        ...     {"Oslo": LocalExamples(ones, ones), "Rome": LocalExamples(None, ones)}
        ... )
        >>> level_weights(devices, Weights(lower={"Rome": 3.0, "Oslo": 1.0}))
        LevelWeights(upper=array([1., 0.]), lower=array([0.25, 0.75]))
    """
    if not isinstance(weights, Weights):
        weights = Weights(weights, weights)
    upper, lower = (
        _of_level(devices, level, weighting)
        for level, weighting in zip(Weights._fields, weights, strict=True)
    )
    return LevelWeights(upper, lower)


def with_levels(
    devices: Devices,
    weights: Weighting,
    x: Upper = None,
    participants: int | None = None,
) -> tuple[Devices, Float[np.ndarray, "devices"]]:
    """Return devices that know their part of each mean, and their weights in a run.

    The devices are returned unchanged if both losses have the same weights, all devices
    have examples of both, and x has no part by site.

    Args:
        devices: data of all devices.
        weights: weights of the devices, one for both losses or `Weights`.
        x: upper variable.
        participants: usual number of participants of a round; default: all devices.

    Raises:
        ValueError: if weights are invalid, or all devices with examples have weight 0.

    Example:
        >>> from fedbilevel import InMemoryDevices, LocalExamples
        >>> full = LocalExamples(upper=np.ones(3), lower=np.ones(3))
        >>> devices = InMemoryDevices([full, full._replace(upper=None)])
        >>> balanced, shares = with_levels(devices, None)
        >>> shares, balanced.cohort(np.arange(2)).upper.term.factor
        (array([0.75, 0.25]), array([1.33333333, 0.        ]))
    """
    levels = level_weights(devices, weights)
    _check_rows(x, devices.device_count)
    is_one_mean = np.array_equal(levels.upper, levels.lower)
    if is_one_mean and not parts_by_site(x):
        return devices, levels.devices
    shares = levels.devices
    is_sampled = participants is not None and participants < devices.device_count
    if is_sampled and not is_one_mean:
        # Equal shares stay equal in a sample: both means over it are then unbiased.
        shares = np.where(shares > 0, 1 / np.count_nonzero(shares), 0)
    unit = np.where(shares > 0, shares, 1)
    factors = levels.upper / unit, levels.lower / unit
    return DevicesWithTerms(devices, *factors), shares


@dataclass(frozen=True, eq=False)
class DevicesWithTerms:
    """Devices whose batches name the device and have the factor of its loss.

    Attributes:
        devices: data of all devices.
        upper: factor of each device's upper loss.
        lower: factor of each device's lower loss.
    """

    devices: Devices
    upper: Float[np.ndarray, "devices"]
    lower: Float[np.ndarray, "devices"]

    @property
    def device_count(self) -> int:
        """The number of devices."""
        return self.devices.device_count

    @property
    def in_memory(self) -> bool:
        """True if a cohort needs no loading."""
        return self.devices.in_memory

    @property
    def names(self) -> Sequence[str] | None:
        """The names of the devices; None if they have none."""
        return getattr(self.devices, "names", None)

    def cohort(self, devices: Int[np.ndarray, "*cohort"]) -> Any:
        """Return the data of some devices with their terms."""
        factors = self.upper[devices], self.lower[devices]
        return with_terms(self.devices.cohort(devices), devices, factors)


def with_terms(
    data: Any,
    numbers: Int[np.ndarray, "*cohort"],
    factors: tuple[Float[np.ndarray, "*cohort"], Float[np.ndarray, "*cohort"]],
) -> Any:
    """Return the data of devices with their numbers, and the factors of their losses.

    Args:
        data: data of the devices, of arrays or of tensors.
        numbers: numbers of the devices.
        factors: factors of their upper and of their lower losses.

    Example:
        >>> from fedbilevel.data.examples import StoredData, StoredExamples
        >>> rows = StoredExamples(np.ones(3), np.array(0), np.array(3))
        >>> one = with_terms(StoredData(rows, rows), np.array(4), (np.ones(()),) * 2)
        >>> int(one.upper.term.number)
        4
    """
    numbers = np.asarray(numbers, np.int32)
    upper, lower = (
        level._replace(term=SiteTerm(numbers, of_level))
        for level, of_level in zip(data, factors, strict=True)
    )
    return data._replace(upper=upper, lower=lower)


def factors_of(devices: Devices) -> Float[np.ndarray, "devices levels"] | None:
    """Return both factors of each device; None if both losses have the same weights.

    Example:
        >>> from fedbilevel import InMemoryDevices, LocalExamples
        >>> full = LocalExamples(upper=np.ones(3), lower=np.ones(3))
        >>> devices = InMemoryDevices([full, full])
        >>> factors_of(with_levels(devices, Weights(upper=[3, 1]))[0])
        array([[1.2       , 0.8       ],
               [0.66666667, 1.33333333]])
        >>> factors_of(devices) is None
        True
    """
    if not isinstance(devices, DevicesWithTerms):
        return None
    if np.array_equal(devices.upper, devices.lower):
        return None
    return np.stack([devices.upper, devices.lower], axis=1)


def have_one_level(factors: Float[np.ndarray, "devices levels"] | None) -> bool:
    """Return whether a device contributes to one of the two losses only.

    Args:
        factors: result of `factors_of`.

    Example:
        >>> have_one_level(np.array([[2.0, 0.0], [0.5, 1.5]])), have_one_level(None)
        (True, False)
    """
    if factors is None:
        return False
    lacks = factors == 0
    return bool(np.any(lacks.any(axis=1) & ~lacks.all(axis=1)))


def held(devices: Devices) -> Bool[np.ndarray, "2 devices"]:
    """Return masks of the devices that have upper and lower examples.

    Example:
        >>> from fedbilevel import InMemoryDevices, LocalExamples
        >>> devices = InMemoryDevices([LocalExamples(np.ones(3), np.ones(3))])
        >>> held(devices).tolist()
        [[True], [True]]
    """
    if isinstance(devices, SizedDevices):
        return np.stack([devices.upper_sizes > 0, devices.lower_sizes > 0])
    return np.ones((2, devices.device_count), bool)


def names_of(devices: Devices) -> Sequence[str]:
    """Return the names of all devices; their numbers if they have none.

    Example:
        >>> from fedbilevel import InMemoryDevices, LocalExamples
        >>> full = LocalExamples(upper=np.ones(3), lower=np.ones(3))
        >>> names_of(InMemoryDevices([full, full]))
        ('0', '1')
    """
    names: Sequence[str] | None = getattr(devices, "names", None)
    return names or tuple(map(str, range(devices.device_count)))


def given_names(devices: Devices) -> Sequence[str] | None:
    """Return the names of all devices; None if their names are their numbers.

    Example:
        >>> from fedbilevel import InMemoryDevices, LocalExamples
        >>> full = LocalExamples(upper=np.ones(3), lower=np.ones(3))
        >>> given_names(InMemoryDevices([full, full])) is None
        True
        >>> given_names(InMemoryDevices({"Oslo": full}))
        ('Oslo',)
    """
    names = names_of(devices)
    return None if tuple(names) == tuple(map(str, range(len(names)))) else names


def check_weights(
    weights: DeviceWeights, devices: Devices, name: str = "weights"
) -> Float[np.ndarray, "devices"]:
    """Return valid weights of the devices as an array, all 1 by default.

    Args:
        weights: a number for each device, or numbers by name; devices without a name
            in it have weight 0.
        devices: the devices.
        name: name of the argument, for messages.

    Raises:
        ValueError: if a weight is invalid.
        TypeError: if weights are no numbers.

    Example:
        >>> from fedbilevel import InMemoryDevices, LocalExamples
        >>> full = LocalExamples(upper=np.ones(3), lower=np.ones(3))
        >>> devices = InMemoryDevices({"Oslo": full, "Rome": full})
        >>> check_weights({"Rome": 2.0}, devices)
        array([0., 2.])
        >>> check_weights([1.0, -1.0], devices)
        Traceback (most recent call last):
        ...
        ValueError: weights[1] is -1.0. Pass finite weights of at least 0.
    """
    count = devices.device_count
    if weights is None:
        return np.ones(count)
    if isinstance(weights, Mapping) or hasattr(weights, "items"):  # a Series too
        weights = _by_number(dict(weights.items()), names_of(devices), name)
    try:
        array = np.asarray(weights, float)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} is {weights!r}. Pass a number for each of the {count} devices."
        ) from None
    if array.shape != (count,):
        raise ValueError(
            f"{name} has shape {array.shape}, but {there_are(count, 'device')}. Pass "
            "one weight for each device."
        )
    for device in np.flatnonzero(~(np.isfinite(array) & (array >= 0)))[:1]:
        raise ValueError(
            f"{name}[{device}] is {array[device]}. Pass finite weights of at least 0."
        )
    with np.errstate(over="ignore"):
        total = array.sum()
    if not np.isfinite(total):
        raise ValueError(
            f"The sum of {name} exceeds the floating-point range. Divide them by the "
            f"largest, {array.max():g}: only their ratios matter."
        )
    return array


def _of_level(
    devices: Devices, level: str, weights: DeviceWeights
) -> Float[np.ndarray, "devices"]:
    array = check_weights(weights, devices)
    has = held(devices)[Weights._fields.index(level)]
    if not has.any():
        raise ValueError(
            f"No device has {level} examples. Give {level} examples to at least one."
        )
    total = array[has].sum()
    if not total:
        raise ValueError(
            f"All devices with {level} examples have weight 0. Set the weight of at "
            "least one of them above 0."
        )
    shares: Float[np.ndarray, "devices"] = np.where(has, array, 0) / total
    return shares


def _check_rows(x: Upper, count: int) -> None:
    for path, part in parts_by_site(x):
        for leaf in jax.tree.leaves(part):
            # JAX would take the last row in place of a missing one.
            if not np.ndim(leaf) or len(leaf) != count:
                raise ValueError(
                    f"x{path} has shape {np.shape(leaf)}, but "
                    f"{there_are(count, 'device')}. Pass one row for each device."
                )


def _by_number(
    weights: Mapping[str, float], names: Sequence[str], argument: str
) -> list[float]:
    unknown = [name for name in weights if name not in names]
    if unknown:
        more = ", …" if len(names) > 5 else ""
        raise ValueError(
            f"{argument} has the name {unknown[0]!r}, but the devices are "
            f"{', '.join(names[:5])}{more}. Correct the name."
        )
    return [weights.get(name, 0.0) for name in names]
