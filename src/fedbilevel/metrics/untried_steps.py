"""The step sizes of an algorithm that a search for instabilities cannot try."""

from dataclasses import is_dataclass
from typing import Any

import jax

from fedbilevel.algorithms.server_optimiser import WithServerOptimiser
from fedbilevel.algorithms.wrapper import layers
from fedbilevel.mathematics.settings import Range, Search, declarations
from fedbilevel.transforms.transformed import Transformed

NEEDED = ("learning_rate", "upper_rate", "lower_rate")
"""The settings of an algorithm whose steps are known: y moves by their product."""
TRIED = (*NEEDED, "adjoint_rate", "server_rate")
"""The step sizes that are tried, if the algorithm has them."""


def check_known_steps(algorithm: Any) -> None:
    """Check that the step sizes of an algorithm have the names that are tried.

    Raises:
        ValueError: if they have other names, or a wrapper may change them.

    Example:
        >>> from fedbilevel import AutoFedBiO
        >>> check_known_steps(AutoFedBiO(rounds=300))
        Traceback (most recent call last):
        ...
        ValueError: find_instabilities: AutoFedBiO has no setting learning_rate, so its
        steps are unknown and none was tried (its numbers are upper_rate, lower_rate,
        adjoint_rate, momentum, final_rate). Reduce its step sizes yourself.
    """
    *wrappers, inner = layers(algorithm)
    if sum(isinstance(wrapper, WithServerOptimiser) for wrapper in wrappers) > 1:
        raise ValueError(
            "find_instabilities: the algorithm has several server optimisers, whose "
            "common effect is unknown. Pass it with one of them."
        )
    for wrapper in wrappers:
        if not isinstance(wrapper, Transformed | WithServerOptimiser):
            raise ValueError(
                f"find_instabilities: the effect of {type(wrapper).__name__} on the "
                f"steps of {type(inner).__name__} is unknown. Pass the inner algorithm "
                "alone if its steps are the same."
            )
    missing = [name for name in NEEDED if not hasattr(inner, name)]
    if missing:
        numbers = ", ".join(_numbers(inner)) or "none"
        raise ValueError(
            f"find_instabilities: {type(inner).__name__} has no setting "
            f"{' and no '.join(missing)}, so its steps are unknown and none was tried "
            f"(its numbers are {numbers}). Reduce its step sizes yourself."
        )


def untried_steps(algorithm: Any) -> tuple[str, ...]:
    """Return the settings of an algorithm that may be step sizes but are not tried.

    A number that is declared as something else, such as a weight, is none.

    Example:
        >>> from fedbilevel import FedBiO, SimFBO
        >>> untried_steps(FedBiO(0.1)), untried_steps(SimFBO(0.1))
        ((), ())
    """
    *_, inner = layers(algorithm)
    declared = declarations(type(inner)) if is_dataclass(inner) else {}

    def may_be_step(name: str) -> bool:
        setting = declared.get(name)
        if setting is None or setting.find(Search) is not None:
            return True
        return setting.kind is float and setting.find(Range) is None

    return tuple(
        name for name in _numbers(inner) if name not in TRIED and may_be_step(name)
    )


def _numbers(algorithm: Any) -> list[str]:
    """Return the names of the settings that are numbers and may change in a sweep."""
    leaves = jax.tree_util.tree_leaves_with_path(algorithm)
    names = [path[0].name for path, _ in leaves if hasattr(path[0], "name")]
    return list(dict.fromkeys(names))
