"""Screenshots by Chromium, at any width, in light and dark mode."""

import shutil
import subprocess
import tempfile
from html import escape
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
NARROWEST = 500
"""The smallest width, in pixels, of a window of Chromium without a screen."""
DARK = "--blink-settings=preferredColorScheme=0"
FRAME = """<!doctype html><style>body {{ margin: 0 }} iframe {{ border: 0 }}</style>
<iframe src="{address}" width="{width}" height="{height}"></iframe>
"""


def browser() -> str:
    """Return the path of Chromium.

    Raises:
        SystemExit: if it is not installed.
    """
    for name in NAMES:
        if path := shutil.which(name):
            return path
    raise SystemExit(
        "Chromium was not found on the PATH; screenshots need it. "
        "Install it, on Debian by: apt-get install chromium"
    )


def photograph(
    program: str, address: str, file: Path, width: int, height: int, dark: bool = False
) -> None:
    """Write a screenshot of a page.

    Args:
        program: the path of Chromium.
        address: address of the page.
        file: PNG file to write.
        width: width in pixels. Below `NARROWEST` the page is shown in a frame.
        height: height in pixels.
        dark: whether to request dark mode.
    """
    with tempfile.TemporaryDirectory() as name:
        if width < NARROWEST:
            frame = Path(name) / "frame.html"
            frame.write_text(
                FRAME.format(address=escape(address), width=width, height=height)
            )
            address = frame.as_uri()
        command = [
            program,
            "--headless",
            "--no-sandbox",
            "--hide-scrollbars",
            "--virtual-time-budget=3000",
            f"--window-size={width},{height}",
            f"--screenshot={file}",
            *([DARK] if dark else []),
            address,
        ]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
