"""The rules and the secret salt of a site, in the directory `local` of its kit."""

import os
import secrets
import tomllib
from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import Any

from fedbilevel.federation.site import SALT_BYTES
from fedbilevel.federation.site_rules import RULES, SiteRules
from fedbilevel.federation.transport import RefusedError
from fedbilevel.mathematics.settings import attribute_help

SALT = "site_salt"
"""File of a kit's directory `local` with the salt, which never leaves the site."""
STARTUP = "startup"
"""Directory of a kit with its certificates."""
RIGHT_VALUES = {bool: "true or false", int: "an integer", float: "a number"}
"""Description of the values of a type, for messages."""


def write_site_files(local: Path, rules: SiteRules) -> None:
    """Write the rules and a new salt, if the kit has none.

    Args:
        local: Directory `local` of a site's kit.
        rules: Rules to write if the file does not exist.

    Example:
        >>> import tempfile
        >>> local = Path(tempfile.mkdtemp())
        >>> write_site_files(local, SiteRules(smallest_batch=64))
        >>> write_site_files(local, SiteRules(smallest_batch=1))  # not overwritten
        >>> rules, salt = read_site_files(local)
        >>> rules.smallest_batch, len(salt)
        (64, 32)
    """
    file = local / RULES
    if not file.exists():
        lines = ["# Rules of this site; docs/security.md explains them.\n"]
        for name, value in asdict(rules).items():
            text = f"# {name}: {attribute_help(SiteRules, name)}"
            comment = fill(text, 88, subsequent_indent="# ", break_on_hyphens=False)
            lines.append(f"{comment}\n{name} = {str(value).lower()}\n")
        file.write_text("\n".join(lines))
    try:
        descriptor = os.open(local / SALT, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with open(descriptor, "w") as opened:
        opened.write(secrets.token_hex(SALT_BYTES))
        opened.flush()
        os.fsync(descriptor)


def read_site_files(local: Path) -> tuple[SiteRules, bytes]:
    """Return the rules and the salt of a site.

    Args:
        local: Directory `local` of the site's kit.

    Raises:
        RefusedError: If a file is missing or not valid.

    Example:
        >>> read_site_files(Path("/nowhere"))
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: the site's kit has no
        local/site_rules.toml; ask its operator to call fedbilevel.flare.prepare(kit)
    """
    return _rules(local / RULES), _salt(local / SALT)


def load_identity(kit: Path, site: str) -> Any:
    """Return the certificate and the private key of a kit, for secure sums.

    Args:
        kit: kit of the site.
        site: name of the site.

    Raises:
        RefusedError: if a file is missing or not valid, or the extra is not installed.

    Example:
        >>> load_identity(Path("/nowhere"), "north")
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: Cannot read
        /nowhere/startup/client.crt (No such file or directory). Use the startup
        directory of the site's kit
    """
    try:
        from fedbilevel.federation.secure_sums.identity import load_kit
        from fedbilevel.federation.secure_sums.shares import Shares  # noqa: F401
    except ImportError as error:
        raise RefusedError(
            f"the package {error.name} is missing at this site; install "
            "fedbilevel[secure]"
        ) from error
    try:
        identity = load_kit(kit / STARTUP)
    except ValueError as error:
        raise RefusedError(str(error).rstrip(".")) from error
    if identity.name != site:
        raise RefusedError(
            f'the certificate of this site is that of "{identity.name}", not of '
            f'"{site}"; use the kit of this site'
        )
    return identity


def _rules(file: Path) -> SiteRules:
    try:
        settings = tomllib.loads(_content(file))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RefusedError(f"the site's local/{RULES} is not TOML: {error}") from error
    known = asdict(SiteRules())
    for name, value in settings.items():
        if name not in known:
            raise RefusedError(
                f"the site's local/{RULES} sets {name!r}, which is not a rule; the "
                f"rules are {', '.join(known)}"
            )
        expected = type(known[name])
        if expected is float and type(value) is int:
            settings[name] = float(value)
        elif type(value) is not expected:
            raise RefusedError(
                f"in the site's local/{RULES}, {name} is {value!r}; give "
                f"{RIGHT_VALUES[expected]}"
            )
    try:
        return SiteRules(**settings)
    except ValueError as error:
        raise RefusedError(f"in the site's local/{RULES}, {error}") from error


def _salt(file: Path) -> bytes:
    text = _content(file)
    if file.stat().st_mode & 0o077:
        raise RefusedError(
            f"the site's local/{SALT} can be read by other users of its machine; ask "
            "its operator to run chmod 600 on it"
        )
    try:
        salt = bytes.fromhex(text)
    except ValueError:
        salt = b""
    if len(salt) < SALT_BYTES:
        raise RefusedError(
            f"the site's local/{SALT} does not contain {SALT_BYTES} bytes in "
            "hexadecimal; ask its operator to remove it and to call "
            "fedbilevel.flare.prepare(kit)"
        )
    return salt


def _content(file: Path) -> str:
    try:
        return file.read_text()
    except FileNotFoundError:
        raise RefusedError(
            f"the site's kit has no local/{file.name}; ask its operator to call "
            "fedbilevel.flare.prepare(kit)"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(
            f"the site's local/{file.name} cannot be read ({type(error).__name__}); "
            "ask its operator to check the file"
        ) from error
