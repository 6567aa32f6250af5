"""The diagram of the layers, drawn from the imports: python -m tools.layers.

A row is a package, from the top layer to the lowest, with the first line of its
docstring. A curve connects a package with each package that it imports.
"""

import ast
import tomllib
from html import escape
from pathlib import Path

import grimp

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "images" / "layers.svg"
ROW, LEFT, WIDTH, CURVE = 34, 20, 700, 26
"""Pixels: height, left edge and width of a row, and extent of a curve."""


def layers() -> list[str]:
    """Return the names of the layers in the import contract, from top to bottom."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contract = settings["tool"]["importlinter"]["contracts"][0]
    return [name.removeprefix("fedbilevel.") for name in contract["layers"]]


def imports() -> set[tuple[str, str]]:
    """Return the imports between packages of the contract: (importer, imported)."""
    graph = grimp.build_graph("fedbilevel")
    known = set(layers())
    pairs = {
        (_package(module), _package(other))
        for module in graph.modules
        for other in graph.find_modules_directly_imported_by(module)
    }
    return {pair for pair in pairs if pair[0] != pair[1] and known.issuperset(pair)}


def _package(module: str) -> str:
    return [*module.split("."), ""][1]


def about(layer: str) -> str:
    """Return the first line of a package's docstring."""
    file = ROOT / "src" / "fedbilevel" / layer / "__init__.py"
    docstring = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    return docstring.partition("\n")[0].rstrip(".")


def picture() -> str:
    """Return the diagram as SVG."""
    names = layers()
    middle = {name: 20 + ROW * (index + 0.5) for index, name in enumerate(names)}
    right = LEFT + WIDTH
    parts = []
    for name in names:
        top = middle[name] - ROW / 2 + 3
        parts.append(
            f'<rect x="{LEFT}" y="{top:g}" width="{WIDTH}" height="{ROW - 6}" rx="4"/>'
            f'<text x="{LEFT + 10}" y="{top + 19:g}" class="name">{name}</text>'
            f'<text x="{LEFT + 115}" y="{top + 19:g}">{escape(about(name))}</text>'
        )
    for upper, lower in sorted(imports()):
        start, end = middle[upper] + 4, middle[lower] - 4
        reach = right + CURVE * (names.index(lower) - names.index(upper)) ** 0.8
        parts.append(
            f'<path d="M{right} {start:g} C{reach:.0f} {start:g} {reach:.0f} {end:g} '
            f'{right} {end:g}"><title>{upper} → {lower}</title></path>'
        )
    height = 40 + ROW * len(names)
    style = (
        "rect{fill:#eef3fb;stroke:#5b7db1}text{font:13px sans-serif;fill:#223}"
        ".name{font-weight:bold}path{fill:none;stroke:#5b7db1;opacity:.45}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + 190} {height}" '
        f'role="img"><title>The layers and their imports</title><style>{style}</style>'
        '<rect width="100%" height="100%" style="fill: #ffffff; stroke: none"/>'
        + "\n".join(["", *parts, "</svg>", ""])
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
