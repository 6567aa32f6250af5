"""Certificates: who signed a message of a secure sum.

Keys of RSA (the kits of NVIDIA FLARE), of elliptic curves and Ed25519 are supported.
Certificates are issued by the root directly, as in those kits.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.x509.oid import NameOID

from fedbilevel.federation.transport import RefusedError, readable

SMALLEST_RSA = 2048
"""Minimum bits of an RSA key."""
PSS = padding.PSS(padding.MGF1(hashes.SHA256()), hashes.SHA256().digest_size)
PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


@dataclass(frozen=True)
class Identity:
    """A site's certificate, its private key, and the root that the site trusts.

    Args:
        certificate: certificate of the site, issued by the root.
        root: certificate of the root authority.
        private_key: private key of the certificate; in no representation.

    Raises:
        ValueError: if the key or the root is not that of the certificate.

    Example:
        >>> identity = self_signed("north")
        >>> identity.name
        'north'
        >>> is_signed(identity.certificate, b"text", identity.sign(b"text"))
        True
    """

    certificate: x509.Certificate
    root: x509.Certificate
    private_key: PrivateKey = field(repr=False)

    def __post_init__(self) -> None:
        name = common_name(self.certificate)
        if self.private_key.public_key() != self.certificate.public_key():
            raise ValueError(
                f'The private key is not that of the certificate of "{name}". Use '
                "client.crt and client.key of the same kit."
            )
        try:
            read_certificate(der(self.certificate), name, self.root)
        except RefusedError as error:
            raise ValueError(f"The certificate of this site: {error}.") from None

    @property
    def name(self) -> str:
        """The site's name: the common name in its certificate."""
        return common_name(self.certificate)

    def sign(self, text: bytes) -> bytes:
        """Return the signature of a text."""
        key = self.private_key
        if isinstance(key, rsa.RSAPrivateKey):
            return key.sign(text, PSS, hashes.SHA256())
        if isinstance(key, ec.EllipticCurvePrivateKey):
            return key.sign(text, ec.ECDSA(hashes.SHA256()))
        return key.sign(text)


def is_signed(certificate: x509.Certificate, text: bytes, signature: bytes) -> bool:
    """Return whether a signature of a text is by the key of a certificate.

    Example:
        >>> identity = self_signed("north")
        >>> is_signed(identity.certificate, b"text", b"no signature")
        False
    """
    key = certificate.public_key()
    try:
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, text, PSS, hashes.SHA256())
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, text, ec.ECDSA(hashes.SHA256()))
        elif isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, text)
        else:
            return False
    except InvalidSignature:
        return False
    return True


def read_certificate(
    content: bytes, name: str, root: x509.Certificate
) -> x509.Certificate:
    """Return the certificate of a site.

    Args:
        content: certificate in DER, not validated.
        name: the required common name.
        root: the root authority, which must have issued the certificate.

    Raises:
        RefusedError: if the certificate is not valid for this name.

    Example:
        >>> read_certificate(b"", "north", self_signed("north").root)
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: it is not a certificate in DER;
        provision the site again
    """
    # Anything can be wrong in hostile bytes, and the library also warns about some of
    # it: whatever happens here, the certificate is refused.
    try:
        certificate = x509.load_der_x509_certificate(content)
        actual = common_name(certificate)
        key = certificate.public_key()
    except Exception:
        raise RefusedError(
            "it is not a certificate in DER; provision the site again"
        ) from None
    if actual != name:
        raise RefusedError(
            f"it was issued to {readable(actual[:64])!r}, not to {readable(name)!r}; a "
            "site must use its own kit, and its name in the roster"
        )
    try:
        certificate.verify_directly_issued_by(root)
    except Exception:
        raise RefusedError(
            f"it was not issued by the root authority {common_name(root)!r} that this "
            "site trusts; use kits of one project, with the same rootCA.pem"
        ) from None
    now = datetime.now(UTC)
    for each in (certificate, root):
        begin, end = each.not_valid_before_utc, each.not_valid_after_utc
        if not begin <= now <= end:
            raise RefusedError(
                f"the certificate of {readable(common_name(each))!r} is valid from "
                f"{begin:%Y-%m-%d} to {end:%Y-%m-%d}; check the clock, or provision "
                "new kits"
            )
    if not isinstance(key, PublicKey):
        raise RefusedError(
            f"its key is of type {type(key).__name__}; use RSA, an elliptic curve or "
            "Ed25519"
        )
    if isinstance(key, rsa.RSAPublicKey) and key.key_size < SMALLEST_RSA:
        raise RefusedError(
            f"its RSA key has {key.key_size} bits, fewer than {SMALLEST_RSA}; "
            "provision new kits"
        )
    return certificate


def load_kit(directory: Path) -> Identity:
    """Return the identity of a kit: client.crt, client.key and rootCA.pem.

    Args:
        directory: directory `startup` of a kit of NVIDIA FLARE, or any other one with
            these files in PEM.

    Raises:
        ValueError: if a file is missing or not valid.

    Example:
        >>> load_kit(Path("no-such-kit"))
        Traceback (most recent call last):
        ...
        ValueError: Cannot read no-such-kit/client.crt (No such file or directory). Use
        the startup directory of the site's kit.
    """
    certificate = _certificate(directory / "client.crt")
    root = _certificate(directory / "rootCA.pem")
    path = directory / "client.key"
    content = _content(path)
    key: object = None
    # The library's own text is omitted: it could show a part of the file.
    with suppress(ValueError, TypeError, UnsupportedAlgorithm):
        key = serialization.load_pem_private_key(content, password=None)
    if not isinstance(key, PrivateKey):
        raise ValueError(
            f"{path} has no private key without password, of RSA, an elliptic curve or "
            "Ed25519. Use the startup directory of the site's kit."
        )
    return Identity(certificate, root, key)


def load_root(directory: Path) -> x509.Certificate:
    """Return the certificate of the root authority of a kit.

    Args:
        directory: directory with rootCA.pem.

    Raises:
        ValueError: if the file is missing or not valid.

    Example:
        >>> load_root(Path("no-such-kit"))
        Traceback (most recent call last):
        ...
        ValueError: Cannot read no-such-kit/rootCA.pem (No such file or directory). Use
        the startup directory of the site's kit.
    """
    return _certificate(directory / "rootCA.pem")


def self_signed(name: str) -> Identity:
    """Return an identity for examples, whose certificate is its own root for an hour.

    Example:
        >>> self_signed("north").root == self_signed("north").root
        False
    """
    key = ed25519.Ed25519PrivateKey.generate()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(hours=1))
        .sign(key, None)
    )
    return Identity(certificate, certificate, key)


def common_name(certificate: x509.Certificate) -> str:
    """Return the one common name of a certificate.

    Raises:
        ValueError: if there is none, or more than one.

    Example:
        >>> common_name(self_signed("north").certificate)
        'north'
    """
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1:
        raise ValueError(
            f"The certificate has {len(names)} common names. Create a kit with one."
        )
    return str(names[0].value)


def der(certificate: x509.Certificate) -> bytes:
    """Return a certificate in DER.

    Example:
        >>> der(self_signed("north").certificate)[:1]
        b'0'
    """
    return certificate.public_bytes(serialization.Encoding.DER)


def _certificate(path: Path) -> x509.Certificate:
    content = _content(path)
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError:
        raise ValueError(
            f"{path} has no certificate in PEM. Use the startup directory of the "
            "site's kit."
        ) from None


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(
            f"Cannot read {path} ({error.strerror}). Use the startup directory of the "
            "site's kit."
        ) from error
