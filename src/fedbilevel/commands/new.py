"""`fedbilevel new NAME`: a problem of your own to begin with."""

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

FILES = {
    "problem.py.txt": "{}.py",
    "test.py.txt": "test_{}.py",
    "site.py.txt": "test_{}_site.py",
    "experiment.toml.txt": "{}.toml",
}
"""The templates of a problem of one's own, and what each becomes."""

HEADER = """# fedbilevel run $name.toml
# Every setting is also an option: fedbilevel run $name.toml --help
"""
"""How the experiment file of a ready-made problem begins."""


def main(arguments: Sequence[str]) -> int:
    """Write a file with two losses, a test and an experiment; or an experiment alone.

    Example:
        >>> main.__name__
        'main'
    """
    given = command_parser().parse_args(arguments)
    if given.ready:
        _check_file_name(given.name)
        texts = {"{}.toml": HEADER + _template_of(given.ready)}
    else:
        _check_importable(given.name)
        templates = files("fedbilevel.commands") / "templates"
        texts = {
            name: (templates / template).read_text(encoding="utf-8")
            for template, name in FILES.items()
        }
    given.folder.mkdir(parents=True, exist_ok=True)
    written = {given.folder / name.format(given.name): texts[name] for name in texts}
    for file in written:
        if file.exists():
            raise ValueError(f"{file} exists already; choose another name or folder.")
    for file, text in written.items():
        file.write_text(Template(text).substitute(name=given.name), encoding="utf-8")
    *code, experiment = written
    if code:
        problem, test, site = code
        print(f"{problem} has the losses and the data; pytest {test} tests them.")
        print(f"{site} is for the sites of a federation: do their data fit?")
    print(
        f"{experiment} has the settings; run it: fedbilevel run "
        f"{quote(str(experiment))}"
    )
    return 0


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of the subcommand.

    Example:
        >>> command_parser().prog
        'fedbilevel new'
    """
    parser = argparse.ArgumentParser(
        prog="fedbilevel new",
        description="Write NAME.py with two losses and the loading of data, "
        "test_NAME.py, test_NAME_site.py for the sites of a federation, and NAME.toml; "
        "or, with --ready, NAME.toml for a problem that there is already.",
    )
    parser.add_argument("name", metavar="NAME", help="a word that Python can import")
    parser.add_argument(
        "--ready", metavar="PROBLEM", help="a ready-made problem, such as cleaning"
    )
    parser.add_argument("--folder", type=Path, default=Path(), help="where; here")
    return parser


def _check_file_name(name: str) -> None:
    if name != Path(name).name or not name or name.startswith("."):
        raise ValueError(
            f"{name!r} is no name of a file; give a word, and the folder by --folder."
        )


def _check_importable(name: str) -> None:
    if not name.isidentifier() or iskeyword(name):
        raise ValueError(
            f"{name!r} cannot be imported by Python; choose letters, digits and "
            "underscores."
        )
    if find_spec(name) is not None:
        raise ValueError(
            f"there is a Python module {name} already, which {name}.py would hide; "
            "choose another name."
        )


def _template_of(ready: str) -> str:
    from fedbilevel.experiments.schema.registry import kinds

    known: dict[str, str] = {
        re.sub("(?<!^)(?=[A-Z])", "_", name).lower(): kind.TEMPLATE
        for name, kind in kinds("problem").items()
        if hasattr(kind, "TEMPLATE")
    }
    if ready not in known:
        raise ValueError(
            f"there is no ready-made problem {ready!r}; {nearest(ready, known)}"
        )
    return known[ready]
