"""What this package wants set in a startup kit, besides what provisioning sets."""

import json
from pathlib import Path
from typing import Any

from fedbilevel.deployment.site_files import write_site_files
from fedbilevel.federation.site_rules import SiteRules
from fedbilevel.flare.kits import require_kit
from fedbilevel.flare.message_limits import DEFAULT, SETTING

COMMUNICATION = "comm_config.json"
POLICY = "authorization.json"
# A site sends a heartbeat every 10 s: a server that misses three holds it for dead.
DEAD_AFTER = 30
# What a job of this package names. A server or site refuses a job that names others,
# unless the job brings code along and its submitter has the right to do so.
CLASSES = (
    "fedbilevel.flare.collab_server.CollabServer",
    "fedbilevel.flare.collab_site.CollabSite",
    "fedbilevel.flare.site_failures.LateSites",
    "nvflare.collab.runtime.controller.CollabController",
    "nvflare.collab.runtime.executor.CollabExecutor",
)
# A message of which nothing more comes holds a thread, and its room, for so many
# seconds (300 by default).
READ_TIMEOUT, STALLED = "streaming_read_timeout", 60
FAILURES = {
    "id": "fedbilevel_site_failures",
    "path": "fedbilevel.flare.site_failures.SiteFailures",
    "args": {},
}


# Rights of a role for which nvflare's policy has one word instead of a table.
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
    """Write what a kit's `local` directory lacks, on the machine where it is to run.

    Server and sites allow the classes that jobs of this package name; a site allows no
    others until its operator adds some. A server keeps jobs and snapshots in its kit,
    not in `/tmp/nvflare`, notices a dead site after 30 s, not 10 minutes, and lets who
    has the role `lead` ask their own jobs how they are getting on. A site keeps its
    error log to itself, and refuses jobs that bring code, whoever submits them, unless
    it has a policy of its own already: it executes problem files that were reviewed
    there (`review`). It gets a secret salt and the rules that it holds servers to, in
    `site_rules.toml`, for its operator to edit. No process of the kit takes larger
    messages than the limit, nor sets room aside for them. All else stays as it was set,
    rules and salt included.

    Args:
        kit: Startup kit of a server or site.
        rules: Of a site that has none yet.
        message_limit: Bytes of the largest message; `message_limits.message_limit`
            returns what a model needs.
        code_from_outside: Whether a site takes code from whoever has the right `byoc`.
            A policy that the site has stays as it is, one that was written here at an
            earlier time too: remove `local/authorization.json` to be without.

    Raises:
        ValueError: If the directory is no such kit.

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
        # Of the classes that nvflare allows by default some read tables: a job that
        # names them would pass by the rules of the site.
        resources["class_allow_list"] = []
        resources["class_list_enforcement_mode"] = "enforce"
    allowed = resources.setdefault("class_allow_list", [])
    allowed += [name for name in CLASSES if name not in allowed]
    if not is_site:
        _keep_to_the_kit(resources, kit.absolute())
        _let_submitters_ask(kit / "local")
    else:
        # Errors may quote data. (nvflare 2.9.0 overlooks it in a project's file.)
        resources["allow_log_streaming"] = False
        write_site_files(kit / "local", rules)
        if not code_from_outside:
            _refuse_code(kit / "local")
    _write(kit / "local", "resources.json", resources)
    file = kit / "local" / COMMUNICATION
    communication = json.loads(file.read_text()) if file.exists() else {}
    limits = {SETTING: message_limit, READ_TIMEOUT: STALLED}
    _write(kit / "local", COMMUNICATION, communication | limits)


def _keep_to_the_kit(resources: dict[str, Any], kit: Path) -> None:
    resources["servers"][0]["heart_beat_timeout"] = DEAD_AFTER
    storage = resources["snapshot_persistor"]["args"]["storage"]
    storage["args"]["root_dir"] = str(kit / "snapshots")
    components = resources["components"]
    components += [FAILURES] * (FAILURES not in components)
    for component in components:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(kit / "jobs")


def _let_submitters_ask(local: Path) -> None:
    """Grant what nvflare's policy gives to project administrators alone."""
    policy = _settings(local, POLICY)
    rights = policy["permissions"].get("lead")
    # In place of a table there may be one word for all rights.
    if isinstance(rights, dict):
        rights.setdefault("app_command", "n:submitter")
        _write(local, POLICY, policy)


def _refuse_code(local: Path) -> None:
    """Have a site refuse jobs that bring code, unless it has a policy."""
    if (local / POLICY).exists():
        return
    policy = _settings(local, POLICY)
    for role, rights in policy["permissions"].items():
        given = dict.fromkeys(RIGHTS, rights) if isinstance(rights, str) else rights
        policy["permissions"][role] = {**given, "byoc": "none"}
    _write(local, POLICY, policy)


def _settings(local: Path, name: str) -> dict[str, Any]:
    """Return the settings of a kit: its own, or those that it was provisioned with."""
    own = local / name
    found = own if own.exists() else local / f"{name}.default"
    settings: dict[str, Any] = json.loads(found.read_text())
    return settings


def _write(local: Path, name: str, settings: dict[str, Any]) -> None:
    (local / name).write_text(json.dumps(settings, indent=2))
