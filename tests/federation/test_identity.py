"""Only certificates of the federation connect, each under its own name."""

import datetime
import json
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from fedbilevel.flare.provisioning import Kits, port, provision_kits
from fedbilevel.flare.rehearsals import connected_sites, rehearsal, session, start, stop
from tests.federation.handshake import hello
from tests.waiting import HANG, until

SITES = ["site-1", "site-2"]
pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kits]:
    """A federation in which only site-1 runs; intruders use site-2's kit."""
    with rehearsal(tmp_path_factory.mktemp("federation"), SITES) as kits:
        stop(kits.sites["site-2"])
        with session(kits) as administrator:
            administrator.remove_client("site-2")
        yield kits


@pytest.fixture
def intruder(kits: Kits, tmp_path: Path) -> Path:
    """A copy of site-2's kit, for forgeries."""
    return Path(
        shutil.copytree(
            kits.sites["site-2"],
            tmp_path / "intruder",
            ignore=shutil.ignore_patterns("log.txt"),
        )
    )


# The program of a site's kit; an intruder may change it before it runs.
PROGRAM = """
import runpy
{change}
runpy.run_module("nvflare.private.fed.app.client.client_train", run_name="__main__")
"""
# The intruder connects under its own name, but registers under another.
REGISTER_AS_SITE_1 = """
from nvflare.private.fed.authenticator import Authenticator
authenticate = Authenticator.authenticate
def in_another_name(self, *rest):
    self.client_name = "site-1"
    return authenticate(self, *rest)
Authenticator.authenticate = in_another_name
"""


@contextmanager
def attempt(kit: Path, name: str, change: str = "") -> Iterator[None]:
    """Start a site's process as its kit does, under a name."""
    program = [sys.executable, "-u", "-c", PROGRAM.format(change=change)]
    settings = ["secure_train=true", f"uid={name}", "org=rehearsal"]
    settings.append("config_folder=config")
    arguments = ["-m", str(kit), "-s", "fed_client.json", "--set", *settings]
    with (kit / "console.txt").open("wb") as console:
        process = subprocess.Popen(
            [*program, *arguments], stdout=console, stderr=console
        )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def log_of(kit: Path) -> str:
    log = kit / "log.txt"
    return log.read_text() if log.exists() else ""


def show_another_authority(intruder: Path, directory: Path) -> None:
    """Use a certificate with the same name from another federation."""
    other = provision_kits(directory, SITES).sites["site-2"] / "startup"
    for name in ("client.crt", "client.key"):
        shutil.copy(other / name, intruder / "startup" / name)
    # A site verifies its own certificate first. This one trusts both authorities, so
    # that it calls the server, and the server has to refuse.
    roots = intruder / "startup" / "rootCA.pem"
    roots.write_text((other / "rootCA.pem").read_text() + roots.read_text())


def let_expire(intruder: Path, kits: Kits) -> None:
    """Replace the certificate by an expired one of the right authority."""
    state = json.loads((kits.server.parents[1] / "state" / "cert.json").read_text())
    authority = serialization.load_pem_private_key(state["root_pri_key"].encode(), None)
    assert isinstance(authority, rsa.RSAPrivateKey)
    shown = intruder / "startup" / "client.crt"
    valid = x509.load_pem_x509_certificate(shown.read_bytes())
    current = datetime.datetime.now(datetime.UTC)
    expired = x509.CertificateBuilder(
        valid.issuer,
        valid.subject,
        valid.public_key(),
        x509.random_serial_number(),
        current - datetime.timedelta(days=2),
        current - datetime.timedelta(days=1),
        list(valid.extensions),
    ).sign(authority, hashes.SHA256())
    shown.write_bytes(expired.public_bytes(serialization.Encoding.PEM))


def test_the_server_speaks_to_one_who_shows_a_certificate_of_its_own(kits):
    assert hello(kits, kits.sites["site-2"])


def test_no_certificate_no_handshake(kits):
    with pytest.raises((ssl.SSLError, ConnectionError)):
        hello(kits, None)


def test_no_encryption_no_answer(kits):
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    address = ("127.0.0.1", port(kits.server))
    with socket.create_connection(address, timeout=HANG) as connection:
        connection.sendall(preface)
        assert connection.recv(100) == b""


def test_a_certificate_of_another_authority_is_refused(kits, intruder, tmp_path):
    show_another_authority(intruder, tmp_path / "other")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        hello(kits, intruder)
    with attempt(intruder, "site-2"):
        # It connects, is disconnected, and connects again.
        until(lambda: log_of(intruder).count("re-challenge") >= 2)
        assert connected_sites(kits) == {"site-1"}
    assert "Successfully registered" not in log_of(intruder)


def test_an_expired_certificate_is_refused(kits, intruder):
    let_expire(intruder, kits)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        hello(kits, intruder)


def test_a_site_does_not_even_call_with_an_expired_certificate(kits, intruder):
    let_expire(intruder, kits)
    with attempt(intruder, "site-2"):
        until(lambda: log_of(intruder).count("registered aux handler") >= 2)
        # A site with a valid certificate connects within a second of this message. On a
        # busy machine it may take longer than 4 s: then this test is weaker.
        time.sleep(4)
        assert "created secure channel" not in log_of(intruder)
        assert connected_sites(kits) == {"site-1"}


def test_no_site_connects_in_the_name_of_another(kits, intruder):
    configuration = intruder / "startup" / "fed_client.json"
    configuration.write_text(configuration.read_text().replace("site-2", "site-1"))
    refused = "authenticated as 'site-2' but claimed endpoint 'site-1'"
    with attempt(intruder, "site-1"):
        until(lambda: refused in log_of(kits.server))
        assert_only_the_true_site_1(kits)
    assert "Successfully registered" not in log_of(intruder)


def test_no_site_registers_in_the_name_of_another(kits, intruder):
    with attempt(intruder, "site-2", REGISTER_AS_SITE_1):
        until(lambda: "CNMismatch" in log_of(kits.server))
        assert_only_the_true_site_1(kits)
    assert "Successfully registered" not in log_of(intruder)


def assert_only_the_true_site_1(kits: Kits) -> None:
    with session(kits) as administrator:
        (answer,) = administrator.get_client_env("site-1")
    assert connected_sites(kits) == {"site-1"}
    # A message to site-1 arrives at the real site-1.
    assert answer["workspace"] == str(kits.sites["site-1"])


def test_the_true_site_gets_in_the_way_the_others_tried(kits):
    site = kits.sites["site-2"]
    with attempt(site, "site-2"):
        until(lambda: log_of(site).count("Successfully registered") == 2)
        assert connected_sites(kits) == set(SITES)


def test_a_disabled_site_is_refused_until_enabled_whatever_restarts(kits, intruder):
    with session(kits) as administrator:
        administrator.disable_client("site-2")
    stop(kits.server)
    start(kits.server)
    refused = "Reject disabled client registration: site-2"
    with attempt(intruder, "site-2"):
        until(lambda: refused in log_of(kits.server))
    assert "Successfully registered" not in log_of(intruder)
    with session(kits) as administrator:
        administrator.enable_client("site-2")
    with attempt(intruder, "site-2"):
        until(lambda: "Successfully registered" in log_of(intruder))
