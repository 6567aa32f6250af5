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
NOISES = "device_noise", "server_noise"
"""The places of noise by device."""


class Rule(NamedTuple):
    """Two settings that exclude each other, or one that needs another.

    Attributes:
        place: place of the setting that an error names.
        others: places of the settings that it excludes; or needs one of.
        reason: reason of the rule.
        cure: instruction, with names of places in braces.
        is_need: True if the setting needs one of the others.
    """

    place: str
    others: tuple[str, ...]
    reason: str
    cure: str = ONE
    is_need: bool = False


RULES = (
    Rule("download", ("download",), "a downlink has one code"),
    Rule("example_noise", ("example_noise",), "ε is computed for one noise"),
    Rule("clip", ("clip",), "an update has one set of bounds"),
    Rule("device_noise", NOISES, "ε is computed for one noise"),
    Rule("server_noise", ("server_noise",), "ε is computed for one noise"),
    Rule("fixed_point", ("fixed_point",), "a number is rounded once"),
    Rule("mean", ("mean",), "an exchange has one mean"),
    Rule(
        "fixed_point",
        ("code",),
        "the sum of such codes is not the code of the sum. It sends 32 bits for each "
        "number itself",
    ),
    Rule(
        "fixed_point",
        ("mean",),
        "a robust mean compares single updates, but integers are for sums",
        CLIPPED,
    ),
    Rule(
        "fixed_point",
        ("server_noise",),
        "rounding makes a clipped update longer, and a server that sees only the sum "
        "cannot clip again, so ε would be wrong",
        "Use {device_noise}, added before rounding.",
    ),
    Rule(
        "device_noise",
        ("code",),
        "ε is that of the sum of the noised updates, and a code of each update shows "
        "more than the sum",
        "Use {server_noise}, whose server reads the codes.",
    ),
    Rule(
        "example_noise",
        NOISES,
        "a run reports one ε: by example or by device",
    ),
    Rule(
        "mean",
        NOISES,
        "the influence of one device on a robust mean is not known, so ε would be "
        "wrong",
        CLIPPED,
    ),
    Rule(
        "distance_limit",
        NOISES,
        "under noise one device must not decide whether others count, as it does by "
        "the median",
        CLIPPED,
    ),
    Rule(
        "norm_limit",
        NOISES,
        "under noise no device may be excluded because of its numbers: the others "
        "would see it",
        CLIPPED,
    ),
    *(
        Rule(
            limit,
            ("fixed_point",),
            "integers are for servers that see no single update",
            CLIPPED,
        )
        for limit in ("distance_limit", "norm_limit")
    ),
    *(
        Rule(noise, ("clip",), "noise hides updates of limited norm", "Add it.", True)
        for noise in NOISES
    ),
    Rule(
        "fixed_point",
        ("clip",),
        "the unit of its integers follows from the bound of an update",
        "Add it.",
        is_need=True,
    ),
    Rule(
        "secure_sums",
        ("fixed_point",),
        "secure sums are sums of integers",
        "Add it.",
        is_need=True,
    ),
    Rule(
        "from_seed",
        ("epsilon",),
        "anyone who knows the seed can subtract the noise, so it has no ε",
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
        own = [name for place, name in names if place == rule.place]
        # A rule of a place with itself is for a second setting of that place.
        repeated = own[1:] if rule.place in rule.others else []
        others = [
            name
            for place, name in names
            if place in rule.others and place != rule.place
        ]
        others += repeated
        if not own or rule.is_need == bool(others):
            continue
        if rule.is_need:
            relation = f"needs {' or '.join(cures[place] for place in rule.others)}"
        else:
            relation = f"excludes {others[0]}"
        cure = f"{relation}, since {rule.reason}. {rule.cure.format_map(cures)}"
        message = f"{where}{own[0]} {cure}" if where else None
        raise SettingError(own[0], cure, message)
