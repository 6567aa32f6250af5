"""The figures of the command line in the documentation, generated again.

    python -m tools.images

It runs the commands of the front page in a terminal of 92 columns and writes
`docs/images/progress.svg`, `comparison.svg`, `tuning.svg` and `report.png`, and for the
gallery `classes.svg` and `units.svg`. It needs Chromium.
"""

import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyte
from rich.console import Console
from rich.text import Text

from tools.browser import browser, photograph
from tools.terminal import shown

IMAGES = Path(__file__).parent.parent / "docs" / "images"
COLUMNS, LINES = 92, 12
RIVAL = (
    "run first.toml algorithm:FedBiO --algorithm.learning-rate 1 "
    "--algorithm.upper-rate 10 --algorithm.lower-rate 0.5 --algorithm.adjoint-rate 0.5 "
    "--algorithm.local-steps 5 --algorithm.batch-size 16"
)


def main() -> None:
    """Make all six."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        typed(directory, "new first --ready regularisation")
        screens = in_terminal(directory, "run first.toml --evaluation.every 1")
        going = [
            text for text in screens if " left" in text and "without tuning" not in text
        ]
        terminal_picture("fedbilevel run first.toml", going[len(going) // 2])
        typed(directory, RIVAL)
        typed(
            directory,
            f"compare runs/first runs/first-FedBiO --out {IMAGES}/comparison.svg",
        )
        typed(directory, "tune first.toml")
        tuning = directory / "runs" / "first-tuned" / "tuning.svg"
        shutil.copyfile(tuning, IMAGES / "tuning.svg")
        typed(directory, "plot runs/first")
        page = directory / "runs" / "first" / "report.html"
        photograph(browser(), page.as_uri(), IMAGES / "report.png", 1000, 1300)
        for ready, picture in (("loss_tuning", "classes"), ("representation", "units")):
            typed(directory, f"new {ready} --ready {ready}")
            typed(directory, f"run {ready}.toml")
            typed(directory, f"plot runs/{ready}")
            drawn = directory / "runs" / ready / f"{picture}.svg"
            shutil.copyfile(drawn, IMAGES / drawn.name)


def typed(directory: Path, words: str) -> None:
    """Type a command."""
    command = [sys.executable, "-m", "fedbilevel", *words.split()]
    subprocess.run(command, check=True, cwd=directory)


def in_terminal(directory: Path, words: str) -> list[str]:
    """Type a command in a terminal; return all that its screen showed, one by one."""
    command = [sys.executable, "-m", "fedbilevel", *words.split()]
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    screens = []
    for piece in shown(command, directory, os.environ, COLUMNS):
        stream.feed(piece)
        screens.append("\n".join(line.rstrip() for line in screen.display).rstrip())
    return screens


def terminal_picture(title: str, text: str) -> None:
    """Draw a screen as a window."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO())
    console.print(Text(f"$ {title}", style="bold"))
    console.print(Text(text))
    console.save_svg(str(IMAGES / "progress.svg"), title="fedbilevel")


if __name__ == "__main__":
    main()
