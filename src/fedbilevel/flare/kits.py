"""The startup kit of a server or site, and the problem files reviewed for it."""

from pathlib import Path

from fedbilevel.deployment.local_code import install_code

NEEDED = "resources.json", "authorization.json"
"""Files of the directory `local`, perhaps as provisioned, with `.default` behind."""


def require_kit(kit: Path) -> None:
    """Refuse a directory that is no startup kit of a server or site.

    Args:
        kit: The directory, which holds `local` and `startup`.

    Raises:
        ValueError: Says what the directory lacks, and which is meant.

    Example:
        >>> require_kit(Path("nowhere"))
        Traceback (most recent call last):
        ...
        ValueError: nowhere is no startup kit of a server or site: there is no
        local/resources.json.default in it. Give the directory that nvflare provision has
        made for that server or site, with local and startup in it.
    """
    for name in NEEDED:
        places = (kit / "local" / name, kit / "local" / f"{name}.default")
        if not any(place.is_file() for place in places):
            raise ValueError(
                f"{kit} is no startup kit of a server or site: there is no "
                f"local/{name}.default in it. Give the directory that nvflare provision "
                "has made for that server or site, with local and startup in it."
            )


def review(kit: Path, file: Path) -> str:
    """Allow a problem file that you have read to be executed for jobs that name it.

    The file is copied into the kit; jobs name it by its SHA-256, so that any change to
    it needs another review. To allow it no longer, remove it from the directory
    `local/problems` of the kit. Neither needs a restart.

    Args:
        kit: Startup kit of a server or site.
        file: That you have read, with all that it imports.

    Returns:
        The SHA-256 of the file.

    Raises:
        ValueError: If the directory is no such kit, or the file no Python that could be
            executed. Nothing is allowed then.

    Example:
        >>> from tempfile import mkdtemp
        >>> from fedbilevel.flare.provisioning import provision_kits
        >>> kit = provision_kits(Path(mkdtemp()), ["site-1"]).sites["site-1"]
        >>> (kit / "hospitals.py").write_text("SITES = ()")
        10
        >>> len(review(kit, kit / "hospitals.py"))
        64
    """
    require_kit(kit)
    return install_code(kit, file)
