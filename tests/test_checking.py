"""Tests of the checks of types that the tests run with."""

from typing import Any

import jax.numpy as jnp
import pytest
from beartype import beartype
from jaxtyping import Array, Float, TypeCheckError, jaxtyped

from fedbilevel.mathematics import tree
from tests.checking import CHECKED_CALLS, calls

checked = jaxtyped(typechecker=beartype)


def tile(count: int) -> Any:
    @checked
    def repeat(vector: Float[Array, "n"]) -> Float[Array, "n"]:
        return jnp.tile(vector, count)

    return repeat


def test_arguments_and_results_of_another_type_are_found():
    assert tile(1)(jnp.ones(3)).shape == (3,)
    with pytest.raises(TypeCheckError, match=r"parameters of .*repeat"):
        tile(1)(jnp.ones((3, 2)))
    calls.clear()
    with pytest.raises(TypeCheckError, match=r"return value of .*repeat"):
        tile(2)(jnp.ones(3))


@pytest.mark.parametrize("repetition", [1, 2])
def test_the_first_calls_in_each_test_are_checked(repetition):
    for _ in range(CHECKED_CALLS):
        with pytest.raises(TypeCheckError):
            tile(1)(jnp.ones((3, 2)))
    assert tile(1)(jnp.ones((3, 2))).shape == (3, 2)


def test_functions_of_the_package_are_checked():
    factor: Any = "twice"
    with pytest.raises(TypeCheckError):
        tree.scale(factor, jnp.ones(3))
