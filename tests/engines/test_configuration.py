"""Two runs are the same only if all settings that determine their numbers are."""

import functools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from beartype import beartype

from fedbilevel.engines.fingerprint import describe, differences

SCALE = 1.0


def helper(value: Any) -> Any:
    return SCALE * value


def through_a_helper(x, y, batch):
    return helper(y)


class Network:
    def __init__(self, width: float) -> None:
        self.width = width

    def loss(self, x, y, batch):
        return self.width * y


def with_keyword(x, y, batch, *, penalty=1.0):
    return penalty * y


def closure(value: float) -> Any:
    return lambda x, y, batch: value * y


def keyword_default(value: float) -> Any:
    def loss(x, y, batch, *, penalty=value):
        return penalty * y

    return loss


MAKERS: dict[str, Any] = {
    "closure": closure,
    "compiled": lambda value: jax.jit(closure(value)),
    "partial": lambda value: functools.partial(with_keyword, penalty=value),
    "tree partial": lambda value: jax.tree_util.Partial(with_keyword, penalty=value),
    "method": lambda value: Network(value).loss,
    "object": lambda value: SimpleNamespace(weights=np.full(3, value)),
    "keyword default": keyword_default,
    "cosine schedule": lambda value: optax.cosine_decay_schedule(value, 100),
    "exponential schedule": lambda value: optax.exponential_decay(1.0, 50, value),
    "warm-up schedule": lambda value: optax.warmup_cosine_decay_schedule(
        0.0, value, 5, 100
    ),
    "array": lambda value: jnp.array([1.0, value]),
    "key": lambda value: jax.random.key(int(10 * value)),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_changed_number_is_seen_wherever_it_is(make):
    assert differences(describe(make(0.5)), describe(make(0.5))) == []
    assert differences(describe(make(0.5)), describe(make(0.6)))


def test_globals_and_functions_that_a_loss_refers_to_belong_to_it(monkeypatch):
    before = describe(through_a_helper)
    monkeypatch.setattr("tests.engines.test_configuration.SCALE", 2.0)
    assert differences(before, describe(through_a_helper)) == [
        "helper.SCALE was 1.0 and is 2.0"
    ]


def test_functions_that_refer_to_each_other_have_an_end():
    def one(x):
        return other(x)

    def other(x):
        return one(x)

    assert describe(one)["other"]["one"] == "itself"


def test_a_change_that_shows_in_many_places_is_told_once():
    def oracles(value: float) -> dict[str, Any]:
        loss = closure(value)
        return {"loss": loss, "gradient": jax.jit(loss)}

    actual = differences(describe(oracles(0.5)), describe(oracles(0.6)))
    assert actual == ["loss.value was 0.5 and is 0.6"]


def test_a_wrapper_of_a_library_is_looked_through_and_one_of_the_user_is_not():
    # A type checker's wrapper has its own attributes, and wraps callees of a loss too.
    assert describe(beartype(through_a_helper)) == describe(through_a_helper)

    def scaled(factor: float) -> Any:
        @functools.wraps(through_a_helper)
        def wrapper(x, y, batch):
            return factor * through_a_helper(x, y, batch)

        return wrapper

    assert differences(describe(scaled(0.5)), describe(scaled(0.6))) == [
        "factor was 0.5 and is 0.6"
    ]


def test_differences_have_no_digests():
    before = {"x": describe(jnp.zeros(2)), "loss": describe(closure(0.5))}
    after = {"x": describe(jnp.ones(2)), "loss": describe(lambda x, y, batch: 0.0)}
    values, loss = differences(before, after)
    assert values == "x has other values"
    assert loss.startswith("loss was closure.<locals>.")
    edited = {"loss": {"function": "loss", "code": "0" * 32}}
    original = {"loss": {"function": "loss", "code": "1" * 32}}
    assert differences(original, edited) == ["the code of loss has changed"]
