"""Certificates of a secure sum: kits, roots and names."""

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed448, x25519

from fedbilevel.federation.secure_sums.identity import (
    Identity,
    der,
    is_signed,
    load_kit,
    read_certificate,
)
from fedbilevel.federation.secure_sums.site import SecureSite
from fedbilevel.federation.transport import RefusedError
from tests.federation.authority import (
    Authority,
    ed25519_key,
    elliptic_key,
    rsa_key,
    write_kit,
)
from tests.federation.secure_exchange import context_of

AUTHORITY = Authority()


@pytest.mark.parametrize("key", [rsa_key, elliptic_key, ed25519_key])
def test_a_kit_is_read_from_its_files(tmp_path, key):
    identity = AUTHORITY.identity("site-1", key())
    write_kit(tmp_path, identity)
    kit = load_kit(tmp_path)
    assert kit.name == "site-1"
    assert is_signed(identity.certificate, b"text", kit.sign(b"text"))
    assert not is_signed(identity.certificate, b"other text", kit.sign(b"text"))
    other = AUTHORITY.identity("site-1", key())
    assert not is_signed(other.certificate, b"text", kit.sign(b"text"))


@pytest.mark.parametrize("file", ["client.crt", "client.key", "rootCA.pem"])
def test_a_file_that_is_missing_or_not_valid_is_named(tmp_path, file):
    write_kit(tmp_path, AUTHORITY.identity("site-1"))
    (tmp_path / file).write_bytes(b"secret words")
    with pytest.raises(ValueError, match="Use the startup directory") as caught:
        load_kit(tmp_path)
    assert str(tmp_path / file) in str(caught.value)
    assert "secret words" not in str(caught.value)
    (tmp_path / file).unlink()
    with pytest.raises(ValueError, match="No such file"):
        load_kit(tmp_path)


@pytest.mark.parametrize(
    ("key", "encryption"),
    [
        (ed25519_key(), serialization.BestAvailableEncryption(b"password")),
        (x25519.X25519PrivateKey.generate(), serialization.NoEncryption()),
    ],
)
def test_a_private_key_with_password_or_of_another_type_is_refused(
    tmp_path, key, encryption
):
    write_kit(tmp_path, AUTHORITY.identity("site-1"))
    (tmp_path / "client.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        )
    )
    with pytest.raises(ValueError, match=r"client\.key has no private key"):
        load_kit(tmp_path)


def test_files_of_two_kits_are_refused():
    one, two = (AUTHORITY.identity("site-1") for _ in range(2))
    with pytest.raises(ValueError, match="not that of the certificate of"):
        Identity(one.certificate, one.root, two.private_key)
    with pytest.raises(ValueError, match="was not issued by the root authority"):
        Identity(one.certificate, Authority("other").root, one.private_key)


@pytest.mark.parametrize(("begin", "end"), [(-9, -2), (2, 9)])
def test_a_certificate_that_is_not_valid_today_is_refused(begin, end):
    certificate = AUTHORITY.certificate("site-1", ed25519_key(), begin, end)
    with pytest.raises(RefusedError, match=r"is valid from .* check the clock"):
        read_certificate(der(certificate), "site-1", AUTHORITY.root)


def test_weak_keys_and_other_types_of_keys_are_refused():
    for key, reason in (
        (rsa_key(1024), "has 1024 bits, fewer than 2048"),
        (ed448.Ed448PrivateKey.generate(), "use RSA, an elliptic curve or Ed25519"),
    ):
        certificate = AUTHORITY.certificate("site-1", key)
        with pytest.raises(RefusedError, match=reason):
            read_certificate(der(certificate), "site-1", AUTHORITY.root)


def test_a_certificate_of_another_site_does_not_certify():
    # Site 1 issues a certificate for site 2 with its own key.
    key = ed25519_key()
    second = Authority("site-1", key)
    forged = second.certificate("site-2", ed25519_key())
    with pytest.raises(RefusedError, match="was not issued by"):
        read_certificate(der(forged), "site-2", AUTHORITY.root)


def test_a_site_must_be_in_the_roster():
    with pytest.raises(ValueError, match="Add it, or use the right kit"):
        SecureSite(AUTHORITY.identity("hospital"), context_of(3))


@pytest.mark.slow
def test_certificates_of_nvidia_flare_are_accepted(tmp_path):
    from nvflare.lighter import utils

    root_key, root_public = utils.generate_keys()
    site_key, site_public = utils.generate_keys()
    project, site = utils.Identity("project"), utils.Identity("site-1", "hospital")
    root = utils.generate_cert(project, project, root_key, root_public, ca=True)
    certificate = utils.generate_cert(site, project, root_key, site_public)
    (tmp_path / "rootCA.pem").write_bytes(utils.serialize_cert(root))
    (tmp_path / "client.crt").write_bytes(utils.serialize_cert(certificate))
    (tmp_path / "client.key").write_bytes(utils.serialize_pri_key(site_key))
    kit = load_kit(tmp_path)
    assert kit.name == "site-1"
    assert is_signed(certificate, b"text", kit.sign(b"text"))
