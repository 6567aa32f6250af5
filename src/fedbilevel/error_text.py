"""The text of an exception, shortened for a message of one sentence."""


def first_line(error: BaseException, longest: int | None = None) -> str:
    r"""Return the first line of an exception's text; empty if it has none.

    Args:
        error: exception of any package; even its `__str__` may raise.
        longest: maximum number of characters; no limit by default.

    Example:
        >>> first_line(ValueError("no such file\nsee the log"))
        'no such file'
    """
    try:
        lines = str(error).strip().splitlines()
    except Exception:
        return ""
    return lines[0][:longest] if lines else ""
