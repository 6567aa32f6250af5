"""Settings of the transforms of uploads."""

from dataclasses import dataclass
from typing import Annotated, Any

from fedbilevel.mathematics.settings import (
    Count,
    Positive,
    Range,
    SettingError,
    check_ranges,
)
from fedbilevel.transforms.clip import AdaptiveClip, Clip
from fedbilevel.transforms.compressor import Chain
from fedbilevel.transforms.feedback import Feedback
from fedbilevel.transforms.noise import DeviceNoise, GaussianNoise
from fedbilevel.transforms.quantise import Quantise
from fedbilevel.transforms.robust_means import (
    CentredClipping,
    GeometricMedian,
    TrimmedMean,
)
from fedbilevel.transforms.sparsify import RandomK, TopK

Share = Annotated[float, Range(above=0.0, at_most=1.0)]
"""A share that is never traced."""


@dataclass(frozen=True)
class TransformSettings:
    """Transforms of uploads: limits, privacy, compression and robust means.

    Attributes:
        clip: largest norm of a device's update, all variables jointly; None for no
            limit.
        clip_quantile: quantile of the devices' norms that each variable's limit
            follows; None for a fixed limit. `clip` is then the limit of the first
            round.
        noise: noise multiplier of differential privacy by device; None for no noise.
            `fedbilevel plan` computes it for an ε.
        noise_devices: number of devices that add the noise together, each a share;
            None for noise of the server.
        epsilon: budget; a run ends before its ε exceeds it. None for no budget.
        delta: δ of (ε, δ); choose it below 1 / number of devices.
        top_share: share of the entries of each array that are sent, the largest ones;
            None to send all.
        random_share: share of the entries that are sent, random ones; None to send all.
        bits: 8, 4 or 2 bits for each number that is sent; None for full precision.
        feedback: whether a device stores the error of its last code and adds it to its
            next update.
        trim_share: share of the devices that a trimmed mean omits at each end of
            each entry; None for the weighted mean.
        geometric_median: whether to replace the mean by the geometric median.
        clipping_radius: radius of centred clipping in place of the mean; None for the
            weighted mean.
    """

    clip: Positive | None = None
    clip_quantile: Annotated[float, Range(above=0.0, below=1.0)] | None = None
    noise: Positive | None = None
    noise_devices: Count | None = None
    epsilon: Positive | None = None
    delta: Annotated[float, Range(above=0.0, below=1.0)] = 1e-5
    top_share: Share | None = None
    random_share: Share | None = None
    bits: Annotated[int, Range(at_least=2.0, at_most=8.0, whole=True)] | None = None
    feedback: bool = False
    trim_share: Annotated[float, Range(above=0.0, below=0.5)] | None = None
    geometric_median: bool = False
    clipping_radius: Positive | None = None

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.noise is not None and self.clip is None and self.clip_quantile is None:
            raise SettingError(
                "noise",
                "set clip or clip_quantile as well: noise protects only updates of "
                "limited norm.",
            )
        unused = {"epsilon": None, "noise_devices": None, "delta": 1e-5}
        for name, default in unused.items():
            if self.noise is None and getattr(self, name) != default:
                raise SettingError(
                    name, "set noise as well; fedbilevel plan --epsilon gives it."
                )
        if self.bits not in (None, 2, 4, 8):
            raise SettingError("bits", f"give 8, 4 or 2, not {self.bits}.")
        if self.top_share is not None and self.random_share is not None:
            raise SettingError("random_share", "set top_share or random_share only.")
        if self.noise_devices is not None and self.code is not None:
            raise SettingError(
                "noise_devices",
                "remove it, or top_share, random_share, bits and feedback: a code of "
                "each noised update shows more than the sum that ε protects.",
            )
        if self.feedback and self.code is None:
            raise SettingError(
                "feedback",
                "set top_share, random_share or bits as well: without a code there is "
                "no error.",
            )
        means = ("trim_share", "geometric_median", "clipping_radius")
        chosen = [name for name in means if getattr(self, name)]
        if len(chosen) > 1:
            raise SettingError(chosen[1], f"set {chosen[0]} or {chosen[1]} only.")
        if chosen and self.noise is not None:
            raise SettingError(
                chosen[0],
                "set it or noise only: the influence of one device on a robust mean "
                "is not known, so ε would be wrong.",
            )

    @property
    def all(self) -> tuple[Any, ...]:
        """The transforms in the order in which they apply.

        Example:
            >>> TransformSettings(clip=1.0, bits=8).all
            (Clip(norm=1.0), Quantise(bits=8, block=256))
        """
        parts = self._clip, self._device_noise, self.code, self._mean, self._noise
        return tuple(part for part in parts if part is not None)

    @property
    def _clip(self) -> Any:
        if self.clip_quantile is None:
            return None if self.clip is None else Clip(self.clip)
        if self.clip is None:
            return AdaptiveClip(self.clip_quantile)
        return AdaptiveClip(self.clip_quantile, first_norm=self.clip)

    @property
    def _device_noise(self) -> DeviceNoise | None:
        if self.noise is None or self.noise_devices is None:
            return None
        return DeviceNoise(self.noise, self.noise_devices, self.delta, self.epsilon)

    @property
    def _noise(self) -> GaussianNoise | None:
        if self.noise is None or self.noise_devices is not None:
            return None
        return GaussianNoise(self.noise, self.delta, self.epsilon)

    @property
    def code(self) -> Any:
        """The code of an update; None for none."""
        code: Any = None
        if self.top_share is not None:
            code = TopK(self.top_share)
        if self.random_share is not None:
            # The memory of feedback needs codes that are not longer than the update.
            code = RandomK(self.random_share, unbiased=not self.feedback)
        if self.bits is not None:
            last = Quantise(self.bits)
            code = last if code is None else Chain(code, last)
        return Feedback(code) if self.feedback and code is not None else code

    @property
    def _mean(self) -> Any:
        if self.trim_share is not None:
            return TrimmedMean(self.trim_share)
        if self.geometric_median:
            return GeometricMedian()
        if self.clipping_radius is not None:
            return CentredClipping(self.clipping_radius)
        return None
