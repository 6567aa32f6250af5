"""`fedbilevel new NAME`: create the files of a custom problem."""

import argparse
import re
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from shlex import quote
from string import Template

from fedbilevel.nearest import nearest
from fedbilevel.usage import with_plain_errors

FILES = {
    "problem.py.txt": "{}.py",
    "test.py.txt": "test_{}.py",
    "site.py.txt": "test_{}_site.py",
    "experiment.toml.txt": "{}.toml",
}
"""Templates of a custom problem, and the file names of their copies."""

HEADER = """# fedbilevel run $name.toml
# Every setting is also a command-line option: fedbilevel run $name.toml --help
"""
"""First lines of the experiment file of a ready-made problem."""


def main(arguments: Sequence[str]) -> int:
    """Write the files of a custom problem, or an experiment file alone."""
    options = with_plain_errors(command_parser()).parse_args(arguments)
    if options.ready:
        _check_file_name(options.name)
        texts = {"{}.toml": HEADER + _template_of(options.ready)}
    else:
        _check_importable(options.name)
        templates = files("fedbilevel.commands") / "templates"
        texts = {
            name: (templates / template).read_text(encoding="utf-8")
            for template, name in FILES.items()
        }
    directory = options.directory
    directory.mkdir(parents=True, exist_ok=True)
    contents = {directory / name.format(options.name): texts[name] for name in texts}
    for file in contents:
        if file.exists():
            raise ValueError(
                f"{file} already exists. Choose another NAME, or give --directory."
            )
    for file, text in contents.items():
        file.write_text(Template(text).substitute(name=options.name), encoding="utf-8")
    *code, experiment = contents
    if code:
        problem, test, site = code
        print(f"{problem}: losses and data. To test them: pytest {test}")
        print(f"{site}: test of the data of a federation's site")
    print(f"{experiment}: settings. To run: fedbilevel run {quote(str(experiment))}")
    return 0


def command_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = argparse.ArgumentParser(
        prog="fedbilevel new",
        description="Create a custom problem: NAME.py with two losses and the loading "
        "of data, test_NAME.py, test_NAME_site.py for the sites of a federation, and "
        "NAME.toml. With --ready, create only NAME.toml for a ready-made problem.",
    )
    parser.add_argument(
        "name", metavar="NAME", help="name of the problem, a Python identifier"
    )
    parser.add_argument(
        "--ready", metavar="PROBLEM", help="ready-made problem, such as cleaning"
    )
    parser.add_argument(
        "--directory",
        metavar="DIRECTORY",
        type=Path,
        default=Path(),
        help="directory of the new files (default: the working directory)",
    )
    return parser


def _check_file_name(name: str) -> None:
    if name != Path(name).name or not name or name.startswith("."):
        raise ValueError(
            f"NAME = {name!r} is not a file name. Give a name without slashes, and the "
            "directory with --directory."
        )


def _check_importable(name: str) -> None:
    if iskeyword(name):
        raise ValueError(
            f"NAME = {name!r} is a keyword of Python, so {name}.py cannot be imported. "
            f"Choose another name, such as {name.lower()}_problem."
        )
    if not name.isidentifier():
        raise ValueError(
            f"NAME = {name!r} cannot be imported by Python. Use letters, digits and "
            "underscores, and do not start with a digit."
        )
    if find_spec(name) is not None:
        raise ValueError(
            f"NAME = {name!r} is the name of an installed Python module, which "
            f"{name}.py would hide. Choose another name."
        )


def _template_of(ready: str) -> str:
    from fedbilevel.experiments.schema.registry import list_types

    known: dict[str, str] = {
        re.sub("(?<!^)(?=[A-Z])", "_", name).lower(): problem.TEMPLATE
        for name, problem in list_types("problem").items()
        if hasattr(problem, "TEMPLATE")
    }
    if ready not in known:
        raise ValueError(
            f"--ready {ready!r} is not a ready-made problem; {nearest(ready, known)}"
        )
    return known[ready]
