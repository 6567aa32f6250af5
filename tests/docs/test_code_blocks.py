"""Tests that every code block of the documentation is run or marked `notest`."""

import ast
import doctest
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from fedbilevel.__main__ import COMMANDS
from tests.compiling import QUICKLY
from tests.conftest import NIGHTLY_DOCTESTS
from tests.docs import pages
from tests.docs.pages import PAGES, ROOT
from tests.waiting import HANG
from tools.pages import Block, Fate, blocks

NOT_RUN = {Fate.MARKED, Fate.OUTPUT, Fate.UNKNOWN}
BY_DAY = {"docs/how-to/data.md", "docs/extending/algorithm.md"}
"""Pages that `make check` runs. After a change of another page, run it with -k."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def readers_environment(directory: Path) -> dict[str, str]:
    """Return the environment of a user who has installed the package.

    It has `fedbilevel` and `python` of this interpreter and the data of this checkout.
    Programs are compiled without optimisation, for one device as on most machines.
    """
    shim = directory / "fedbilevel"
    directory.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fedbilevel "$@"\n')
    shim.chmod(0o755)
    path = [str(directory), str(Path(sys.executable).parent), os.environ["PATH"]]
    modules = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "FEDBILEVEL_DATA": str(ROOT / ".data"),
        **os.environ,
        "XLA_FLAGS": QUICKLY,
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": os.pathsep.join(modules),  # for tests/docs/pages.py alone
    }


def run_page(page: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a page in an empty directory."""
    environment = readers_environment(directory / "bin")
    desk = directory / "desk"
    desk.mkdir()
    if (ROOT / "examples").exists():
        (desk / "examples").symlink_to(ROOT / "examples")
    return subprocess.run(
        [sys.executable, "-W", "error", pages.__file__, page],
        capture_output=True,
        text=True,
        check=False,
        cwd=desk,
        env=environment,
        timeout=HANG,
    )


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_code_block_is_run_or_marked(page):
    unknown = [
        f"{name(page)}:{block.line}"
        for block in blocks(page.read_text())
        if block.fate == Fate.UNKNOWN
    ]
    assert not unknown, "run these, or write `notest` after the block's language"


def modules_of(program: str) -> Iterator[str]:
    """Yield the names that a program imports from the package or takes from `fb`."""
    for node in ast.walk(ast.parse(program)):
        match node:
            case ast.ImportFrom(module=str(module)) if module.startswith("fedbilevel"):
                yield from (f"{module}.{alias.name}" for alias in node.names)
            case ast.Attribute(value=ast.Name(id="fb"), attr=attribute):
                yield f"fedbilevel.{attribute}"


def check_names(program: str) -> None:
    for name in modules_of(program):
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute), name


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_names_of_a_page_exist(page):
    # The small version of running the page, which only `make nightly` does for most.
    for block in blocks(page.read_text()):
        if block.marked:
            continue
        if block.language == "python":
            session = doctest.DocTestParser().get_examples(block.text)
            program = "".join(example.source for example in session) or block.text
            check_names(program)
        elif block.language == "toml":
            tomllib.loads(block.text)
        elif block.language in ("bash", "console"):
            for line in block.commands.splitlines():
                program, *arguments = line.split()
                if program == "fedbilevel" and arguments[0] != "--help":
                    assert arguments[0] in COMMANDS, line


@pytest.mark.parametrize("name", sorted(NIGHTLY_DOCTESTS))
def test_the_names_of_a_nightly_doctest_exist(name):
    module, _, attribute = f"fedbilevel.{name}".rpartition(".")
    text = getattr(import_module(module), attribute).__doc__
    examples = doctest.DocTestParser().get_examples(text)
    assert examples
    check_names("".join(example.source for example in examples))


# tests/test_readme.py runs the README's programs.
@pytest.mark.process
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if name(page) in BY_DAY else pytest.mark.nightly)
        for page in PAGES[1:]
        if any(block.fate not in NOT_RUN for block in blocks(page.read_text()))
    ],
    ids=lambda page: name(page),
)
def test_a_page_does_what_it_says(page, tmp_path):
    process = run_page(page, tmp_path)
    assert process.returncode == 0, process.stderr


@pytest.mark.process
def test_blocks_run_in_the_order_of_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("""
Text.

```python
# custom.py
NUMBER = 3
print("number", NUMBER)
```

1. A step:

    ```python
    from custom import NUMBER
    ```

```toml
# first.toml
rounds = 2
```

```bash
python custom.py
```

```console
$ fedbilevel doctor \\
    --json
{}
```

```bash
pip install nothing
```

```toml
[partition]
devices = 3
```

```python
>>> total = NUMBER + 1
>>> total
4

```

```python
from pathlib import Path

print("sum", total + Path("first.toml").read_text().count("2"))
```
""")
    process = run_page(page, tmp_path)
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    assert lines[:2] == ["number 3", "number 3"]  # imported, and run by itself
    assert any('"python"' in line for line in lines)  # the doctor's answer
    assert lines[-1] == "sum 5"


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ("```python\nx = 1\nassert x == 2\n```\n", 'page.md", line 3'),
        ("```python\n>>> 1 + 1\n3\n```\n", "Expected:\n    3\nGot:\n    2"),
        ("```toml\n[data]\nnam = 3\n```\n", "unknown key data.nam"),
        ("```bash\nfedbilevel run missing.toml\n```\n", "missing.toml"),
        (
            "```python\nimport warnings\nwarnings.warn('old')\n```\n",
            "UserWarning: old",
        ),
    ],
)
def test_a_block_that_fails_fails_its_page(block, reason, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(block)
    process = run_page(page, tmp_path)
    assert process.returncode != 0
    assert reason in process.stderr


@pytest.mark.parametrize(
    ("language", "text", "fate"),
    [
        ("python", "print(1)\n", Fate.EXECUTED),
        ("python", "# custom.py\nprint(1)\n", Fate.WRITTEN),
        ("python", "# custom.py, later\nprint(1)\n", Fate.EXECUTED),
        ("python", ">>> print(1)\n1\n", Fate.SESSION),
        ("toml", "rounds = 2\n", Fate.READ),
        ("toml", "# custom.toml\nrounds = 2\n", Fate.WRITTEN),
        ("bash", "fedbilevel doctor\n", Fate.COMMANDS),
        ("bash", "make setup   # all\npip install jax\n", Fate.COMMANDS),
        ("bash", "python custom.py\npython examples/first.py\n", Fate.COMMANDS),
        ("bash", "python -m benchmarks.tasks\n", Fate.UNKNOWN),
        ("bash", "curl somewhere\n", Fate.UNKNOWN),
        ("bash", "fedbilevel doctor\nrm -r runs\n", Fate.UNKNOWN),
        ("yaml", "a: 1\n", Fate.UNKNOWN),
        ("", "round 1\n", Fate.OUTPUT),
    ],
)
def test_the_treatment_of_a_block_follows_from_its_language_and_text(
    language, text, fate
):
    assert Block(1, language, False, text).fate == fate
    assert Block(1, language, True, text).fate == Fate.MARKED
