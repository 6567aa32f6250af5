"""Print the size of the code: `python -m tools.house`, or with `--at COMMIT`.

Lines of code are those with code on them: no blank lines, comments or docstrings. The
table lists what a reader has to hold in mind at once: long files, long functions, many
parameters, and tests of an algorithm's type outside the protocols that it may declare.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LONG_FILE, LONG_FUNCTION, MANY_PARAMETERS = 400, 80, 7
"""Numbers above which a file, a function or a list of parameters is listed."""
FEW_PARAMETERS = "engines", "federation", "transforms"
"""Packages whose functions should have few parameters."""
SUBJECT = re.compile(r"(algorithm|inner|wrapper|layer|planner)(_of)?\b", re.IGNORECASE)
"""What the first argument of such a test is called if it is an algorithm."""
DECLARED = (
    "algorithms/optional.py",
    "algorithms/wrapper.py",
    "engines/phase_checks.py",
)
"""Files that find what an algorithm declares, or refuse what is no algorithm."""
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """A source file.

    Attributes:
        name: path below the package.
        text: source text.
        tree: parsed text.
    """

    name: str
    text: str
    tree: ast.Module


class House(NamedTuple):
    """Counts of the code of a package.

    Attributes:
        files: number of files.
        lines: lines of code.
        long_files: files with too many lines of code, with their number.
        long_functions: functions with too many lines, with their number.
        many_parameters: functions with too many parameters, with their number.
        tests_of_algorithms: lines that test the type or a field of an algorithm.
    """

    files: int
    lines: int
    long_files: dict[str, int]
    long_functions: dict[str, int]
    many_parameters: dict[str, int]
    tests_of_algorithms: dict[str, int]


def docstrings(tree: ast.Module) -> set[int]:
    """Return the lines of docstrings, of attributes too."""
    lines: set[int] = set()
    for statement in ast.walk(tree):
        if (
            isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
            and isinstance(statement.value.value, str)
        ):
            lines.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return lines


def code_lines(module: Module) -> set[int]:
    """Return the lines of a module that have code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - docstrings(module.tree)


def functions(module: Module) -> Iterator[tuple[str, Function]]:
    """Yield each function with its name, also those in classes and functions."""

    def within(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                name = f"{prefix}{child.name}"
                yield name, child
                yield from within(child, f"{name}.")
            elif isinstance(child, ast.ClassDef):
                yield from within(child, f"{prefix}{child.name}.")
            else:
                yield from within(child, prefix)

    return within(module.tree, f"{module.name}::")


def parameters(function: Function) -> int:
    """Return the number of parameters, without `self`."""
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    return len(names) - (names[:1] in (["self"], ["cls"])) + len(arguments.kwonlyargs)


def tests_of_algorithms(module: Module) -> Iterator[str]:
    """Yield the places that test an algorithm's type, or ask it for a field by name."""
    if module.name in DECLARED:
        return
    for node in ast.walk(module.tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "hasattr", "isinstance")
            and node.args
            and SUBJECT.search(ast.unparse(node.args[0]).split("(")[0])
        ):
            yield f"{module.name}:{node.lineno}"


def modules(source: Path) -> list[Module]:
    """Return the modules below a directory."""
    result = []
    for file in sorted(source.rglob("*.py")):
        text = file.read_text()
        name = str(file.relative_to(source))
        result.append(Module(name, text, ast.parse(text)))
    return result


def measure(source: Path) -> House:
    """Return what is counted in the package in a directory."""
    house = House(0, 0, {}, {}, {}, {})
    for module in modules(source):
        code = code_lines(module)
        house = house._replace(files=house.files + 1, lines=house.lines + len(code))
        if len(code) > LONG_FILE:
            house.long_files[module.name] = len(code)
        for name, function in functions(module):
            within = range(function.lineno, (function.end_lineno or 0) + 1)
            length = len(code.intersection(within))
            if length > LONG_FUNCTION:
                house.long_functions[name] = length
            count = parameters(function)
            if count > MANY_PARAMETERS and name.startswith(FEW_PARAMETERS):
                house.many_parameters[name] = count
        for place in tests_of_algorithms(module):
            house.tests_of_algorithms[place] = 1
    return house


def house_at(commit: str | None) -> House:
    """Return what is counted at a commit, or in the checkout."""
    if commit is None:
        return measure(ROOT / "src" / "fedbilevel")
    archive = ["git", "archive", commit, "src/fedbilevel"]
    packed = subprocess.run(archive, cwd=ROOT, check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as directory:
        with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
            tar.extractall(directory, filter="data")
        return measure(Path(directory) / "src" / "fedbilevel")


def report(house: House) -> Iterator[str]:
    """Yield the lines of the report."""
    yield f"{house.files:7,} files"
    yield f"{house.lines:7,} lines of code"
    for title, places in (
        (f"files of more than {LONG_FILE} lines of code", house.long_files),
        (f"functions of more than {LONG_FUNCTION} lines of code", house.long_functions),
        (
            f"functions with more than {MANY_PARAMETERS} parameters in "
            + ", ".join(FEW_PARAMETERS),
            house.many_parameters,
        ),
        ("tests of an algorithm's type or fields", house.tests_of_algorithms),
    ):
        yield f"{len(places):7,} {title}"
        for name, number in sorted(places.items(), key=lambda place: -place[1]):
            yield f"          {number:4d}  {name}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report of the checkout or of a commit."""
    parser = argparse.ArgumentParser(prog="python -m tools.house", description=__doc__)
    parser.add_argument("--at", metavar="COMMIT", help="a commit instead of the files")
    print("\n".join(report(house_at(parser.parse_args(arguments).at))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
