"""Mistakes in a custom algorithm raise errors with the phase and a remedy."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import (
    BilevelProblem,
    InMemoryDevices,
    LocalExamples,
    Phase,
    Simulation,
    Upload,
    run,
)


def loss(x, y, batch):
    return jnp.mean((jnp.sum(y) - x * batch) ** 2)


PROBLEM = BilevelProblem(loss, loss)


class State(NamedTuple):
    x: Any
    y: Any
    count: Any


def with_mistake(**mistake: Any) -> Phase:
    right: dict[str, Any] = {
        "name": "lower",
        "steps": 1,
        "broadcast": lambda server: server.y,
        "start": lambda downlink, private, data, key: downlink,
        "step": lambda carry, data, key: 0.9 * carry,
        "finish": lambda carry, downlink, key: (Upload((carry,)), (), {}),
        "server": lambda server, mean, key: server._replace(y=mean.update[0]),
    }
    return Phase(**(right | mistake))


@jax.tree_util.register_static
@dataclass(frozen=True)
class Mine:
    """An algorithm with one mistake."""

    mistake: Any = None
    first: Any = None

    def init(self, problem, x, y):
        return (State(x, y, jnp.asarray(0)), ()) if self.first is None else self.first

    def opening(self, problem):
        return ()

    def phases(self, problem):
        return (with_mistake(),) if self.mistake is None else self.mistake


def carried_out(algorithm: Any, rounds: int = 2, **settings: Any) -> list[Any]:
    ones = np.ones(1)
    devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
    start = 1.0, np.zeros(3)
    return list(run(PROBLEM, algorithm, devices, *start, rounds=rounds, **settings))


def finish(*returned: Any) -> tuple[Phase, ...]:
    return (with_mistake(finish=lambda carry, downlink, key: returned),)


def server(change: Any) -> tuple[Phase, ...]:
    return (with_mistake(server=lambda state, mean, key: change(state)),)


NO_TUPLE: Any = [1.0]
MISTAKES = {
    "finish returned a float as the upload. Return Upload": finish(1.0, (), {}),
    "finish returned a tuple of 2. Return a tuple of 3: an Upload": finish(
        Upload(()), ()
    ),
    "an Upload whose update is .*. Pass a tuple": finish(Upload(NO_TUPLE), (), {}),
    "finish returned a list as the report. Return a dictionary": finish(
        Upload((np.zeros(3),)), (), []
    ),
    r"state of another form than init: it was empty and is float64\[3\]": finish(
        Upload((np.zeros(3),)), np.zeros(3), {}
    ),
    "another form than its input: it was State": server(lambda state: None),
    r"\.y was float64\[3\] and is float64\[\]": server(
        lambda state: state._replace(y=jnp.asarray(0.0))
    ),
    r"\.count was int64\[\] and is float64\[\]": server(
        lambda state: state._replace(count=state.count.astype(float))
    ),
    "Mine.phases returned a Phase. Return a tuple of Phase": with_mistake(),
    "Mine.phases returned a generator. Return a tuple": (
        with_mistake() for _ in range(2)
    ),
    "Mine.phases returned a tuple of 1 with an int": (1,),
    "with steps=2.0. Pass a whole number": (with_mistake(steps=2.0),),
}


@pytest.mark.slow
@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_in_a_phase_is_named(message):
    with pytest.raises(TypeError, match=message):
        carried_out(Mine(MISTAKES[message]))


def test_without_a_mistake_it_runs():
    assert len(carried_out(Mine())) == 2


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (
            State(1.0, 2.0, 3),
            "Mine.init returned a State. Return a pair: the server state",
        ),
        (((1.0, 2.0), ()), "a tuple of 2 as the server state. Return an object with"),
        (({"x": 1.0, "y": 1.0}, ()), "Mine.init returned a dict as the server state"),
    ],
)
def test_a_first_state_of_another_form_is_named(first, message):
    with pytest.raises(TypeError, match=message):
        carried_out(Mine(first=first))


@dataclass(frozen=True)
class Unregistered(Mine):
    pass


def test_a_class_that_jax_does_not_know_is_named():
    message = "Unregistered is not registered with JAX. Put @register of fedbilevel"
    with pytest.raises(TypeError, match=message):
        carried_out(Unregistered())


class Counting(Simulation):
    """An engine with a custom exchange."""

    def exchange(self, *arguments: Any) -> Any:
        EXCHANGES.append(arguments[2])
        return super().exchange(*arguments)


EXCHANGES: list[Any] = []


def test_an_engine_that_changes_exchanges_has_all_of_them():
    EXCHANGES.clear()
    carried_out(Mine(), rounds=7, engine=Counting(), every=5)
    assert len(EXCHANGES) == 7
