"""Keys that two sites agree on by X25519, and keys derived from them by HKDF."""

from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedbilevel.federation.secure_sums.context import joined
from fedbilevel.federation.secure_sums.secret import (
    SEED,
    SIZE,
    Secret,
    random_secret,
)
from fedbilevel.federation.transport import RefusedError

MASK_KEY = b"fedbilevel secure sum: private mask key"


class PublicKeys(NamedTuple):
    """The two public keys of a site in one exchange.

    Attributes:
        encryption: key for shares.
        mask: key for masks.
    """

    encryption: bytes
    mask: bytes


class KeyPairs(NamedTuple):
    """The two private keys of a site in one exchange.

    Attributes:
        encryption: key for shares.
        mask_seed: seed of the key for masks, which is shared.

    Example:
        >>> KeyPairs.new()
        KeyPairs(encryption=Secret(32 bytes), mask_seed=Secret(16 bytes))
    """

    encryption: Secret
    mask_seed: Secret

    @classmethod
    def new(cls) -> "KeyPairs":
        """Return new private keys."""
        return cls(random_secret(), random_secret(SEED))

    @property
    def mask(self) -> Secret:
        """The private key for masks."""
        return mask_key(self.mask_seed)

    @property
    def public(self) -> PublicKeys:
        """The public keys."""
        return PublicKeys(public_key(self.encryption), public_key(self.mask))


def mask_key(seed: Secret) -> Secret:
    """Return the private key for masks of a seed.

    Example:
        >>> mask_key(Secret(bytes(16)))
        Secret(32 bytes)
    """
    return derive(seed, b"", MASK_KEY)


def public_key(private: Secret) -> bytes:
    """Return the public key of a private key.

    Example:
        >>> len(public_key(random_secret()))
        32
    """
    key = X25519PrivateKey.from_private_bytes(private.content)
    return key.public_key().public_bytes_raw()


def agree(
    private: Secret, public: bytes, transcript: bytes, label: bytes, *names: str
) -> Secret:
    """Return the key of two sites for one purpose.

    Args:
        private: private key of the one site.
        public: public key of the other site.
        transcript: digest of the exchange and its public keys.
        label: purpose of the key.
        names: names of both sites, in the order that the purpose defines.

    Raises:
        RefusedError: if the public key is not usable.

    Example:
        >>> a, b = random_secret(), random_secret()
        >>> one = agree(a, public_key(b), b"", b"test", "a", "b")
        >>> one == agree(b, public_key(a), b"", b"test", "a", "b")
        True
    """
    try:
        other = X25519PublicKey.from_public_bytes(public)
        common = X25519PrivateKey.from_private_bytes(private.content).exchange(other)
    except ValueError:
        raise RefusedError(
            "a public key is not a usable X25519 key; check the installation at the "
            "sites"
        ) from None
    return derive(Secret(common), transcript, label, *names)


def derive(secret: Secret, transcript: bytes, label: bytes, *names: str) -> Secret:
    """Return the key for one purpose that HKDF derives from a secret.

    Example:
        >>> seed = random_secret()
        >>> derive(seed, b"", b"mask", "a") == derive(seed, b"", b"mask", "b")
        False
    """
    info = joined(label, *(name.encode() for name in names))
    hkdf = HKDF(algorithm=SHA256(), length=SIZE, salt=transcript, info=info)
    return Secret(hkdf.derive(secret.content))


def is_usable(public: bytes) -> bool:
    """Return whether a public key gives a common secret: a few points never do.

    Example:
        >>> is_usable(bytes(32))
        False
    """
    try:
        agree(random_secret(), public, b"", b"check")
    except RefusedError:
        return False
    return True
