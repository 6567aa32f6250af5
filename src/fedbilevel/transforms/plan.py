"""The transforms of an algorithm in the order in which they are applied."""

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedbilevel.algorithms.protocol import Phase
from fedbilevel.mathematics import tree
from fedbilevel.transforms.changes import CHANGES, values_beside
from fedbilevel.transforms.clip import clip_stage
from fedbilevel.transforms.compressor import Chain, Compressor
from fedbilevel.transforms.download import Download
from fedbilevel.transforms.example_noise import ExampleNoise
from fedbilevel.transforms.feedback import Feedback, code_stage
from fedbilevel.transforms.fixed_point import FixedPoint, fixed_point
from fedbilevel.transforms.masking import MASK
from fedbilevel.transforms.noise import (
    DeviceNoise,
    GaussianNoise,
    device_noise,
    server_noise,
)
from fedbilevel.transforms.protocol import AnyTransform, ClipRule, RobustMean
from fedbilevel.transforms.rules import check_rules
from fedbilevel.transforms.stages import Stage, Staged

ORDER = (
    "Download, ExampleNoise, a clip, DeviceNoise, a stage, FixedPoint or codes such "
    "as Quantise, a robust mean or GaussianNoise"
)
"""The order of transforms, for messages."""


class Plan(NamedTuple):
    """Transforms by the place where they act.

    Attributes:
        download: code of the arrays that devices receive.
        example_noise: clip and noise by example, in the oracles of a device.
        clip: rule that clips updates on the device and again on the server.
        device_noise: noise that a device adds to its clipped update.
        staged: transforms of other types, in their order.
        code: code of an update; several codes are a chain.
        fixed_point: rounding of an update to integers that can be summed.
        mean: robust mean in place of the weighted mean.
        server_noise: noise that the server adds to the mean.
    """

    download: Download | None = None
    example_noise: ExampleNoise | None = None
    clip: Any = None
    device_noise: DeviceNoise | None = None
    staged: tuple[Staged, ...] = ()
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
        """True if there are transforms besides `Download` and `ExampleNoise`."""
        return self._replace(download=None, example_noise=None) != Plan()

    @property
    def is_adaptive(self) -> bool:
        """True if the server's state has the bounds of the clip."""
        return self.clip is not None and bool(self.clip.is_adaptive)

    @property
    def has_memory(self) -> bool:
        """True if the devices' private states have the errors of codes."""
        return isinstance(self.code, Feedback)

    def form_of_changes(self, idle: PyTree) -> Any:
        """Return zeros in the form of changes from an idle update.

        Changes within bounds are in single precision at least, since their means are
        not added to a large point before noise.
        """
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), idle)
        return zeros if self.bounding is None else tree.at_least_single(zeros)

    def stages_of(self, phase: Phase) -> list[Stage]:
        """Return the stages of a phase's uploads, in the order of devices."""
        # Noise makes honest changes longer than their bound; levels come as a sum.
        again = self.device_noise is None and self.fixed_point is None
        is_bounded = self.bounding is not None
        values = values_beside(phase.beside, is_bounded=is_bounded, clips_again=again)
        stages = (
            CHANGES,
            values,
            self.clip and clip_stage(self.clip, clips_again=again),
            self.noise and MASK,
            self.device_noise and device_noise(self.device_noise),
            *(transform.stage() for transform in self.staged),
            self.code and code_stage(self.code),
            self.fixed_point and fixed_point(self.fixed_point, self.device_noise),
            self.server_noise and server_noise(self.server_noise),
        )
        return [stage for stage in stages if isinstance(stage, Stage)]


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
        transforms in the order: Download, ExampleNoise, a clip, DeviceNoise, a stage,
        FixedPoint or codes such as Quantise, a robust mean or GaussianNoise.
    """
    names = names_of(transforms)
    check_rules(names, "with_transforms: ")
    fields = [field for field, _ in names]
    _check_order(transforms, fields)
    values: dict[str, Any] = dict(zip(fields, transforms, strict=True))
    codes = tuple(each for each in transforms if _field(each) == "code")
    staged = tuple(each for each in transforms if _field(each) == "staged")
    if codes:
        values["code"] = _chain(codes)
    return Plan(**{**values, "staged": staged})


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
    "staged": "Codes are the last step of devices",
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
    if isinstance(transform, Staged):
        return "staged"
    raise TypeError(
        f"with_transforms: {transform!r} is no transform. Pass objects such as "
        "Clip(1.0) and Quantise()."
    )


def _name(transform: AnyTransform) -> str:
    return type(transform).__name__
