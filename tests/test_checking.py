"""Tests of the checks of types that the tests run with."""

from typing import Any

import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float, TypeCheckError, jaxtyped

from tests.checking import check, checks

checked = jaxtyped(typechecker=check)


def tile(count: int) -> Any:
    @checked
    def repeat(vector: Float[Array, "n"]) -> Float[Array, "n"]:
        return jnp.tile(vector, count)

    return repeat


def test_nested_functions_of_one_signature_share_a_check():
    assert tile(1)(jnp.ones(3)).shape == (3,)
    count = len(checks)
    assert tile(1)(jnp.ones(2)).shape == (2,)
    assert len(checks) == count


def test_a_shared_check_finds_arguments_and_results_of_another_type():
    for _ in range(2):
        assert tile(1)(jnp.ones(3)).shape == (3,)
        with pytest.raises(TypeCheckError, match=r"parameters of .*repeat"):
            tile(1)(jnp.ones((3, 2)))
        with pytest.raises(TypeCheckError, match=r"return value of .*repeat"):
            tile(2)(jnp.ones(3))


@pytest.mark.parametrize("kind", [int, str])
def test_functions_of_one_name_and_other_types_have_checks_of_their_own(kind):
    def same(value):
        return value

    same.__annotations__ = {"value": kind, "return": kind}
    kept = checked(same)
    assert kept(kind(1)) == kind(1)
    with pytest.raises(TypeCheckError):
        kept(1.5)


def test_local_classes_of_one_name_are_told_apart():
    def make() -> Any:
        class Local:
            pass

        @checked
        def keep(value: Local) -> Local:
            return value

        return Local, keep

    (first, keep_first), (second, keep_second) = make(), make()
    assert keep_first(first())
    assert keep_second(second())
    with pytest.raises(TypeCheckError):
        keep_second(first())


def test_default_values_are_checked_each_time():
    def make(value: Any) -> Any:
        @checked
        def same(number: int = value) -> int:
            return number

        return same

    assert make(1)() == 1
    with pytest.raises(TypeCheckError):
        make("one")()
