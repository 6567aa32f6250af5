"""Secret bytes, which no text, log or pickle shows."""

import hmac
import secrets
from typing import NoReturn

SIZE = 32
"""Bytes of a key."""
SEED = 16
"""Bytes of a seed, from which keys are derived: one element of GF(2^128), so that one
call shares it. 128 bits are the security of X25519 as well."""


class Secret:
    """Bytes that are in no representation of any object that holds them.

    Args:
        content: the bytes.

    Example:
        >>> Secret(b"key")
        Secret(3 bytes)
        >>> Secret(b"key") == Secret(b"key")
        True
    """

    __slots__ = ("content",)

    def __init__(self, content: bytes) -> None:
        self.content = content

    def __repr__(self) -> str:
        return f"Secret({len(self.content)} bytes)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self.content, other.content)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A secret of an exchange cannot be pickled or copied. Save results, not "
            "the state of a secure sum."
        )


def random_secret(size: int = SIZE) -> Secret:
    """Return random bytes of the operating system.

    Example:
        >>> random_secret()
        Secret(32 bytes)
    """
    return Secret(secrets.token_bytes(size))
