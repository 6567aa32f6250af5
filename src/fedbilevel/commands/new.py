"""`fedbilevel new NAME`: a problem of your own to begin with."""

import argparse
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

FILES = {
    "problem.py.txt": "{}.py",
    "test.py.txt": "test_{}.py",
    "experiment.toml.txt": "{}.toml",
}
"""The templates, and what each becomes."""


def main(arguments: Sequence[str]) -> int:
    """Write a file with two losses, a test and an experiment.

    Example:
        >>> main.__name__
        'main'
    """
    parser = argparse.ArgumentParser(
        prog="fedbilevel new",
        description="Write NAME.py with two losses, test_NAME.py and NAME.toml.",
    )
    parser.add_argument("name", metavar="NAME", help="a word that Python can import")
    parser.add_argument("--folder", type=Path, default=Path(), help="where; here")
    given = parser.parse_args(arguments)
    if not given.name.isidentifier():
        raise ValueError(
            f"{given.name!r} cannot be imported; choose letters, digits and "
            "underscores."
        )
    given.folder.mkdir(parents=True, exist_ok=True)
    written = {
        template: given.folder / name.format(given.name)
        for template, name in FILES.items()
    }
    for file in written.values():
        if file.exists():
            raise ValueError(f"{file} exists already; choose another name or folder.")
    for template, file in written.items():
        text = (files("fedbilevel.commands") / "templates" / template).read_text()
        file.write_text(Template(text).substitute(name=given.name))
    problem, test, experiment = written.values()
    print(
        f"{problem} has the losses and the data, {test} tests them.\n"
        f"Run it: fedbilevel run {experiment}"
    )
    return 0
