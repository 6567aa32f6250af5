"""Jupyter notebooks of the tutorials, and the hook that adds them to the site.

    python -m tools.notebooks [DIRECTORY]

A notebook is made from the Markdown of its tutorial, so the two cannot differ. The hook
puts the notebooks at `notebooks/` of the site, and a link at the top of each tutorial.
"""

import base64
import doctest
import mimetypes
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools.pages import Block, Fate, blocks

ROOT = Path(__file__).parent.parent
TUTORIALS = [
    page
    for page in sorted((ROOT / "docs" / "tutorials").glob("*.md"))
    if page.stem != "index"
]
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)(?:\{[^}]*\})?")
LINK = re.compile(
    r"(?<!!)\[([^\]]+)\]\((?!https?://|#|attachment:)([^)#]+)\.md(#[^)]+)?\)"
)
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def notebook(page: Path) -> nbformat.NotebookNode:
    """Return the notebook of a tutorial."""
    cells = []
    for number, cell in enumerate(_cells(page)):
        cell["id"] = f"{page.stem}-{number}"
        cells.append(cell)
    return new_notebook(cells=cells, metadata={"kernelspec": KERNEL})


def write(directory: Path) -> list[Path]:
    """Write the notebooks of all tutorials; return the files."""
    directory.mkdir(parents=True, exist_ok=True)
    files = [directory / f"{page.stem}.ipynb" for page in TUTORIALS]
    for page, file in zip(TUTORIALS, files, strict=True):
        nbformat.write(notebook(page), file)
    return files


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the notebooks to the files of the site."""
    for page in TUTORIALS:
        text = nbformat.writes(notebook(page))
        files.append(
            File.generated(config, f"notebooks/{page.stem}.ipynb", content=text)
        )
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Put a link to its notebook below the title of a tutorial."""
    path = Path(page.file.src_uri)
    if path.parent.name != "tutorials" or path.stem == "index":
        return markdown
    title, rest = markdown.split("\n", maxsplit=1)
    link = f"[Download as a notebook](../notebooks/{path.stem}.ipynb){{ download }}"
    return f"{title}\n\n{link}\n{rest}"


def _cells(page: Path) -> Iterator[nbformat.NotebookNode]:
    lines = page.read_text("utf-8").splitlines()
    prose: list[str] = []
    place = 0
    for block in blocks("\n".join(lines)):
        end = block.line + block.text.count("\n") + 1
        prose += lines[place : block.line - 1]
        place = end
        code = _code(block)
        if code is None:
            prose += [
                line.replace(" notest", "") for line in lines[block.line - 1 : end]
            ]
            continue
        yield from _markdown(prose, page)
        prose = []
        yield new_code_cell(code)
    yield from _markdown(prose + lines[place:], page)


def _code(block: Block) -> str | None:
    """Return what a cell with a block is to run; None for a block that is not run."""
    text = block.text.rstrip("\n")
    match block.fate:
        case Fate.EXECUTED:
            return text
        case Fate.SESSION:
            examples = doctest.DocTestParser().get_examples(block.text)
            return "".join(example.source for example in examples).rstrip("\n")
        case Fate.WRITTEN:
            return f"%%writefile {block.file}\n{text}"
        case Fate.COMMANDS if block.commands:
            return f"%%bash\n{block.commands}"
    return None


def _markdown(prose: list[str], page: Path) -> Iterator[nbformat.NotebookNode]:
    text = "\n".join(prose).strip()
    if not text:
        return
    attachments: dict[str, dict[str, str]] = {}

    def attach(image: re.Match[str]) -> str:
        file = page.parent / image[2]
        kind = mimetypes.guess_type(file.name)[0] or "image/png"
        attachments[file.name] = {kind: base64.b64encode(file.read_bytes()).decode()}
        return f"![{image[1]}](attachment:{file.name})"

    cell = new_markdown_cell(LINK.sub(_link, IMAGE.sub(attach, text)))
    if attachments:
        cell["attachments"] = attachments
    yield cell


def _link(link: re.Match[str]) -> str:
    """Return a link to a page as it is from `notebooks/` of the site."""
    words, target, anchor = link[1], link[2], link[3] or ""
    if "/" not in target and target != "index":
        return f"[{words}]({target}.ipynb{anchor})"
    path = posixpath.normpath(posixpath.join("tutorials", target))
    return f"[{words}](../{path}.html{anchor})"


if __name__ == "__main__":
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "notebooks"
    for written in write(out):
        print(written)
