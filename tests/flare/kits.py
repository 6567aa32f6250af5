"""The directory of a site as nvflare provisions it, as far as the package reads it."""

import json
from pathlib import Path
from typing import Any

NO_ROLES: dict[str, Any] = {"format_version": "1.0", "permissions": {}}


def site_kit(kit: Path, policy: dict[str, Any] = NO_ROLES) -> Path:
    """Make the startup kit of a site; return it."""
    local = kit / "local"
    local.mkdir(parents=True)
    (local / "resources.json.default").write_text("{}")
    (local / "authorization.json.default").write_text(json.dumps(policy))
    return kit
