"""The step sizes of an algorithm that a search for instabilities cannot try."""

from typing import Any

from fedbilevel.algorithms.step_sizes import settings_of
from fedbilevel.algorithms.wrapper import innermost, layers
from fedbilevel.mathematics.settings import Role, is_number

NEEDED = {
    "y": ("LowerRate", {Role.LOWER}),
    "x": ("UpperRate", {Role.UPPER, Role.OPTIMISER}),
}
"""The types and roles of step sizes that an algorithm must have, by variable."""


def check_known_steps(algorithm: Any) -> None:
    """Check that an algorithm declares its step sizes.

    Raises:
        ValueError: if it does not, or a wrapper may change them.

    Example:
        >>> from fedbilevel import AutoFedBiO
        >>> check_known_steps(AutoFedBiO(rounds=300))
        Traceback (most recent call last):
        ...
        ValueError: find_instabilities: AutoFedBiO declares no step size of y, so its
        steps are unknown and none was tried. Give the setting the type LowerRate of
        fedbilevel.algorithms, or reduce the step sizes yourself.
    """
    *wrappers, inner = layers(algorithm)
    name = type(inner).__name__
    optimisers = 0
    for wrapper in wrappers:
        roles = {item.role for item in settings_of(wrapper) if "." not in item.name}
        optimisers += Role.OPTIMISER in roles
        if Role.SAME_STEPS not in roles:
            raise ValueError(
                f"find_instabilities: the effect of {type(wrapper).__name__} on the "
                f"steps of {name} is unknown. Pass the inner algorithm alone if its "
                "steps are the same."
            )
    if optimisers > 1:
        raise ValueError(
            "find_instabilities: the algorithm has several server optimisers, whose "
            "common effect is unknown. Pass it with one of them."
        )
    declared = {item.role for item in settings_of(inner)}
    for variable, (kind, needed) in NEEDED.items():
        if not declared & needed:
            raise ValueError(
                f"find_instabilities: {name} declares no step size of {variable}, so "
                f"its steps are unknown and none was tried. Give the setting the type "
                f"{kind} of fedbilevel.algorithms, or reduce the step sizes yourself."
            )


def untried_steps(algorithm: Any) -> tuple[str, ...]:
    """Return the settings of an algorithm that may be step sizes but are not tried.

    These are the numbers whose type says nothing about them.

    Example:
        >>> from fedbilevel import FedBiO, SimFBO
        >>> untried_steps(FedBiO(0.1)), untried_steps(SimFBO(0.1))
        ((), ())
    """
    return tuple(
        item.name
        for item in settings_of(innermost(algorithm))
        if not item.declaration.marks
        and is_number(item.value)
        and not isinstance(item.value, int)
    )
