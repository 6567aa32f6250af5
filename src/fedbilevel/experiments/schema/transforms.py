"""Settings of the transforms of uploads and downloads."""

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
from fedbilevel.transforms.download import Download
from fedbilevel.transforms.example_noise import ExampleNoise
from fedbilevel.transforms.feedback import Feedback
from fedbilevel.transforms.fixed_point import FixedPoint
from fedbilevel.transforms.noise import DeviceNoise, GaussianNoise
from fedbilevel.transforms.quantise import BITS, Quantise
from fedbilevel.transforms.robust_means import (
    CentredClipping,
    GeometricMedian,
    TrimmedMean,
)
from fedbilevel.transforms.rules import check_rules
from fedbilevel.transforms.sparsify import RandomK, TopK

Share = Annotated[float, Range(above=0.0, at_most=1.0)]
"""A share that is never traced."""
Bits = Annotated[int, Range(at_least=2.0, at_most=16.0, whole=True)]
"""A number of bits that is never traced."""

KEYS = {
    "clip": "clip or clip_quantile",
    "device_noise": "noise_devices",
    "server_noise": "noise without noise_devices",
    "fixed_point": "transforms.integer_bits",
}
"""Keys for the cures of rules."""


@dataclass(frozen=True)
class TransformSettings:
    """Transforms of messages: limits, privacy, codes and robust means.

    Attributes:
        download_bits: 16, 8, 4 or 2 bits for each number of the large arrays that the
            server sends; None for full precision.
        clip: largest norm of a device's update, all variables jointly; None for no
            limit.
        clip_quantile: quantile of the devices' norms that each variable's limit
            follows; None for a fixed limit. `clip` is then the limit of the first
            round.
        example_clip: largest norm of a single example's gradient or product, for
            privacy by example; None for no limit.
        example_noise: noise multiplier of differential privacy by example; None for no
            noise. `fedbilevel noise` computes it for an ε.
        noise: noise multiplier of differential privacy by device; None for no noise.
            `fedbilevel noise` computes it for an ε.
        noise_devices: number of devices that add the noise together, each a share;
            None for noise of the server.
        epsilon: budget; a run ends before its ε exceeds it. None for no budget.
        delta: δ of (ε, δ); choose it below 1 / number of devices, or of examples.
        noise_from_seed: true for results that anyone can repeat: the noise follows from
            the seed of the run, protects nobody, and the run reports no ε.
        top_share: share of the entries of each array that are sent, the largest ones;
            None to send all.
        random_share: share of the entries that are sent, random ones; None to send all.
        bits: 16, 8, 4 or 2 bits for each number that a device sends; None for full
            precision.
        integer_bits: 2 to 16 bits for each number, as integers whose sum is exact,
            which secure sums of a federation require; None for no rounding.
        feedback: whether a device stores the error of its last code and adds it to its
            next update.
        trim_share: share of the devices that a trimmed mean omits at each end of
            each entry; None for the weighted mean.
        geometric_median: whether to replace the mean by the geometric median.
        clipping_radius: radius of centred clipping in place of the mean; None for the
            weighted mean.
    """

    download_bits: Bits | None = None
    clip: Positive | None = None
    clip_quantile: Annotated[float, Range(above=0.0, below=1.0)] | None = None
    example_clip: Positive | None = None
    example_noise: Positive | None = None
    noise: Positive | None = None
    noise_devices: Count | None = None
    epsilon: Positive | None = None
    delta: Annotated[float, Range(above=0.0, below=1.0)] = 1e-5
    noise_from_seed: bool = False
    top_share: Share | None = None
    random_share: Share | None = None
    bits: Bits | None = None
    integer_bits: Bits | None = None
    feedback: bool = False
    trim_share: Annotated[float, Range(above=0.0, below=0.5)] | None = None
    geometric_median: bool = False
    clipping_radius: Positive | None = None

    def __post_init__(self) -> None:
        check_ranges(self)
        check_rules(self.names, cures=KEYS)
        self._check_noise()
        for name in ("download_bits", "bits"):
            if getattr(self, name) not in (None, *BITS):
                bits = getattr(self, name)
                raise SettingError(name, f"give 16, 8, 4 or 2, not {bits}.")
        if self.top_share is not None and self.random_share is not None:
            raise SettingError("random_share", "set top_share or random_share only.")
        if self.feedback and self.code is None:
            raise SettingError(
                "feedback",
                "set top_share, random_share or bits as well: without a code there is "
                "no error.",
            )

    def _check_noise(self) -> None:
        if self.example_noise is not None and self.example_clip is None:
            raise SettingError(
                "example_noise",
                "set example_clip as well: privacy by example needs both.",
            )
        if self.example_clip is not None and self.example_noise is None:
            raise SettingError(
                "example_clip",
                "set example_noise as well, first to any number such as 1.0: "
                "fedbilevel noise FILE --epsilon then computes the number for an ε.",
            )
        unused = {
            "epsilon": None,
            "noise_devices": None,
            "delta": 1e-5,
            "noise_from_seed": False,
        }
        for name, default in unused.items():
            needs_devices = name == "noise_devices"
            used = self.noise is not None if needs_devices else self.is_private
            if not used and getattr(self, name) != default:
                either = "noise" if needs_devices else "noise or example_noise"
                raise SettingError(
                    name, f"set {either} as well; fedbilevel noise --epsilon gives it."
                )

    @property
    def names(self) -> list[tuple[str, str]]:
        """The settings in use: their places in the rules, and their keys."""
        noise = "server_noise" if self.noise_devices is None else "device_noise"
        places = {
            "download_bits": "download",
            "clip" if self.clip_quantile is None else "clip_quantile": "clip",
            "example_noise": "example_noise",
            "noise": noise,
            "epsilon": "epsilon",
            "noise_from_seed": "from_seed",
            "top_share": "code",
            "random_share": "code",
            "bits": "code",
            "feedback": "code",
            "integer_bits": "fixed_point",
            "trim_share": "mean",
            "geometric_median": "mean",
            "clipping_radius": "mean",
        }
        return [(place, key) for key, place in places.items() if getattr(self, key)]

    @property
    def all(self) -> tuple[Any, ...]:
        """The transforms in the order in which they apply.

        Example:
            >>> TransformSettings(clip=1.0, bits=8).all
            (Clip(norm=1.0), Quantise(bits=8, block=256))
        """
        parts = (
            self._download,
            self._example_noise,
            self._clip,
            self._device_noise,
            self.code,
            self._fixed_point,
            self._mean,
            self._noise,
        )
        return tuple(part for part in parts if part is not None)

    @property
    def is_private(self) -> bool:
        """True if there is noise of differential privacy."""
        return self.noise is not None or self.example_noise is not None

    @property
    def _account(self) -> tuple[float, float | None, bool]:
        return self.delta, self.epsilon, self.noise_from_seed

    @property
    def _download(self) -> Download | None:
        if self.download_bits is None:
            return None
        return Download(Quantise(self.download_bits))

    @property
    def _fixed_point(self) -> FixedPoint | None:
        bits = self.integer_bits
        return None if bits is None else FixedPoint(bits)

    @property
    def _example_noise(self) -> ExampleNoise | None:
        if self.example_noise is None or self.example_clip is None:
            return None
        return ExampleNoise(self.example_clip, self.example_noise, *self._account)

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
        return DeviceNoise(self.noise, self.noise_devices, *self._account)

    @property
    def _noise(self) -> GaussianNoise | None:
        if self.noise is None or self.noise_devices is not None:
            return None
        return GaussianNoise(self.noise, *self._account)

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
