"""Every tutorial is also a notebook, made from the same source."""

import re

import nbformat
import pytest
from nbclient import NotebookClient

from tests.docs.pages import ROOT
from tests.docs.test_code_blocks import readers_environment
from tests.waiting import HANG
from tools import notebooks
from tools.pages import Fate, blocks

DRAWN = re.compile(r"attachment:([\w.-]+)")


def sources(page, kind):
    return [
        cell.source for cell in notebooks.notebook(page).cells if cell.cell_type == kind
    ]


@pytest.mark.parametrize("page", notebooks.TUTORIALS, ids=lambda page: page.stem)
def test_a_notebook_has_every_block_that_its_tutorial_runs(page):
    made = notebooks.notebook(page)
    nbformat.validate(made)
    run = [
        block
        for block in blocks(page.read_text())
        if block.fate in (Fate.EXECUTED, Fate.SESSION, Fate.WRITTEN)
        or (block.fate == Fate.COMMANDS and block.commands)
    ]
    code = sources(page, "code")
    assert len(code) == len(run) > 2
    for cell, block in zip(code, run, strict=True):
        if block.fate == Fate.EXECUTED:
            assert cell == block.text.rstrip("\n")
        elif block.fate == Fate.WRITTEN:
            assert cell == f"%%writefile {block.file}\n" + block.text.rstrip("\n")
        elif block.fate == Fate.COMMANDS:
            assert cell == f"%%bash\n{block.commands}"


@pytest.mark.parametrize("page", notebooks.TUTORIALS, ids=lambda page: page.stem)
def test_the_text_of_a_notebook_is_whole_without_other_files(page):
    made = notebooks.notebook(page)
    prose = "\n".join(sources(page, "markdown"))
    assert prose.startswith("# ")
    assert ".md)" not in prose
    assert "notest" not in prose
    for cell in made.cells:
        for name in DRAWN.findall(cell.source):
            assert name in cell.attachments
    drawn = re.findall(r"!\[[^\]]*\]\(", page.read_text())
    assert len(DRAWN.findall(prose)) == len(drawn)


def test_the_command_writes_all_notebooks(tmp_path):
    files = notebooks.write(tmp_path / "notebooks")
    assert [file.stem for file in files] == [page.stem for page in notebooks.TUTORIALS]
    for file in files:
        nbformat.validate(nbformat.read(file, as_version=4))


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.parametrize("page", notebooks.TUTORIALS, ids=lambda page: page.stem)
def test_a_notebook_runs_from_top_to_bottom(page, tmp_path):
    desk = tmp_path / "desk"
    desk.mkdir()
    (desk / "examples").symlink_to(ROOT / "examples")
    client = NotebookClient(
        notebooks.notebook(page),
        timeout=HANG,
        kernel_name="python3",
        resources={"metadata": {"path": str(desk)}},
    )
    client.execute(env=readers_environment(tmp_path / "bin"))
