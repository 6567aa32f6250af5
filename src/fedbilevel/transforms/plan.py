"""The transforms of an algorithm in the order in which they are applied."""

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

from fedbilevel.transforms.compressor import Chain, Compressor
from fedbilevel.transforms.feedback import Feedback
from fedbilevel.transforms.noise import DeviceNoise, GaussianNoise
from fedbilevel.transforms.protocol import (
    AnyTransform,
    ClipRule,
    RobustMean,
)

ORDER = "a clip, DeviceNoise, codes such as Quantise, a robust mean or GaussianNoise"
"""The order of transforms, for messages."""


class Plan(NamedTuple):
    """Transforms by the place where they act.

    Attributes:
        clip: rule that clips updates on the device and again on the server.
        device_noise: noise that a device adds to its clipped update.
        code: code of an update; several codes are a chain.
        mean: robust mean in place of the weighted mean.
        server_noise: noise that the server adds to the mean.
    """

    clip: Any = None
    device_noise: DeviceNoise | None = None
    code: Any = None
    mean: RobustMean | None = None
    server_noise: GaussianNoise | None = None

    @property
    def noise(self) -> DeviceNoise | GaussianNoise | None:
        """The noise of differential privacy, on the devices or on the server."""
        return self.device_noise or self.server_noise


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
        ValueError: with_transforms: Clip comes after GaussianNoise. Pass transforms in
        the order: a clip, DeviceNoise, codes such as Quantise, a robust mean or
        GaussianNoise.
    """
    fields = [_field(transform) for transform in transforms]
    places = [Plan._fields.index(field) for field in fields]
    for number in range(1, len(transforms)):
        first, second = transforms[number - 1 : number + 1]
        if places[number] < places[number - 1]:
            raise ValueError(
                f"with_transforms: {_name(second)} comes after {_name(first)}. Pass "
                f"transforms in the order: {ORDER}."
            )
    by_field = {
        field: tuple(
            transform
            for transform, other in zip(transforms, fields, strict=True)
            if other == field
        )
        for field in fields
    }
    for field, same in by_field.items():
        if field != "code" and len(same) > 1:
            raise ValueError(
                f"with_transforms: {_name(same[0])} and {_name(same[1])} exclude each "
                f"other. Pass one of them."
            )
    values: dict[str, Any] = {
        field: _chain(same) if field == "code" else same[0]
        for field, same in by_field.items()
    }
    plan = Plan(**values)
    _check_together(plan)
    return plan


def _check_together(plan: Plan) -> None:
    noise = plan.noise
    if noise is not None and plan.clip is None:
        raise ValueError(
            f"with_transforms: {_name(noise)} needs a bound of each device's update. "
            "Pass Clip, ClipEach or AdaptiveClip before it."
        )
    if plan.device_noise is not None and plan.code is not None:
        raise ValueError(
            f"with_transforms: DeviceNoise and {_name(plan.code)} exclude each other: "
            "ε is that of the sum of the noised updates, and a code of each update "
            "shows more than the sum. Pass GaussianNoise, whose server reads the codes."
        )
    if plan.device_noise is not None and plan.server_noise is not None:
        raise ValueError(
            "with_transforms: DeviceNoise and GaussianNoise exclude each other, since "
            "ε is computed for one of them. Pass one."
        )
    if noise is not None and plan.mean is not None:
        raise ValueError(
            f"with_transforms: {_name(plan.mean)} and {_name(noise)} exclude each "
            "other: the influence of one device on a robust mean is not known, so ε "
            "would be wrong. Pass one of them; Clip also limits each device."
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
    if isinstance(transform, DeviceNoise):
        return "device_noise"
    if isinstance(transform, GaussianNoise):
        return "server_noise"
    if isinstance(transform, type):
        raise TypeError(
            f"with_transforms: {transform.__name__} is a class. Pass an instance: call "
            "the class with its settings."
        )
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
