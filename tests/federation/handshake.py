"""The first bytes between a client and the server of a federation."""

import socket
import ssl
from pathlib import Path

from fedbilevel.flare.provisioning import Kits, port
from tests.waiting import HANG


def hello(kits: Kits, shown: Path | None) -> bytes:
    """Return the server's first bytes to a client with the certificate of a kit."""
    trusted = kits.server / "startup" / "rootCA.pem"
    context = ssl.create_default_context(cafile=trusted)
    context.set_alpn_protocols(["h2"])
    # With TLS 1.3 a client finishes its handshake before the server verifies it.
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    if shown is not None:
        startup = shown / "startup"
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
    address = ("127.0.0.1", port(kits.server))
    with (
        socket.create_connection(address, timeout=HANG) as connection,
        context.wrap_socket(connection, server_hostname="localhost") as secured,
    ):
        return secured.recv(100)
