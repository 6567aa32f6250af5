"""Queries: exchanges without local steps that return the devices' mean answer."""

from collections.abc import Callable
from typing import Any, TypeAlias

from jaxtyping import PyTree

from fedbilevel.algorithms.protocol import (
    Downlink,
    Info,
    Phase,
    Private,
    Server,
    Upload,
)
from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics import keys, tree
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper

Answer: TypeAlias = Callable[[Downlink, DeviceData, RandomKey], PyTree]
"""A function from the query and a device's data to the device's answer."""


def ask(
    name: str,
    broadcast: Callable[[Server], Downlink],
    answer: Answer,
    server: Callable[[Server, PyTree, RandomKey], Server],
    like: Callable[[Downlink], PyTree] | None = None,
) -> Phase:
    """Return an exchange that averages the answers of all devices.

    Args:
        name: name of the exchange.
        broadcast: function from the server's state to the query.
        answer: function that computes one device's answer.
        server: function from the mean answer to the server's next state.
        like: function from the query to a variable with the shapes of the answer. Pass
            it if answers of honest devices have similar sizes, as gradients have, so
            that devices with another size are excluded.

    Example:
        >>> phase = ask(
        ...     "add one",
        ...     broadcast=lambda server: server,
        ...     answer=lambda downlink, data, key: downlink + 1,
        ...     server=lambda server, mean, key: mean,
        ... )
        >>> phase.steps
        0
    """

    def start(
        downlink: Downlink, private: Any, data: DeviceData, key: RandomKey
    ) -> Any:
        return answer(downlink, data, key), private

    def finish(
        carry: Any, downlink: Downlink, key: RandomKey
    ) -> tuple[Upload, Private, Info]:
        result, private = carry
        upload = Upload((), result) if like is None else Upload((result,))
        return upload, private, {}

    def update_server(state: Server, mean: Upload, key: RandomKey) -> Server:
        return server(state, mean.beside if like is None else mean.update[0], key)

    def zeros(downlink: Downlink) -> tuple[PyTree, ...]:
        assert like is not None
        return (tree.zeros_like(like(downlink)),)

    return Phase(
        name=name,
        steps=0,
        broadcast=broadcast,
        start=start,
        step=lambda carry, data, key: carry,
        finish=finish,
        server=update_server,
        reference=None if like is None else zeros,
    )


def lower_gradient(problem: BilevelProblem, batch_size: int) -> Answer:
    """Return the answer ∇y g at (x, y)."""

    def answer(
        downlink: tuple[Upper, Lower], data: DeviceData, key: RandomKey
    ) -> Lower:
        (batch,) = data.lower.draw(key, batch_size, draws=1)
        return problem.lower_gradient(*downlink, batch)

    return answer


def upper_gradient(problem: BilevelProblem, batch_size: int) -> Answer:
    """Return the answer ∇y f at (x, y)."""

    def answer(
        downlink: tuple[Upper, Lower], data: DeviceData, key: RandomKey
    ) -> Lower:
        (batch,) = data.upper.draw(key, batch_size, draws=1)
        return problem.upper_gradients(*downlink, batch)[1]

    return answer


def next_power(problem: BilevelProblem, batch_size: int, scale: tree.Scalar) -> Answer:
    """Return the answer (I − θH) v at (x, y, v): the next power of a Neumann series."""

    def answer(
        downlink: tuple[Upper, Lower, Lower], data: DeviceData, key: RandomKey
    ) -> Lower:
        x, y, power = downlink
        (batch,) = data.lower.draw(key, batch_size, draws=1)
        product = problem.hessian_product(x, y, batch, power)
        return tree.add_scaled(power, -scale, product)

    return answer


def hypergradient(problem: BilevelProblem, batch_size: int) -> Answer:
    """Return the answer ∇x f − J r at (x, y, r), the hypergradient if r = H̄⁻¹ ∇y f̄."""

    def answer(
        downlink: tuple[Upper, Lower, Lower], data: DeviceData, key: RandomKey
    ) -> Upper:
        x, y, r = downlink
        upper_key, lower_key = keys.split(key)
        (upper,) = data.upper.draw(upper_key, batch_size, draws=1)
        (lower,) = data.lower.draw(lower_key, batch_size, draws=1)
        gradient, _ = problem.upper_gradients(x, y, upper)
        return tree.subtract(gradient, problem.cross_product(x, y, lower, r))

    return answer
