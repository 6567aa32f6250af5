"""Mistakes of tune, federate, doctor and completion; none of them starts a server."""

from tests.commands.mistakes.mistake import ALGORITHM, SMALL, Mistake, of_file, typed


def federated(name: str, lines: str, cause: str, place: str, cure: str) -> Mistake:
    """Return a mistake of the command federate; `lines` come before the first table."""
    mistake = of_file(name, lines + ALGORITHM + SMALL, cause, place, cure)
    return mistake._replace(arguments="federate a.toml")


MISTAKES = (
    typed(
        "nothing to tune",
        "tune nowhere.toml",
        "cannot be read: No such file or directory",
        "tune: nowhere.toml",
        "give the path of an experiment file",
    ),
    typed(
        "no trials", "tune a.toml --trials 0", "is 0", "--trials", "Give at least 1."
    ),
    typed(
        "a metric that cannot be tuned",
        "tune a.toml --metric accuraci",
        "this experiment has no such metric",
        "--metric accuraci",
        "did you mean accuracy?",
        text=ALGORITHM + SMALL,
    ),
    federated(
        "an unknown key of a federation",
        "federation.quorums = 3\n",
        "unknown key federation.quorums",
        "a.toml, line 1",
        "did you mean quorum?",
    ),
    federated(
        "a quorum above the number of sites",
        "federation.quorum = 9\n",
        "is 9, but there are 8 sites",
        "federation.quorum",
        "give at most 8.",
    ),
    federated(
        "names for some of the sites",
        'federation.sites = ["north", "south"]\n',
        "has 2 names, but the examples are split over 8 devices",
        "federation.sites",
        "make the two numbers equal.",
    ),
    federated(
        "a directory that is no kit",
        'federation.kit = "nowhere"\n',
        "is not a startup kit of an administrator",
        "startup/fed_admin.json is missing",
        "Give the directory that nvflare provision created for an administrator.",
    ),
    typed(
        "an unknown option of doctor",
        "doctor --jsn",
        "is not an option",
        "--jsn",
        "Did you mean --json? See fedbilevel doctor --help.",
    ),
    typed(
        "an argument of doctor",
        "doctor jax",
        "is one argument too many",
        "doctor: jax",
        "Remove it.",
    ),
    typed(
        "no shell",
        "completion",
        "is missing",
        "SHELL",
        "Give one of bash, zsh, fish.",
    ),
    typed(
        "a misspelt shell",
        "completion bsh",
        "is 'bsh'",
        "SHELL",
        "Did you mean bash? See fedbilevel completion --help.",
    ),
    typed(
        "a shell without completion",
        "completion powershell",
        "is 'powershell'",
        "SHELL",
        "Give one of bash, zsh, fish.",
    ),
)
