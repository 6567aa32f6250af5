"""Content of the file of an offline run of W&B."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER, PIECE = 32768, 7, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def wandb_records(file: Path) -> Iterator[Any]:
    """Yield the messages of a file, in LevelDB's log format after a short header."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, whole = file.read_bytes(), HEADER, b""
    assert data[:4] == b":W&B"
    while place < len(data):
        left = BLOCK - place % BLOCK
        if left < PIECE:
            place += left
            continue
        size = int.from_bytes(data[place + 4 : place + 6], "little")
        kind = data[place + 6]
        piece = data[place + PIECE : place + PIECE + size]
        whole = piece if kind in (FULL, FIRST) else whole + piece
        if kind in (FULL, LAST):
            yield Record.FromString(whole)
        place += PIECE + size


def wandb_history(file: Path) -> list[dict[str, Any]]:
    """Return the logged values, one dictionary per call."""
    return [
        {one.key or one.nested_key[0]: json.loads(one.value_json) for one in items}
        for record in wandb_records(file)
        if (items := record.history.item)
    ]
