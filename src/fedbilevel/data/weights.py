"""Weights of devices, also by level: means over those that have examples of a level."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import jax
import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from fedbilevel.data.devices import Devices, SizedDevices
from fedbilevel.data.examples import StoredData
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
    if np.array_equal(levels.upper, levels.lower) and not parts_by_site(x):
        return devices, levels.devices
    shares = levels.devices
    if participants is not None and participants < devices.device_count:
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

    def cohort(self, devices: Int[np.ndarray, "*cohort"]) -> StoredData:
        """Return the data of some devices with their terms."""
        stored = self.devices.cohort(devices)
        numbers = np.asarray(devices, np.int32)
        upper, lower = (
            level._replace(term=SiteTerm(numbers, factors[devices]))
            for level, factors in zip(stored, (self.upper, self.lower), strict=True)
        )
        return stored._replace(upper=upper, lower=lower)


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
