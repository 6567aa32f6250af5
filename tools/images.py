"""Images of the command line for the documentation.

    python -m tools.images

runs the commands of the front page in a terminal of 92 columns and writes
`docs/images/progress.svg`, `comparison.svg`, `tuning.svg` and `report.png`; for the
gallery, `classes.svg` and `units.svg`; and the plots of three tutorials. It needs
Chromium.
"""

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyte
from rich.console import Console
from rich.text import Text

from tools.browser import browser, photograph
from tools.terminal import run_in_terminal

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
TUTORIALS = {
    "custom-problem": {"runs/instruments/upper.svg": "custom-upper.svg"},
    "cleaning": {
        "runs/clean/trust.svg": "cleaning-trust.svg",
        "runs/clean/trusted.svg": "cleaning-trusted.svg",
    },
    "regularisation": {
        "runs/first/history.svg": "regularisation-history.svg",
        "runs/first/penalties.svg": "regularisation-penalties.svg",
        "comparison.svg": "regularisation-comparison.svg",
    },
}
"""Plots that the code blocks of tutorials write, and their names in `IMAGES`."""
COLUMNS, LINES = 92, 12
WEB_FONT = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
COMMENT = re.compile(r"\s*<!--.*?-->", re.DOTALL)
RIVAL = (
    "run first.toml algorithm:FedBiO --algorithm.learning-rate 1 "
    "--algorithm.upper-rate 10 --algorithm.lower-rate 0.5 --algorithm.adjoint-rate 0.5 "
    "--algorithm.local-steps 5 --algorithm.batch-size 16"
)


def main() -> None:
    """Write all images."""
    for tutorial, plots in TUTORIALS.items():
        with tempfile.TemporaryDirectory() as name:
            run_tutorial(Path(name), tutorial)
            for plot, image in plots.items():
                shutil.copyfile(Path(name) / plot, IMAGES / image)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        run_command(directory, "new first --ready regularisation")
        screens = record_screens(directory, "run first.toml --evaluation.every 1")
        rounds = [
            text for text in screens if " left" in text and "without tuning" not in text
        ]
        draw_terminal("fedbilevel run first.toml", rounds[len(rounds) // 2])
        run_command(directory, RIVAL)
        run_command(
            directory,
            f"compare runs/first runs/first-FedBiO --out {IMAGES}/comparison.svg",
        )
        run_command(directory, "tune first.toml")
        tuning = directory / "runs" / "first-tuned" / "tuning.svg"
        shutil.copyfile(tuning, IMAGES / "tuning.svg")
        run_command(directory, "plot runs/first")
        page = directory / "runs" / "first" / "report.html"
        photograph(browser(), page.as_uri(), IMAGES / "report.png", 1000, 1240)
        for ready, picture in (("loss_tuning", "classes"), ("representation", "units")):
            run_command(directory, f"new {ready} --ready {ready}")
            run_command(directory, f"run {ready}.toml")
            run_command(directory, f"plot runs/{ready}")
            drawn = directory / "runs" / ready / f"{picture}.svg"
            shutil.copyfile(drawn, IMAGES / drawn.name)


def run_tutorial(directory: Path, page: str) -> None:
    """Run the code blocks of a tutorial in a directory, as the tests do."""
    runner = ROOT / "tests" / "docs" / "pages.py"
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, runner, ROOT / "docs" / "tutorials" / f"{page}.md"],
        check=True,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": path},
    )


def run_command(directory: Path, arguments: str) -> None:
    """Run a command of `fedbilevel`."""
    command = [sys.executable, "-m", "fedbilevel", *arguments.split()]
    subprocess.run(command, check=True, cwd=directory)


def record_screens(directory: Path, arguments: str) -> list[str]:
    """Run a command in a terminal; return the text of its screen after each output."""
    command = [sys.executable, "-m", "fedbilevel", *arguments.split()]
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    screens = []
    for piece in run_in_terminal(command, directory, os.environ, COLUMNS):
        stream.feed(piece)
        screens.append("\n".join(line.rstrip() for line in screen.display).rstrip())
    return screens


def draw_terminal(title: str, text: str) -> None:
    """Write `progress.svg`: a screen as a window."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO())
    console.print(Text(f"$ {title}", style="bold"))
    console.print(Text(text))
    drawing = without_hosts(console.export_svg(title="fedbilevel"))
    (IMAGES / "progress.svg").write_text(drawing, "utf-8")


def without_hosts(drawing: str) -> str:
    """Return an SVG of Rich without fonts and links of other hosts.

    Rich embeds the address of a web font and of its project. A reader without a network
    sees the monospace font of their system, as the SVG requests after the web font.
    """
    return COMMENT.sub("", WEB_FONT.sub("", drawing))


if __name__ == "__main__":
    main()
