"""Screenshots of the site, of a report and of the terminal, in light and dark mode.

    python -m tools.screenshots [DIRECTORY]

builds the site, runs an experiment of 20 seconds for its report, and writes each view
as `NAME-WIDTH-SCHEME.png` to DIRECTORY (default `build/screenshots`). Without Chromium
it exits with a message.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.browser import browser, photograph

ROOT = Path(__file__).parent.parent
PAGES = {
    "index": "index.html",
    "tutorial": "tutorials/regularisation.html",
    "results": "results.html",
    "reference": "reference/algorithms.html",
    "maths": "maths.html",
}
DESKTOP, PHONE = 1440, 390
HEIGHT = 1600
TERMINAL = """<!doctype html><style>:root { color-scheme: light dark }</style>
<img src="images/progress.svg" width="100%">
"""
"""A page with the picture of the terminal, on the background of either scheme."""
RUN = ("new first --ready regularisation", "run first.toml", "plot runs/first")


class View(NamedTuple):
    """A screenshot: a page, a width, and light or dark mode."""

    name: str
    address: str
    width: int
    dark: bool

    @property
    def file(self) -> str:
        """Name of the file."""
        width = "phone" if self.width == PHONE else "desktop"
        return f"{self.name}-{width}-{'dark' if self.dark else 'light'}.png"


def views(site: Path, report: Path) -> Iterator[View]:
    """Yield every view of the built site and of a report."""
    addresses = {name: (site / page).as_uri() for name, page in PAGES.items()}
    addresses["report"] = report.as_uri()
    for name, address in addresses.items():
        for width in (DESKTOP, PHONE):
            for dark in (False, True):
                yield View(name, address, width, dark)
    terminal = (site / "terminal.html").as_uri()
    for dark in (False, True):
        yield View("terminal", terminal, DESKTOP, dark)


def main(directory: Path) -> None:
    """Build the site, run the experiment, and write all screenshots."""
    program = browser()
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir"]
        environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        subprocess.run([*build, place / "site"], check=True, cwd=ROOT, env=environment)
        (place / "site" / "terminal.html").write_text(TERMINAL)
        for words in RUN:
            command = [sys.executable, "-m", "fedbilevel", *words.split()]
            subprocess.run(command, check=True, cwd=place)
        for view in views(place / "site", place / "runs" / "first" / "report.html"):
            file = directory / view.file
            photograph(program, view.address, file, view.width, HEIGHT, view.dark)
            print(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "screenshots")
