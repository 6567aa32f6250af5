"""The text of a traced program, the same on every machine with one version of JAX."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ADDRESS = re.compile(r"0x[0-9a-f]+")
"""Address of an object in memory, which differs between processes."""
DECIMAL = re.compile(r"\b\d+(?:\.\d*(?:e[+-]?\d+)?|e[+-]?\d+)")
DIGITS = 5
"""Significant digits of numbers: processors differ in the last bits of exp and log."""


def program_text(program: Any) -> str:
    """Return the text of a program of JAX, with its constants.

    Args:
        program: result of `jax.make_jaxpr`.

    Example:
        >>> import jax
        >>> program = jax.make_jaxpr(lambda x: 0.123456789 * x)(1.0)
        >>> program_text(program).strip()
        '{ lambda ; a:f32[]. let b:f32[] = mul 0.12346:f32[] a in (b,) }'
    """
    constants = [
        constant_text(value) for part in _programs(program) for value in part.consts
    ]
    return "\n".join([plain_text(str(program.jaxpr)), *constants]) + "\n"


def plain_text(text: str) -> str:
    """Return a program's text without addresses, and with rounded numbers.

    Example:
        >>> plain_text("<function f at 0x7f2a> 0.30000000000000004")
        '<function f at 0x> 0.3'
    """

    def rounded(number: re.Match[str]) -> str:
        return f"{float(number[0]):.{DIGITS}g}"

    return DECIMAL.sub(rounded, ADDRESS.sub("0x", text))


def constant_text(value: Any) -> str:
    """Return a text for an array of a program, which rounding errors do not change.

    Example:
        >>> constant_text(np.array([0.1, 0.2])) == constant_text(np.array([0.1, 0.3]))
        False
        >>> constant_text(np.ones(2)) == constant_text(np.ones(2) + 1e-12)
        True
    """
    is_array = hasattr(value, "dtype")
    if is_array and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    form = f"{array.dtype}{list(array.shape)}"
    if array.dtype.kind not in "fV":
        return f"{form} {hashlib.sha256(array.tobytes()).hexdigest()}"
    # The norm, and the part in a random direction.
    numbers = np.ravel(array).astype(np.float64)
    norm = float(np.linalg.norm(numbers))
    direction = np.random.default_rng(0).normal(size=numbers.size)
    share = float(direction @ numbers) / (norm or 1.0)
    return f"{form} {norm:.{DIGITS}g} {share + 0.0:.{DIGITS - 1}f}"


def inner_programs(parameters: Any) -> Iterator[Any]:
    """Yield the programs in the parameters of an equation.

    Example:
        >>> import jax
        >>> (equation,) = jax.make_jaxpr(jax.jit(abs))(1.0).eqns
        >>> [program.eqns[0].primitive.name for program in inner_programs(
        ...     equation.params)]
        ['abs']
    """
    for value in _parts(parameters):
        yield getattr(value, "jaxpr", value)


def _programs(program: Any) -> Iterator[Any]:
    """Yield a program and all programs within, of those that have constants."""
    if hasattr(program, "consts"):
        yield program
    for equation in program.eqns:
        for inner in _parts(equation.params):
            yield from _programs(inner)


def _parts(parameters: Any) -> Iterator[Any]:
    """Yield the programs in the parameters of an equation, with their constants."""
    if isinstance(parameters, Mapping):
        parameters = tuple(parameters.values())
    for value in parameters:
        if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
            yield value
        elif isinstance(value, tuple | list):
            yield from _parts(value)
