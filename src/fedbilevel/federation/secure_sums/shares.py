"""Shares of secrets by Shamir's scheme over GF(2^128), and their encryption."""

import secrets
from collections.abc import Mapping
from typing import NamedTuple

from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from fedbilevel.federation.secure_sums.agreement import agree
from fedbilevel.federation.secure_sums.context import joined
from fedbilevel.federation.secure_sums.secret import SEED, Secret
from fedbilevel.federation.transport import RefusedError, readable

NONCE, TAG = 12, 16
ENCRYPTED = NONCE + 2 * SEED + TAG
"""Bytes of the encrypted shares that one site sends to another."""
LABEL = b"fedbilevel secure sum: shares"


class Shares(NamedTuple):
    """A site's shares of the two secrets of another site.

    Attributes:
        mask_seed: share of the seed of the private mask key.
        seed: share of the seed of the self-mask.
    """

    mask_seed: Secret
    seed: Secret


def split(secret: Secret, threshold: int, count: int) -> list[Secret]:
    """Return shares of a secret, for the positions 1 to `count`.

    Args:
        secret: 16 bytes.
        threshold: number of shares that give the secret; fewer give nothing.
        count: number of shares.

    Example:
        >>> shares = split(Secret(bytes(16)), threshold=2, count=3)
        >>> combine({3: shares[2], 1: shares[0]}) == Secret(bytes(16))
        True
    """
    shares = Shamir.split(threshold, count, secret.content)
    return [Secret(share) for _, share in shares]


def combine(shares: Mapping[int, Secret]) -> Secret:
    """Return the secret of as many shares as the threshold, by position.

    Wrong shares give a wrong secret; the caller checks it.

    Example:
        >>> combine({1: Secret(bytes(16)), 2: Secret(bytes(16))}) == Secret(bytes(16))
        True
    """
    points = [(position, share.content) for position, share in shares.items()]
    return Secret(Shamir.combine(points))


class Channel(NamedTuple):
    """The encryption of shares from one site to another.

    Attributes:
        private: private encryption key of the site that encrypts or decrypts.
        public: public encryption key of the other site.
        transcript: digest of the exchange and its public keys.
        sender: name of the site that sends shares.
        receiver: name of the site that receives them.

    Example:
        >>> from fedbilevel.federation.secure_sums.agreement import KeyPairs
        >>> a, b = KeyPairs.new(), KeyPairs.new()
        >>> shares = Shares(Secret(bytes(16)), Secret(bytes(16)))
        >>> there = Channel(a.encryption, b.public.encryption, b"", "a", "b")
        >>> here = Channel(b.encryption, a.public.encryption, b"", "a", "b")
        >>> here.decrypt(there.encrypt(shares)) == shares
        True
    """

    private: Secret
    public: bytes
    transcript: bytes
    sender: str
    receiver: str

    def encrypt(self, shares: Shares) -> bytes:
        """Return encrypted shares."""
        nonce = secrets.token_bytes(NONCE)
        text = shares.mask_seed.content + shares.seed.content
        return nonce + self._cipher.encrypt(nonce, text, self._bound)

    def decrypt(self, content: bytes) -> Shares:
        """Return the shares.

        Raises:
            RefusedError: if they are not of this sender, receiver and exchange.
        """
        try:
            text = self._cipher.decrypt(content[:NONCE], content[NONCE:], self._bound)
        except (InvalidTag, ValueError):
            text = b""
        if len(text) != 2 * SEED:
            raise RefusedError(
                f'the shares of site "{readable(self.sender)}" cannot be decrypted: '
                "they were changed on the way, or the server showed the sites "
                "different keys; check who operates the server, and start a new "
                "exchange"
            )
        return Shares(Secret(text[:SEED]), Secret(text[SEED:]))

    @property
    def _cipher(self) -> ChaCha20Poly1305:
        # The direction is in the key: both directions never use one key.
        names = self.sender, self.receiver
        key = agree(self.private, self.public, self.transcript, LABEL, *names)
        return ChaCha20Poly1305(key.content)

    @property
    def _bound(self) -> bytes:
        return joined(self.transcript, self.sender.encode(), self.receiver.encode())
