"""The rules of plain words that a program can check, over every text of the project.

- Phrases that readers have to decode occur nowhere.
- Prose has British spelling: optimisation, initialise.
- Docstrings begin with a noun or a verb, not with a question word.
- Names are not participles or pronouns that stand for a thing.
- Keys of experiment files are nouns.
- An error message is a sentence, and names what to do.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from fedbilevel.experiments.schema import Experiment
from fedbilevel.experiments.schema.registry import TABLES, list_types
from tests.docs.pages import ROOT

SOURCES = sorted((ROOT / "src").rglob("*.py"))
PROGRAMS = [
    path
    for directory in ("benchmarks", "examples", "tools", "tests")
    for path in sorted((ROOT / directory).rglob("*.py"))
]
TEXTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "Makefile",
    *(path for path in sorted((ROOT / ".github").rglob("*")) if path.is_file()),
    *SOURCES,
    *sorted((ROOT / "src/fedbilevel/commands/templates").glob("*.txt")),
    *(path for path in PROGRAMS if path != Path(__file__)),
]
OLD_NAMES = {
    "tests/federation/test_identity.py": "claimed endpoint",  # NVIDIA FLARE's message.
}
"""Texts of others, and examples of old names, that may have a phrase."""
PHRASES = {
    r"of (one's|your) own\b|of (its|their) own[.,;:)]": "custom, separate",
    r"\bgo(es|ing)? on\b": "resume, continue",
    r"\bleft out\b": "excluded, omitted",
    r"\bspoilt\b": "corrupted",
    r"\b(dealt|dealing)\b": "split, partition, assign",
    r"\b(takes?|took|taking) part\b": "participate, participants",
    r"\b(was|were) asked\b": "contacted, requested",
    r"\blearnt\b": "tuned, learned, solution",
    r"\b(is|are|was|were) told\b": "receives, is notified",
    r"\bsays? so\b": "reports, states it",
    r"\bthe software\b": "NVIDIA FLARE",
    r"(?<!\")\bfolders?\b(?![_\"])": "directory",
    r"\bclaimed\b": "locked",
    r"\btravell?ing\b": "job files, sent",
    r"\bin words\b": "as text",
    r"\bno words\b": "instead of text",
    r"\bwhoever\b": "the user, the operator, a process that",
    r"\banew\b": "again, from the start",
}
"""Regular expressions without another meaning here, and what to write instead."""
AMERICAN = re.compile(
    r"\b(?!(?:\w*[_-])?(?:re|step|batch)?siz)[a-z]+[iy]z(?:es?|ed|ers?|ing|ations?|able)\b",
    re.IGNORECASE,
)
"""Words like optimization and analyze; not size, and not the names of packages."""
TITLES = re.compile(r"Federated\s+Bilevel\s+Optimization\s+Problems|scikit-optimize")
CODE = re.compile(r"^( *)(`{3,})[^\n]*\n.*?^\1\2 *$|`[^`]*`", re.MULTILINE | re.DOTALL)
QUESTIONS = ("What", "Who", "Whose", "Whether", "How", "Where", "When", "Which", "Why")
NAMES = {"asked", "told", "found", "given", "made", "said", "kept", "one", "both"}


class Name(NamedTuple):
    """A name that a module binds: a variable, a parameter, an attribute, a function."""

    text: str
    line: int


def parsed(source: Path) -> ast.Module:
    return ast.parse(source.read_text("utf-8"))


def bound_names(tree: ast.Module) -> Iterator[Name]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=text, ctx=ast.Store()) | ast.arg(arg=text):
                yield Name(text, node.lineno)
            case ast.Attribute(attr=text, ctx=ast.Store()):
                yield Name(text, node.lineno)
            case (
                ast.FunctionDef(name=text)
                | ast.AsyncFunctionDef(name=text)
                | ast.ClassDef(name=text)
            ):
                yield Name(text, node.lineno)


def title(path: Path) -> str:
    return str(path.relative_to(ROOT))


def flattened(path: Path) -> str:
    """Return a text in one line, so that a phrase is found across line breaks."""
    text = path.read_text("utf-8").replace(OLD_NAMES.get(title(path), "\0"), "")
    return re.sub(r"\s*\n\s*([#>]\s*)?", " ", text)


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {title(path): flattened(path) for path in TEXTS}


@pytest.mark.parametrize("phrase", PHRASES)
@pytest.mark.slow
def test_no_text_has_a_phrase_that_readers_decode(phrase, texts):
    pattern = re.compile(phrase, re.IGNORECASE)
    places = [
        f"{name}: …{text[max(0, found.start() - 30) : found.end() + 30]}…"
        for name, text in texts.items()
        for found in pattern.finditer(text)
    ]
    assert not places, f"write {PHRASES[phrase]!r} instead:\n" + "\n".join(places)


def test_a_phrase_is_found_across_a_line_break(tmp_path):
    file = tmp_path / "module.py"
    file.write_text("# A run that goes\n# on after a crash.\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "ROOT", tmp_path)
        assert re.search(r"\bgoes on\b", flattened(file))


def prose(text: str) -> str:
    """Return Markdown without code, addresses and proper names, line by line."""
    for part in (CODE, TITLES, re.compile(r"\]\([^)]*\)|https?://\S+")):
        text = part.sub(lambda match: "\n" * match[0].count("\n"), text)
    return text


def test_prose_has_british_spelling():
    places = [
        f"{title(path)}:{number}: {match[0]}"
        for path in TEXTS
        if path.suffix == ".md"
        for number, line in enumerate(prose(path.read_text("utf-8")).splitlines(), 1)
        for match in AMERICAN.finditer(line)
    ]
    assert not places, "\n".join(places)


def test_code_and_titles_may_have_american_spelling():
    names = "*Federated\nBilevel Optimization Problems*, a batch size, a horizon\n"
    code = "```python\njax.distributed.initialize()\n```\nand `initialize`\n"
    assert not AMERICAN.search(prose(names + code))
    american = f"{code}\nto emphasize and analyze\n"
    assert AMERICAN.findall(prose(american)) == ["emphasize", "analyze"]


def test_install_commands_are_those_of_a_checkout():
    # One form: the package is installed from a checkout, as the README describes.
    pattern = re.compile(r"pip install\s+'?fedbilevel(\[\w+\])?")
    cheat_sheet = ROOT / "docs" / "cheat-sheet.md"  # explains the form of messages
    pages = [path for path in TEXTS if path.suffix == ".md" and path != cheat_sheet]
    assert not [title(path) for path in pages if pattern.search(path.read_text())]
    assert len(pattern.findall(cheat_sheet.read_text("utf-8"))) == 1


@pytest.mark.slow
def test_docstrings_begin_with_a_noun_or_a_verb():
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    places = [
        f"{title(path)}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}"
        for path in (*SOURCES, *PROGRAMS)
        for node in ast.walk(parsed(path))
        if isinstance(node, documented)
        and (text := ast.get_docstring(node))
        and (text.split()[0] in QUESTIONS or text.splitlines()[0].endswith("?"))
    ]
    assert not places, "\n".join(places)


@pytest.mark.slow
def test_names_say_what_a_thing_is():
    places = [
        f"{title(path)}:{name.line}: {name.text}"
        for path in SOURCES
        for name in bound_names(parsed(path))
        if name.text.strip("_") in NAMES
    ]
    assert not places, "\n".join(places)


def keys(settings: type, prefix: str = "") -> Iterator[str]:
    """Return the keys of an experiment file, with those of nested tables."""
    assert is_dataclass(settings)
    for field in fields(settings):
        yield prefix + field.name
        for part in (field.type, *getattr(field.type, "__args__", ())):
            if isinstance(part, type) and is_dataclass(part):
                yield from keys(part, f"{prefix}{field.name}.")


def test_keys_of_experiment_files_are_no_participles():
    nouns = {"seed", "learning", "tracking", "mixing", "clipping"}
    types: list[type] = [Experiment]
    types.extend(
        settings for table in TABLES for settings in list_types(table).values()
    )
    names = (key for settings in types for key in keys(settings))
    parts = {part for key in names for part in re.split(r"[._]", key)}
    assert {"evaluation", "straggler", "imbalance", "mixing", "units"} <= parts
    assert not {part for part in parts - nouns if re.search(r"(ed|ing)$", part)}
