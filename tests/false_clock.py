"""A wall clock that is off by what a file says, for programs started with it."""

import subprocess
from pathlib import Path


def false_clock(directory: Path) -> tuple[Path, dict[str, str]]:
    """Return a file for the seconds by which clocks are off, and who believes it.

    Args:
        directory: for that file and the library.

    Returns:
        The file, and the environment of programs that read it.
    """
    library, offset = directory / "clock.so", directory / "clock"
    source = Path(__file__).with_name("clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    offset.write_text("0")
    return offset, {"CLOCK_OFFSET": str(offset), "LD_PRELOAD": str(library)}
