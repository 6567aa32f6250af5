"""Run every case of the table in a process without the type checks of tests."""

import json
import sys

from tests.hostile.cases import CASES


def answer(case: object) -> dict[str, str] | None:
    try:
        case.call()  # type: ignore[attr-defined]
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error)}
    return None


def main() -> None:
    json.dump([answer(case) for case in CASES], sys.stdout)


if __name__ == "__main__":
    main()
