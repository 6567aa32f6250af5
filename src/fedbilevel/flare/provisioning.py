"""Startup kits for a rehearsal on this machine: certificates, roles, directories."""

import json
import logging
import random
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedbilevel.federation.site_rules import REHEARSAL
from fedbilevel.flare.kit_settings import prepare
from fedbilevel.flare.message_limits import DEFAULT

PROJECT = "rehearsal"
SERVER = "localhost"
ADMIN = "admin@rehearsal.org"
LEAD = "lead@rehearsal.org"


class Kits(NamedTuple):
    """The paths of a federation's startup kits.

    Attributes:
        server: Kit of the server.
        sites: Kit of each site, by name.
        admin: Kit of the project's administrator.
        lead: Kit of the submitter of jobs.
    """

    server: Path
    sites: Mapping[str, Path]
    admin: Path
    lead: Path


def provision_kits(
    directory: Path, sites: Sequence[str], message_limit: int = DEFAULT
) -> Kits:
    """Create startup kits for a server and sites on this machine, if missing.

    The server listens on the loopback interface only, at a free port, and stores jobs
    and snapshots in its kit. Sites use the rules `REHEARSAL`: they draw the samples of
    a simulation, without limits.

    Args:
        directory: Directory of the kits.
        sites: Names of the sites.
        message_limit: Maximum bytes of a message.

    Returns:
        Paths of the kits.

    Raises:
        ValueError: If the directory contains the kits of other sites, or its path
            contains a space.
        RuntimeError: If nvflare could not create a kit.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as directory:
        ...     kits = provision_kits(Path(directory), ["site-1"])
        ...     (kits.sites["site-1"] / "startup" / "client.crt").exists()
        True
    """
    if any(map(str.isspace, str(directory.absolute()))):
        raise ValueError(
            f"The path {str(directory.absolute())!r} contains a space, which NVIDIA "
            "FLARE does not support; give a --directory without spaces."
        )
    parent = directory.absolute() / PROJECT / "prod_00"
    site_kits = {name: parent / name for name in sites}
    kits = Kits(parent / SERVER, site_kits, parent / ADMIN, parent / LEAD)
    if parent.exists():
        names = {kit.name for kit in parent.iterdir()} - {SERVER, ADMIN, LEAD}
        if names != set(sites):
            raise ValueError(
                f"{directory} contains the kits of {', '.join(sorted(names))}, not of "
                f"{', '.join(sorted(sites))}; choose another directory."
            )
    else:
        _provision(_project(sites, _free_port()), directory.absolute())
    for kit in (kits.server, *kits.sites.values()):
        # A rehearsal runs the user's own file, and must equal a simulation.
        prepare(kit, REHEARSAL, message_limit, code_from_outside=True)
    return kits


def port(server: Path) -> int:
    """Return the port on which the server of a kit listens.

    Args:
        server: Kit of a server.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as directory:
        ...     kits = provision_kits(Path(directory), ["site-1"])
        ...     20000 <= port(kits.server) < 32768
        True
    """
    settings = json.loads((server / "startup" / "fed_server.json").read_text())
    return int(settings["servers"][0]["service"]["target"].rpartition(":")[2])


def is_free(port: int) -> bool:
    """Return whether a server could listen at a port of the loopback interface.

    Args:
        port: Port number.

    Example:
        >>> with socket.create_server(("127.0.0.1", 0)) as server:
        ...     is_free(server.getsockname()[1])
        False
    """
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    # Below the ephemeral ports of outgoing connections, so that the port is still free
    # when the watchdog restarts the server.
    ports = random.sample(range(20000, 32768), 100)
    return next(port for port in ports if is_free(port))


def _project(sites: Sequence[str], port: int) -> dict[str, Any]:
    builder = "nvflare.lighter.impl"
    participants = [
        {"name": SERVER, "type": "server", "org": PROJECT, "fed_learn_port": port},
        *({"name": name, "type": "client", "org": PROJECT} for name in sites),
        {"name": ADMIN, "type": "admin", "org": PROJECT, "role": "project_admin"},
        {"name": LEAD, "type": "admin", "org": PROJECT, "role": "lead"},
    ]
    return {
        "api_version": 3,
        "name": PROJECT,
        "description": "a federation on one machine",
        "participants": participants,
        "builders": [
            {"path": f"{builder}.workspace.WorkspaceBuilder"},
            {
                "path": f"{builder}.static_file.StaticFileBuilder",
                "args": {"config_folder": "config", "scheme": "grpc"},
            },
            {"path": f"{builder}.cert.CertBuilder"},
            {"path": f"{builder}.signature.SignatureBuilder"},
        ],
    }


def _provision(project: dict[str, Any], directory: Path) -> None:
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.prov_utils import prepare_builders
    from nvflare.lighter.provision import prepare_project
    from nvflare.lighter.provisioner import Provisioner

    # It will contain all private keys, including the certificate authority's.
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    (directory / PROJECT).mkdir(mode=0o700)
    provisioner = Provisioner(str(directory), prepare_builders(project))
    # Without a logger the provisioner prints.
    log = logging.getLogger(__name__)
    context = provisioner.provision(prepare_project(project), logger=log)
    if context.get(CtxKey.BUILD_ERROR):
        reasons = "; ".join(context.get(CtxKey.ERRORS, []))
        raise RuntimeError(
            f"NVIDIA FLARE could not create startup kits in {directory}: "
            f"{reasons.rstrip('.')}. Correct this, delete {directory / PROJECT}, and "
            "repeat the command."
        )
