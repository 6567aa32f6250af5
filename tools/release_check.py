"""Check the tag of a release: `make release-check TAG=v0.1.0`."""

import os
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def main() -> None:
    """Exit with an error if the variable TAG is not that of the project's version."""
    # From the environment: a shell would interpret characters that a tag may have.
    tag = os.environ.get("TAG", "")
    expected = "v" + tomllib.loads(PROJECT.read_text())["project"]["version"]
    if tag != expected:
        raise SystemExit(
            f"The tag is {tag!r}, but the version in pyproject.toml needs {expected!r};"
            " change the version, or tag another commit."
        )
    print(f"The tag {tag} is that of pyproject.toml.")


if __name__ == "__main__":
    main()
