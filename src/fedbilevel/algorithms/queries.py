"""Exchanges without local steps: a question to all devices, and their mean answer."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
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
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper

Answer: TypeAlias = Callable[[Downlink, DeviceData, RandomKey], PyTree]
"""What one device answers, from the question and its own data."""


def ask(
    name: str,
    broadcast: Callable[[Server], Downlink],
    answer: Answer,
    server: Callable[[Server, PyTree, RandomKey], Server],
    like: Callable[[Downlink], PyTree] | None = None,
) -> Phase:
    """Return the exchange that asks every device and averages the answers.

    Args:
        name: of the exchange.
        broadcast: the question.
        answer: of one device.
        server: what becomes of the mean answer.
        like: a variable of the question whose shapes the answer has, where answers of
            honest devices are of about one size, as gradients are, so that one of quite
            another size is not to be trusted.

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
        answered, private = carry
        upload = Upload((), answered) if like is None else Upload((answered,))
        return upload, private, {}

    def told(state: Server, mean: Upload, key: RandomKey) -> Server:
        return server(state, mean.beside if like is None else mean.update[0], key)

    def nothing(downlink: Downlink) -> tuple[PyTree, ...]:
        assert like is not None
        return (tree.zeros_like(like(downlink)),)

    return Phase(
        name=name,
        steps=0,
        broadcast=broadcast,
        start=start,
        step=lambda carry, data, key: carry,
        finish=finish,
        server=told,
        reference=None if like is None else nothing,
    )


def lower_gradient(problem: BilevelProblem, batch_size: int) -> Answer:
    """Return the answer ∇y g at (x, y).

    Example:
        >>> loss = lambda x, y, batch: y**2
        >>> callable(lower_gradient(BilevelProblem(loss, loss), batch_size=4))
        True
    """

    def answer(
        downlink: tuple[Upper, Lower], data: DeviceData, key: RandomKey
    ) -> Lower:
        (batch,) = data.lower.draw(key, batch_size, draws=1)
        return problem.lower_gradient(*downlink, batch)

    return answer


def upper_gradient(problem: BilevelProblem, batch_size: int) -> Answer:
    """Return the answer ∇y f at (x, y).

    Example:
        >>> loss = lambda x, y, batch: y**2
        >>> callable(upper_gradient(BilevelProblem(loss, loss), batch_size=4))
        True
    """

    def answer(
        downlink: tuple[Upper, Lower], data: DeviceData, key: RandomKey
    ) -> Lower:
        (batch,) = data.upper.draw(key, batch_size, draws=1)
        return problem.upper_gradients(*downlink, batch)[1]

    return answer


def next_power(problem: BilevelProblem, batch_size: int, scale: tree.Scalar) -> Answer:
    """Return the answer (I − θH) v at (x, y, v): one more power of a Neumann series.

    Example:
        >>> loss = lambda x, y, batch: y**2
        >>> callable(next_power(BilevelProblem(loss, loss), batch_size=4, scale=0.5))
        True
    """

    def answer(
        downlink: tuple[Upper, Lower, Lower], data: DeviceData, key: RandomKey
    ) -> Lower:
        x, y, power = downlink
        (batch,) = data.lower.draw(key, batch_size, draws=1)
        product = problem.hessian_product(x, y, batch, power)
        return tree.add_scaled(power, -scale, product)

    return answer


def hypergradient(problem: BilevelProblem, batch_size: int) -> Answer:
    """Return the answer ∇x f − J r at (x, y, r), right where r = H̄⁻¹ ∇y f̄.

    Example:
        >>> loss = lambda x, y, batch: y**2
        >>> callable(hypergradient(BilevelProblem(loss, loss), batch_size=4))
        True
    """

    def answer(
        downlink: tuple[Upper, Lower, Lower], data: DeviceData, key: RandomKey
    ) -> Upper:
        x, y, r = downlink
        upper_key, lower_key = jax.random.split(key)
        (upper,) = data.upper.draw(upper_key, batch_size, draws=1)
        (lower,) = data.lower.draw(lower_key, batch_size, draws=1)
        gradient, _ = problem.upper_gradients(x, y, upper)
        return tree.subtract(gradient, problem.cross_product(x, y, lower, r))

    return answer
