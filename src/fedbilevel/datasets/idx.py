"""The IDX format of MNIST: a header with the shape, then bytes."""

import struct
from math import prod

import numpy as np
from jaxtyping import UInt8

_UNSIGNED_BYTES = 0x08


def parse_idx(name: str, content: bytes) -> UInt8[np.ndarray, "*shape"]:
    """Return the array of an IDX file of unsigned bytes.

    The file begins with two zeros, a code for the type and the number of axes; the
    length of each axis follows in four bytes, the most significant first.

    Args:
        name: file name, for the error message.
        content: content of the file.

    Returns:
        The array, read-only.

    Raises:
        ValueError: the content is not an IDX file of unsigned bytes.

    Example:
        >>> parse_idx("labels", bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 1, 9]))
        array([7, 1, 9], dtype=uint8)
    """
    if len(content) < 4 or content[:3] != bytes([0, 0, _UNSIGNED_BYTES]):
        raise ValueError(
            f"{name} is not an IDX file of unsigned bytes: it begins with "
            f"{content[:4].hex(' ') or 'nothing'}, expected 00 00 08. Replace the "
            "file, or decompress it."
        )
    axes = content[3]
    start = 4 + 4 * axes
    if len(content) < start:
        raise ValueError(f"{name} ends within its header. Replace the file.")
    shape = struct.unpack(f">{axes}I", content[4:start])
    if len(content) - start != prod(shape):
        raise ValueError(
            f"{name} has {len(content) - start} bytes after its header, but its shape "
            f"{shape} needs {prod(shape)}. Replace the file."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def format_idx(array: UInt8[np.ndarray, "*shape"]) -> bytes:
    """Return the IDX file of an array, as `parse_idx` reads it.

    Example:
        >>> format_idx(np.array([7, 1, 9], np.uint8)).hex(" ")
        '00 00 08 01 00 00 00 03 07 01 09'
    """
    shape = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, _UNSIGNED_BYTES, array.ndim]) + shape + array.tobytes()
