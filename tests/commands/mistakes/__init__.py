"""Mistakes of users of the command line, with the three parts of each message.

`python -m tests.commands.mistakes` makes all of them in one process, and prints the
messages as JSON.
"""

from tests.commands.mistakes import (
    of_algorithms,
    of_arguments,
    of_files,
    of_other_commands,
    of_problems,
    of_runs,
    of_settings,
)
from tests.commands.mistakes.mistake import Mistake

__all__ = ["MISTAKES", "Mistake"]

MISTAKES = (
    *of_files.MISTAKES,
    *of_algorithms.MISTAKES,
    *of_settings.MISTAKES,
    *of_problems.MISTAKES,
    *of_arguments.MISTAKES,
    *of_runs.MISTAKES,
    *of_other_commands.MISTAKES,
)
