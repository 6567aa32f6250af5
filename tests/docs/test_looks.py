"""Tests of the stylesheet: wide content scrolls or wraps, and dark mode."""

import io
import re

import pytest
from rich.console import Console

from tests.docs.pages import ROOT
from tools import tables
from tools.code_blocks import on_page_markdown
from tools.images import without_hosts

DOCS = ROOT / "docs"
STYLES = DOCS / "stylesheets" / "extra.css"
IMAGE = re.compile(r"!\[[^\]]*\]\(([^)]+)\)(\{ \.as-it-is \})?")
FIGURES = [
    (page, target, bool(as_it_is))
    for page in sorted(DOCS.rglob("*.md"))
    for target, as_it_is in IMAGE.findall(page.read_text())
]


def rule(selector: str) -> str:
    """Return the declarations of a selector in the stylesheet."""
    text = re.sub(r"/\*.*?\*/", "", STYLES.read_text(), flags=re.DOTALL)
    matches = [
        declarations
        for selectors, declarations in re.findall(r"([^{}]+)\{([^{}]*)\}", text)
        if selector in [text.strip() for text in selectors.split(",")]
    ]
    return "".join(matches)


def test_the_site_has_the_stylesheet():
    assert "stylesheets/extra.css]" in (ROOT / "mkdocs.yml").read_text()


def test_wide_formulas_scroll_by_themselves():
    assert "overflow-x: auto" in rule(".md-typeset .katex-display")


@pytest.mark.parametrize("wide", [".md-typeset__scrollwrap", ".md-typeset pre > code"])
def test_tables_and_code_scroll_and_show_that_there_is_more(wide):
    assert "overflow-x: auto" in rule(wide)
    assert "background-attachment: local, local, scroll, scroll" in rule(wide)


def test_output_in_sentences_wraps_and_output_in_columns_does_not():
    assert "white-space: pre-wrap" in rule(".md-typeset .wrap pre > code")
    sentence = "```text\nafter 60 rounds: a loss of 0.3\n  and more\n```\n"
    wrapped = on_page_markdown(sentence)
    assert wrapped == sentence.replace("```text", "``` { .text .wrap }")
    columns = "```text\nrun    rounds\nfirst      60\n```\n"
    assert on_page_markdown(columns) == columns
    program = "```python\nx = 3\n```\n"
    assert on_page_markdown(program) == program


def test_sentences_in_tables_get_width_on_phones():
    sentence = "<td>a cell that holds a whole sentence, with <code>code</code></td>"
    assert tables.on_page_content(sentence).startswith('<td class="sentence">')
    code = f"<td> <code>{'long.name.of.a.type' * 5}</code> </td>"
    for cell in ("<td>0.869</td>", code):
        assert tables.on_page_content(cell) == cell
    # As specific as the rule for all cells, which would win otherwise.
    assert ".md-typeset table:not([class]) td.sentence {" in STYLES.read_text()


def references(drawing: str) -> list[str]:
    """Return the addresses of other hosts in an SVG, except names of formats."""
    names = r"xmlns(:\w+)?=\"[^\"]*\"|<!DOCTYPE.*?>|<metadata>.*?</metadata>"
    return re.findall(
        r"https?://[^\s\"')]+", re.sub(names, "", drawing, flags=re.DOTALL)
    )


@pytest.mark.parametrize("svg", sorted(DOCS.rglob("*.svg")), ids=lambda svg: svg.name)
def test_no_image_needs_another_host(svg):
    assert not references(svg.read_text("utf-8"))


def test_fonts_of_another_host_are_removed():
    console = Console(record=True, file=io.StringIO())
    console.print("hello")
    drawing = console.export_svg()
    assert references(drawing)
    assert not references(without_hosts(drawing))
    assert "hello" in without_hosts(drawing)


def test_every_figure_is_treated_in_dark_mode():
    dark = '[data-md-color-scheme="slate"] .md-typeset '
    assert "invert" in rule(f'{dark}img[src$=".svg"]:not(.as-it-is)')
    assert "brightness" in rule(f"{dark}img.as-it-is")
    assert len(FIGURES) > 15
    for page, target, as_it_is in FIGURES:
        if as_it_is:
            continue
        # Only plots on white are inverted; other pictures have the class as-it-is.
        assert target.endswith(".svg"), f"{page}: {target}"
        assert "fill: #ffffff" in (page.parent / target).read_text(), target
