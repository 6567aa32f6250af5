"""What a site's operator sets and keeps in the kit: the rules, and a secret salt."""

import os
import secrets
import tomllib
from dataclasses import asdict
from pathlib import Path

from fedbilevel.federation.site import SALT_BYTES
from fedbilevel.federation.site_rules import RULES, SiteRules
from fedbilevel.federation.transport import RefusedError

SALT = "site_salt"
"""The file of a kit's directory `local` with the salt; no job and no upload holds it."""
MEANINGS = {
    "smallest_batch": "the fewest examples of any batch that the algorithm draws",
    "fewest_examples": "the fewest examples that this site must hold for each loss",
    "fewest_per_entry": "the fewest of its examples that must move an entry of x;\n"
    "# 1 allows a weight for each example, by which a server can read them",
    "most_exchanges": "that are ever answered, of all runs together in this kit",
    "most_rollbacks": "how many times the server of a run may go back and ask "
    "something else",
    "simulated_draws": "true only for a rehearsal: the server then knows every sample",
}
"""What each rule means, for the file."""


def write_site_files(local: Path, rules: SiteRules) -> None:
    """Write the rules and a fresh salt where a kit lacks them.

    Args:
        local: The directory `local` of a site's kit.
        rules: To write if there are none yet.

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
        lines = ["# What this site answers; docs/security.md says why.\n"]
        for name, value in asdict(rules).items():
            written = str(value).lower()
            lines.append(f"# {name}: {MEANINGS[name]}\n{name} = {written}\n")
        file.write_text("\n".join(lines))
    try:
        salt = os.open(local / SALT, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with open(salt, "w") as opened:
        opened.write(secrets.token_hex(SALT_BYTES))
        opened.flush()
        os.fsync(salt)


def read_site_files(local: Path) -> tuple[SiteRules, bytes]:
    """Return the rules and the salt of a site.

    Args:
        local: The directory `local` of its kit.

    Raises:
        RefusedError: There are none, or they cannot be used; says what to do.

    Example:
        >>> read_site_files(Path("/nowhere"))
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: the site's kit has no
        local/site_rules.toml; let its operator call fedbilevel.flare.prepare
        on the kit
    """
    return _rules(local / RULES), _salt(local / SALT)


def _rules(file: Path) -> SiteRules:
    try:
        given = tomllib.loads(_content(file))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RefusedError(f"the site's local/{RULES} is no TOML: {error}") from error
    known = asdict(SiteRules())
    for name, value in given.items():
        if name not in known:
            raise RefusedError(
                f"the site's local/{RULES} sets {name!r}, which is no rule; there are "
                f"{', '.join(known)}"
            )
        if type(value) is not type(known[name]):
            right = "true or false" if type(known[name]) is bool else "a whole number"
            raise RefusedError(
                f"in the site's local/{RULES} {name} is {value!r}; give {right}"
            )
    try:
        return SiteRules(**given)
    except ValueError as error:
        raise RefusedError(f"in the site's local/{RULES} {error}") from error


def _salt(file: Path) -> bytes:
    text = _content(file)
    if file.stat().st_mode & 0o077:
        raise RefusedError(
            f"the site's local/{SALT} can be read by other users of its machine; let "
            "its operator call chmod 600 on it"
        )
    try:
        salt = bytes.fromhex(text)
    except ValueError:
        salt = b""
    if len(salt) < SALT_BYTES:
        raise RefusedError(
            f"the site's local/{SALT} does not hold {SALT_BYTES} bytes in hexadecimal; "
            "let its operator remove it and call prepare on the kit"
        )
    return salt


def _content(file: Path) -> str:
    try:
        return file.read_text()
    except FileNotFoundError:
        raise RefusedError(
            f"the site's kit has no local/{file.name}; let its operator call "
            "fedbilevel.flare.prepare on the kit"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        kind = type(error).__name__
        raise RefusedError(
            f"the site's local/{file.name} cannot be read ({kind})"
        ) from error
