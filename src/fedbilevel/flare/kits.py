"""What makes a folder the startup kit of a server or site."""

from pathlib import Path

NEEDED = "resources.json", "authorization.json"
"""Files of the folder `local`, perhaps as provisioned, with `.default` behind."""


def require_kit(kit: Path) -> None:
    """Refuse a folder that is no startup kit of a server or site.

    Args:
        kit: The folder, which holds `local` and `startup`.

    Raises:
        ValueError: Says what the folder lacks, and which is meant.

    Example:
        >>> require_kit(Path("nowhere"))
        Traceback (most recent call last):
        ...
        ValueError: nowhere is no startup kit of a server or site: there is no
        local/resources.json.default in it. Give the folder that nvflare provision has
        made for that server or site, with local and startup in it.
    """
    for name in NEEDED:
        places = (kit / "local" / name, kit / "local" / f"{name}.default")
        if not any(place.is_file() for place in places):
            raise ValueError(
                f"{kit} is no startup kit of a server or site: there is no "
                f"local/{name}.default in it. Give the folder that nvflare provision "
                "has made for that server or site, with local and startup in it."
            )
