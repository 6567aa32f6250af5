"""The transforms of an algorithm in the order in which they are applied."""

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

from fedbilevel.transforms.compressor import Chain, Compressor
from fedbilevel.transforms.download import Download
from fedbilevel.transforms.example_noise import ExampleNoise
from fedbilevel.transforms.feedback import Feedback
from fedbilevel.transforms.fixed_point import FixedPoint
from fedbilevel.transforms.noise import DeviceNoise, GaussianNoise
from fedbilevel.transforms.protocol import AnyTransform, ClipRule, RobustMean
from fedbilevel.transforms.rules import check_rules

ORDER = (
    "Download, ExampleNoise, a clip, DeviceNoise, FixedPoint or codes such as "
    "Quantise, a robust mean or GaussianNoise"
)
"""The order of transforms, for messages."""


class Plan(NamedTuple):
    """Transforms by the place where they act.

    Attributes:
        download: code of the arrays that devices receive.
        example_noise: clip and noise by example, in the oracles of a device.
        clip: rule that clips updates on the device and again on the server.
        device_noise: noise that a device adds to its clipped update.
        code: code of an update; several codes are a chain.
        fixed_point: rounding of an update to integers that can be summed.
        mean: robust mean in place of the weighted mean.
        server_noise: noise that the server adds to the mean.
    """

    download: Download | None = None
    example_noise: ExampleNoise | None = None
    clip: Any = None
    device_noise: DeviceNoise | None = None
    code: Any = None
    fixed_point: FixedPoint | None = None
    mean: RobustMean | None = None
    server_noise: GaussianNoise | None = None

    @property
    def noise(self) -> DeviceNoise | GaussianNoise | None:
        """The noise of privacy by device, on the devices or on the server."""
        return self.device_noise or self.server_noise

    @property
    def bounding(self) -> Any:
        """The transform that needs bounds of all numbers in an upload, or None."""
        return self.noise or self.fixed_point

    @property
    def changes_uploads(self) -> bool:
        """True if there are transforms besides `ExampleNoise`."""
        return any(part is not None for part in self._replace(example_noise=None))


def plan_of(transforms: Sequence[AnyTransform]) -> Plan:
    """Return the plan of some transforms.

    Raises:
        TypeError: if an object is no transform.
        ValueError: if transforms are in the wrong order or exclude each other; the
            message says why.

    Example:
        >>> from fedbilevel.transforms.clip import Clip
        >>> plan_of((Clip(1.0), GaussianNoise(1.0))).noise.multiplier
        1.0
        >>> plan_of((GaussianNoise(1.0), Clip(1.0)))
        Traceback (most recent call last):
        ...
        ValueError: with_transforms: Clip comes after GaussianNoise. Devices clip first:
        noise needs a bound, and the server clips again what it has decoded. Pass
        transforms in the order: Download, ExampleNoise, a clip, DeviceNoise, FixedPoint
        or codes such as Quantise, a robust mean or GaussianNoise.
    """
    fields = [_field(transform) for transform in transforms]
    by_field = {
        field: tuple(
            transform
            for transform, other in zip(transforms, fields, strict=True)
            if other == field
        )
        for field in fields
    }
    check_rules(names_of(transforms), "with_transforms: ")
    _check_order(transforms, fields)
    values: dict[str, Any] = {
        field: _chain(same) if field == "code" else same[0]
        for field, same in by_field.items()
    }
    return Plan(**values)


def names_of(transforms: Sequence[AnyTransform]) -> list[tuple[str, str]]:
    """Return the places of transforms and the names of their types, for rules.

    Example:
        >>> names_of((Download(), GaussianNoise(1.0)))
        [('download', 'Download'), ('server_noise', 'GaussianNoise')]
    """
    return [(_field(transform), _name(transform)) for transform in transforms]


_BEFORE = {
    "download": "Devices decode what they receive before they work",
    "example_noise": "Devices add the noise of examples before they have an update",
    "clip": "Devices clip first: noise needs a bound, and the server clips again what "
    "it has decoded",
    "code": "Devices encode updates before the server averages them",
    "device_noise": "Devices add noise before they round",
}
"""The reason why a transform comes before those of later fields."""


def _check_order(transforms: Sequence[AnyTransform], fields: Sequence[str]) -> None:
    places = [Plan._fields.index(field) for field in fields]
    for number in range(1, len(transforms)):
        first, second = transforms[number - 1 : number + 1]
        if places[number] < places[number - 1]:
            raise ValueError(
                f"with_transforms: {_name(second)} comes after {_name(first)}. "
                f"{_BEFORE[fields[number]]}. Pass transforms in the order: {ORDER}."
            )


def _chain(codes: tuple[Any, ...]) -> Any:
    """Return one code for several, in their order."""
    if len(codes) > 1 and any(isinstance(code, Feedback) for code in codes):
        names = ", ".join(_name(code) for code in codes)
        raise ValueError(
            f"with_transforms: the codes are {names}, but Feedback stores the error "
            "of all codes. Pass them to it: Feedback(Chain(TopK(0.1), Quantise()))."
        )
    return reduce(Chain, codes)


def _field(transform: AnyTransform) -> str:
    if isinstance(transform, Download):
        return "download"
    if isinstance(transform, ExampleNoise):
        return "example_noise"
    if isinstance(transform, DeviceNoise):
        return "device_noise"
    if isinstance(transform, GaussianNoise):
        return "server_noise"
    if isinstance(transform, type):
        raise TypeError(
            f"with_transforms: {transform.__name__} is a class. Pass an instance: call "
            "the class with its settings."
        )
    if isinstance(transform, FixedPoint):
        return "fixed_point"
    if isinstance(transform, ClipRule):
        return "clip"
    if isinstance(transform, Compressor | Feedback):
        return "code"
    if isinstance(transform, RobustMean):
        return "mean"
    raise TypeError(
        f"with_transforms: {transform!r} is no transform. Pass objects such as "
        "Clip(1.0) and Quantise()."
    )


def _name(transform: AnyTransform) -> str:
    return type(transform).__name__
