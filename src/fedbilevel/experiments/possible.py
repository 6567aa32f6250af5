"""Values that no experiment can have are refused with the field they stand in."""

from typing import Any


class ImpossibleValueError(ValueError):
    """A field with a value that cannot be.

    Attributes:
        field: its name.

    Example:
        >>> ImpossibleValueError("devices", "give at least 1, not 0.").field
        'devices'
    """

    def __init__(self, field: str, words: str) -> None:
        super().__init__(f"{field}: {words}")
        self.field, self.words = field, words


def at_least(one: int, chosen: Any, *names: str) -> None:
    """Refuse numbers below one; none is fine.

    Example:
        >>> from types import SimpleNamespace
        >>> at_least(1, SimpleNamespace(devices=0), "devices")
        Traceback (most recent call last):
        ...
        fedbilevel.experiments.possible.ImpossibleValueError: devices: give at least 1,
        not 0.
    """
    for name in names:
        value = getattr(chosen, name)
        if value is not None and not value >= one:
            raise ImpossibleValueError(name, f"give at least {one}, not {value}.")


def above_zero(chosen: Any, *names: str) -> None:
    """Refuse numbers that are not above zero; none is fine.

    Example:
        >>> from types import SimpleNamespace
        >>> above_zero(SimpleNamespace(ridge=0.1), "ridge")
    """
    for name in names:
        value = getattr(chosen, name)
        if value is not None and not value > 0:
            raise ImpossibleValueError(name, f"give a number above 0, not {value}.")
