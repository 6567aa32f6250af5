"""Startup kits for a federation on this machine: certificates, roles, directories."""

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
    """Where the startup kits of a federation are.

    Attributes:
        server: Kit of the server.
        sites: Kit of each site, by name.
        admin: Kit of the project's administrator.
        lead: Kit of whoever submits jobs.

    Example:
        >>> sites = {"site-1": Path("site-1")}
        >>> Kits(Path("server"), sites, Path("admin"), Path("lead")).admin.name
        'admin'
    """

    server: Path
    sites: Mapping[str, Path]
    admin: Path
    lead: Path


def provision_kits(
    directory: Path, sites: Sequence[str], message_limit: int = DEFAULT
) -> Kits:
    """Startup kits for a server and sites on this machine, made if not there yet.

    The server answers on the loopback only, at a free port, and keeps jobs and
    snapshots in its own kit. Sites draw the samples of a simulation and answer
    whatever they are asked: their rules are those of a rehearsal.

    Args:
        directory: Where the kits are, or are made.
        sites: Names of the sites.
        message_limit: Bytes of the largest message.

    Returns:
        Where each kit is.

    Raises:
        ValueError: The directory holds the kits of other sites, or has a space in its
            path.
        RuntimeError: A kit could not be made.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as directory:
        ...     kits = provision_kits(Path(directory), ["site-1"])
        ...     (kits.sites["site-1"] / "startup" / "client.crt").exists()
        True
    """
    if any(map(str.isspace, str(directory.absolute()))):
        raise ValueError(
            f"{str(directory.absolute())!r} has a space in it, with which NVIDIA FLARE "
            "starts no process; give a --directory without one."
        )
    made = directory.absolute() / PROJECT / "prod_00"
    own = {name: made / name for name in sites}
    kits = Kits(made / SERVER, own, made / ADMIN, made / LEAD)
    if made.exists():
        found = {kit.name for kit in made.iterdir()} - {SERVER, ADMIN, LEAD}
        if found != set(sites):
            raise ValueError(
                f"{directory} holds the kits of {', '.join(sorted(found))}, not of "
                f"{', '.join(sorted(sites))}; choose another directory."
            )
    else:
        _provision(_project(sites, _free_port()), directory.absolute())
    for kit in (kits.server, *kits.sites.values()):
        # Whoever rehearses runs a file of their own, and compares it with a simulation.
        prepare(kit, REHEARSAL, message_limit, code_from_outside=True)
    return kits


def port(server: Path) -> int:
    """The one port on which the server of a kit answers.

    Args:
        server: Kit of a server.

    Returns:
        The port.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as directory:
        ...     20000 <= port(provision_kits(Path(directory), ["site-1"]).server) < 32768
        True
    """
    said = json.loads((server / "startup" / "fed_server.json").read_text())
    return int(said["servers"][0]["service"]["target"].rpartition(":")[2])


def is_free(port: int) -> bool:
    """Whether nothing on this machine's loopback answers at a port yet.

    Args:
        port: The port.

    Returns:
        Whether a server could listen there.

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
    # Below the ports that systems give to outgoing connections: a server that its
    # watchdog starts again must find its port free.
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
                "args": {"config_directory": "config", "scheme": "grpc"},
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

    # It will hold the private keys of all, that of the authority included.
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    (directory / PROJECT).mkdir(mode=0o700)
    provisioner = Provisioner(str(directory), prepare_builders(project))
    # Without a logger it prints.
    log = logging.getLogger(__name__)
    done = provisioner.provision(prepare_project(project), logger=log)
    if done.get(CtxKey.BUILD_ERROR):
        reasons = "; ".join(done.get(CtxKey.ERRORS, []))
        raise RuntimeError(f"no startup kits could be made in {directory}: {reasons}")
