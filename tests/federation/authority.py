"""A root authority that issues certificates like those of NVIDIA FLARE's kits."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.x509.oid import NameOID

from fedbilevel.federation.secure_sums.identity import Identity, PrivateKey

DAY = timedelta(days=1)
PEM = serialization.Encoding.PEM


def ed25519_key() -> PrivateKey:
    return ed25519.Ed25519PrivateKey.generate()


def elliptic_key() -> PrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def rsa_key(bits: int = 2048) -> PrivateKey:
    return rsa.generate_private_key(65537, bits)


class Authority:
    def __init__(self, name: str = "project", key: PrivateKey | None = None) -> None:
        self._name = name
        self._key = key or ed25519_key()
        self.root = self.certificate(name, self._key)

    def certificate(
        self,
        name: str,
        key: PrivateKey | ed448.Ed448PrivateKey,
        begin: int = -1,
        end: int = 1,
    ) -> x509.Certificate:
        """Return a certificate that is valid from and to these days from now."""
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(common_name(name))
            .issuer_name(common_name(self._name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begin * DAY)
            .not_valid_after(now + end * DAY)
            .sign(
                self._key,
                None
                if isinstance(self._key, ed25519.Ed25519PrivateKey)
                else hashes.SHA256(),
            )
        )

    def identity(self, name: str, key: PrivateKey | None = None) -> Identity:
        key = key or ed25519_key()
        return Identity(self.certificate(name, key), self.root, key)

    def identities(self, names: Sequence[str]) -> dict[str, Identity]:
        return {name: self.identity(name) for name in names}


def common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def write_kit(directory: Path, identity: Identity) -> None:
    for file, certificate in (
        ("client.crt", identity.certificate),
        ("rootCA.pem", identity.root),
    ):
        (directory / file).write_bytes(certificate.public_bytes(PEM))
    (directory / "client.key").write_bytes(
        identity.private_key.private_bytes(
            PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
