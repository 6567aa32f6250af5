"""A system clock with an offset that is read from a file, for started programs."""

import subprocess
from pathlib import Path

from tests.platforms import require_linux


def false_clock(directory: Path) -> tuple[Path, dict[str, str]]:
    """Return the file of the clock offset, and the environment that applies it.

    Args:
        directory: directory of that file and of the library.

    Returns:
        The file of the offset in seconds, and the environment of programs.
    """
    require_linux()
    library, offset = directory / "clock.so", directory / "clock"
    source = Path(__file__).with_name("clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    offset.write_text("0")
    return offset, {"CLOCK_OFFSET": str(offset), "LD_PRELOAD": str(library)}
