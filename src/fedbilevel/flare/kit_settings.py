"""The settings of a startup kit that this package needs, besides those of nvflare."""

import json
from pathlib import Path
from typing import Any

from fedbilevel.deployment.site_files import write_site_files
from fedbilevel.federation.site_rules import SiteRules
from fedbilevel.flare.kits import require_kit
from fedbilevel.flare.message_limits import DEFAULT, SETTING

COMMUNICATION = "comm_config.json"
POLICY = "authorization.json"
# A site sends a heartbeat every 10 s; after three misses it counts as dead.
DEAD_AFTER = 30
# Classes that a job of this package names. A server or site refuses a job that names
# others, unless the job contains code and its submitter has the right to bring code.
CLASSES = (
    "fedbilevel.flare.collab_server.CollabServer",
    "fedbilevel.flare.collab_site.CollabSite",
    "fedbilevel.flare.site_failures.LateSites",
    "nvflare.collab.runtime.controller.CollabController",
    "nvflare.collab.runtime.executor.CollabExecutor",
)
# Seconds after which an unfinished message without new data is dropped, which frees its
# thread and memory (300 by default).
READ_TIMEOUT, STALLED = "streaming_read_timeout", 60
FAILURES = {
    "id": "fedbilevel_site_failures",
    "path": "fedbilevel.flare.site_failures.SiteFailures",
    "args": {},
}


# Rights of a role for which nvflare's policy has a single value instead of a table.
RIGHTS = (
    "submit_job",
    "clone_job",
    "manage_job",
    "download_job",
    "view",
    "operate",
    "shell_commands",
    "app_command",
)


def prepare(
    kit: Path,
    rules: SiteRules = SiteRules(),
    message_limit: int = DEFAULT,
    *,
    code_from_outside: bool = False,
) -> None:
    """Write the settings of a kit's `local` directory, on the machine that will run it.

    Server and sites allow the classes that jobs of this package name; a site allows no
    others until its operator adds them. A server stores jobs and snapshots in its kit,
    not in `/tmp/nvflare`, detects a dead site after 30 s, not 10 minutes, and allows
    the role `lead` to request the status of their own jobs. A site does not send its
    error log, and refuses all jobs that contain code, unless it already has a policy:
    it executes problem files that were reviewed there (`review`). It gets a secret salt
    and the rules in `site_rules.toml`, which its operator may edit. The kit's processes
    refuse messages larger than the limit before they allocate memory. All other
    settings stay unchanged, including existing rules and salt.

    Args:
        kit: Startup kit of a server or site.
        rules: Rules of a site that has none yet.
        message_limit: Maximum bytes of a message; `message_limits.message_limit`
            returns the limit that a model needs.
        code_from_outside: Whether a site accepts code from users with the right `byoc`.
            An existing policy stays unchanged, even if an earlier call wrote it: remove
            `local/authorization.json` to replace it.

    Raises:
        ValueError: If the directory is not such a kit.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from fedbilevel.flare.provisioning import provision_kits
        >>> with TemporaryDirectory() as directory:
        ...     server = provision_kits(Path(directory), ["site-1"]).server
        ...     prepare(server)
        ...     written = (server / "local" / "resources.json").read_text()
        >>> json.loads(written)["servers"][0]["heart_beat_timeout"]
        30
    """
    require_kit(kit)
    first = not (kit / "local" / "resources.json").exists()
    resources = _settings(kit / "local", "resources.json")
    is_site = "servers" not in resources
    if is_site and first:
        # Some classes that nvflare allows by default read tables: a job that names
        # them would bypass the rules of the site.
        resources["class_allow_list"] = []
        resources["class_list_enforcement_mode"] = "enforce"
    allowed = resources.setdefault("class_allow_list", [])
    allowed += [name for name in CLASSES if name not in allowed]
    if not is_site:
        _store_in_kit(resources, kit.absolute())
        _allow_status_requests(kit / "local")
    else:
        # Errors may quote data. (nvflare 2.9.0 ignores the setting in a project file.)
        resources["allow_log_streaming"] = False
        write_site_files(kit / "local", rules)
        if not code_from_outside:
            _refuse_code(kit / "local")
    _write(kit / "local", "resources.json", resources)
    file = kit / "local" / COMMUNICATION
    communication = json.loads(file.read_text()) if file.exists() else {}
    limits = {SETTING: message_limit, READ_TIMEOUT: STALLED}
    _write(kit / "local", COMMUNICATION, communication | limits)


def _store_in_kit(resources: dict[str, Any], kit: Path) -> None:
    resources["servers"][0]["heart_beat_timeout"] = DEAD_AFTER
    storage = resources["snapshot_persistor"]["args"]["storage"]
    storage["args"]["root_dir"] = str(kit / "snapshots")
    components = resources["components"]
    components += [FAILURES] * (FAILURES not in components)
    for component in components:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(kit / "jobs")


def _allow_status_requests(local: Path) -> None:
    """Grant submitters a right that nvflare gives to project administrators only."""
    policy = _settings(local, POLICY)
    rights = policy["permissions"].get("lead")
    # A policy may have a single value for all rights instead of a table.
    if isinstance(rights, dict):
        rights.setdefault("app_command", "n:submitter")
        _write(local, POLICY, policy)


def _refuse_code(local: Path) -> None:
    """Write a policy that refuses jobs with code, unless the site has a policy."""
    if (local / POLICY).exists():
        return
    policy = _settings(local, POLICY)
    for role, rights in policy["permissions"].items():
        table = dict.fromkeys(RIGHTS, rights) if isinstance(rights, str) else rights
        policy["permissions"][role] = {**table, "byoc": "none"}
    _write(local, POLICY, policy)


def _settings(local: Path, name: str) -> dict[str, Any]:
    """Return the settings of a kit, or the defaults that nvflare provision wrote."""
    file = local / name
    if not file.exists():
        file = local / f"{name}.default"
    settings: dict[str, Any] = json.loads(file.read_text())
    return settings


def _write(local: Path, name: str, settings: dict[str, Any]) -> None:
    (local / name).write_text(json.dumps(settings, indent=2))
