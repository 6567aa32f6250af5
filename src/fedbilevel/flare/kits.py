"""The startup kit of a server or site, and the problem files reviewed for it."""

from pathlib import Path

from fedbilevel.deployment.local_code import install_code

NEEDED = "resources.json", "authorization.json"
"""Files of the directory `local`; after provisioning they end in `.default`."""


def require_kit(kit: Path) -> None:
    """Raise if a directory is not a startup kit of a server or site.

    Args:
        kit: Directory that should contain `local` and `startup`.

    Raises:
        ValueError: If a file is missing.

    Example:
        >>> require_kit(Path("nowhere"))
        Traceback (most recent call last):
        ...
        ValueError: nowhere is not a startup kit of a server or site:
        local/resources.json.default is missing. Give the directory that nvflare
        provision created for that server or site.
    """
    for name in NEEDED:
        paths = (kit / "local" / name, kit / "local" / f"{name}.default")
        if not any(path.is_file() for path in paths):
            raise ValueError(
                f"{kit} is not a startup kit of a server or site: "
                f"local/{name}.default is missing. Give the directory that nvflare "
                "provision created for that server or site."
            )


def review(kit: Path, file: Path) -> str:
    """Allow jobs to execute a problem file that you have reviewed.

    The file is copied into the kit. Jobs name it by its SHA-256, so that any change
    needs another review. To revoke it, remove it from the directory `local/problems` of
    the kit. Neither needs a restart.

    Args:
        kit: Startup kit of a server or site.
        file: Problem file that you have read, with all that it imports.

    Returns:
        The SHA-256 of the file.

    Raises:
        ValueError: If the directory is not such a kit, or the file is not valid Python.
            Nothing is allowed then.

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
