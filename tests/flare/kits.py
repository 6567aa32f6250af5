"""A site's startup kit, with the files that the package reads."""

import json
from pathlib import Path
from typing import Any

NO_ROLES: dict[str, Any] = {"format_version": "1.0", "permissions": {}}


def site_kit(kit: Path, policy: dict[str, Any] = NO_ROLES) -> Path:
    """Create the startup kit of a site and return its path."""
    local = kit / "local"
    local.mkdir(parents=True)
    (local / "resources.json.default").write_text("{}")
    (local / "authorization.json.default").write_text(json.dumps(policy))
    return kit
