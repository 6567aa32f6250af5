"""The rules by which settings exclude or need each other, for Python and for files.

A rule has one reason and one cure, and names settings by their places; Python and files
put their own names there.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from fedbilevel.mathematics.settings import SettingError

Names: TypeAlias = Sequence[tuple[str, str]]
"""Places of settings, and how their author wrote them: `("clip", "ClipEach")`."""
ONE = "Remove one of them."
CLIPPED = "Remove one of them; a clip also limits each update."
ADD = "Add it."
NOISES = "device_noise", "server_noise"
"""The places of noise by device."""
LEVELS = "levels", "different weights of the devices in the two losses"
"""The place and name of factors of the devices' losses (`LevelWeights.factors`)."""
ONE_LEVEL = "one_level", "devices that contribute to one of the two losses only"
"""The place and name of devices without examples or weight in a loss."""
EVEN = (
    "Give every device examples of both losses, and the same weight in both (omit "
    "Weights)."
)


class Rule(NamedTuple):
    """Settings that exclude others, or need one of them.

    Attributes:
        places: places of the settings, one of which an error names.
        others: places of the others. The same places exclude each other.
        reason: reason of the rule.
        cure: instruction, with names of places in braces; `ADD` if the others are
            needed.
    """

    places: tuple[str, ...]
    others: tuple[str, ...]
    reason: str
    cure: str = ONE


def _alone(reason: str, *places: str) -> Rule:
    return Rule(places, places, reason)


RULES = (
    _alone("a downlink has one code", "download"),
    _alone("an update has one set of bounds", "clip"),
    _alone("ε is computed for one noise", "example_noise"),
    _alone("ε is computed for one noise", *NOISES),
    _alone("a number is rounded once", "fixed_point"),
    _alone("an exchange has one mean", "mean"),
    Rule(("example_noise",), NOISES, "a run reports one ε: by example or by device"),
    Rule(("fixed_point",), ("code",), "the sum of codes is not the code of the sum"),
    Rule(
        ("fixed_point", "device_noise"),
        ("staged",),
        "the server reads the sum of the changes, which it cannot change back",
    ),
    Rule(
        ("fixed_point",),
        ("mean",),
        "a robust mean compares single updates, but integers are for sums",
        CLIPPED,
    ),
    Rule(
        ("fixed_point",),
        ("server_noise",),
        "rounding makes a clipped update longer, and a server that sees only the sum "
        "cannot clip again, so ε would be wrong",
        "Use {device_noise}, added before rounding.",
    ),
    Rule(
        ("device_noise",),
        ("code",),
        "ε is that of the sum of the noised updates, and a code of each update shows "
        "more than the sum",
        "Use {server_noise}, whose server reads the codes.",
    ),
    Rule(
        ("mean",),
        NOISES,
        "the influence of one device on a robust mean is not known, so ε would be "
        "wrong",
        CLIPPED,
    ),
    Rule(
        ("distance_limit",),
        NOISES,
        "under noise one device must not decide whether others count, as it does by "
        "the median",
        CLIPPED,
    ),
    Rule(
        ("norm_limit",),
        NOISES,
        "under noise no device may be excluded because of its numbers: the others "
        "would see it",
        CLIPPED,
    ),
    Rule(
        ("distance_limit", "norm_limit"),
        ("fixed_point",),
        "integers are for servers that see no single update",
        CLIPPED,
    ),
    Rule(
        ("from_seed",),
        ("epsilon",),
        "anyone who knows the seed can subtract the noise, so it has no ε",
    ),
    Rule(NOISES, ("clip",), "noise hides updates of limited norm", ADD),
    Rule(
        ("fixed_point",),
        ("clip",),
        "the unit of its integers follows from the bound of an update",
        ADD,
    ),
    Rule(
        ("secure_sums",),
        ("levels",),
        "a server that chooses a factor for each site could make a sum show one update",
        EVEN,
    ),
    Rule(("secure_sums",), ("fixed_point",), "secure sums are sums of integers", ADD),
    Rule(
        ("mean", "distance_limit"),
        ("one_level",),
        "the only devices with examples of a loss differ from all others, as faulty "
        "ones do, and would be excluded",
        "Remove it; a norm limit and a clip may stay.",
    ),
    Rule(
        ("example_noise",),
        ("levels",),
        "they multiply the losses of each device by factors, for which ε is not "
        "computed",
        EVEN,
    ),
)
"""All rules, in the order in which they are checked."""

IN_PYTHON = {
    "clip": "Clip, ClipEach or AdaptiveClip",
    "device_noise": "DeviceNoise",
    "server_noise": "GaussianNoise",
    "fixed_point": "Clip(...) and FixedPoint() by with_transforms",
}
"""Names for cures in Python."""


def check_rules(
    names: Names, where: str = "", cures: Mapping[str, str] = IN_PYTHON
) -> None:
    """Raise if settings exclude each other, or one that is needed is missing.

    Args:
        names: settings in use.
        where: start of the message; by default the name of the setting.
        cures: names of places, for cures.

    Raises:
        SettingError: if they do.

    Example:
        >>> check_rules([("clip", "Clip"), ("server_noise", "GaussianNoise")])
        >>> check_rules([("server_noise", "noise")], cures={"clip": "clip"})
        Traceback (most recent call last):
        ...
        fedbilevel.mathematics.settings.SettingError: noise: needs clip, since noise
        hides updates of limited norm. Add it.
    """
    for rule in RULES:
        own = [name for place, name in names if place in rule.places]
        others = [name for place, name in names if place in rule.others]
        if rule.places == rule.others:
            others = own[1:]
        is_need = rule.cure == ADD
        if not own or is_need == bool(others):
            continue
        missing = " or ".join(cures.get(place, place) for place in rule.others)
        relation = f"needs {missing}" if is_need else f"excludes {others[0]}"
        cure = f"{relation}, since {rule.reason}. {rule.cure.format_map(cures)}"
        message = f"{where}{own[0]} {cure}" if where else None
        raise SettingError(own[0], cure, message)
