"""Full-batch training of many models at once, on all sites or the trusted examples.

All contenders train with `fit`: it minimises, for each of several weightings of the
examples, Σ_i v_i loss(y; a_i, q_i) + λ‖y − c‖² from a start. A step needs one gradient
from every site and is one exchange. Models are vectors: batches of them are matrices.
"""

from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from benchmarks.sites.tasks import SitesTask

RIDGE = 1e-3
STEPS = 100
"""Exchanges of one training."""
HIDDEN = 32
RATE = 0.03
"""Adam's rate for the network, whose loss is not convex."""

Models = Float[Array, "models size"]
Loss = Literal["soft", "forward"]
"""Cross-entropy with soft labels, or −log of the chance that the site's label has."""


class Rows(NamedTuple):
    """Examples of all sites in one table.

    Attributes:
        features: features of all examples.
        targets: one-hot labels.
        site: site of each example.
        labels: labels.
    """

    features: Float[Array, "rows features"]
    targets: Float[Array, "rows classes"]
    site: Int[np.ndarray, "rows"]
    labels: Int[np.ndarray, "rows"]


class Network(NamedTuple):
    """Sizes of a model: softmax regression if there is no hidden layer."""

    features: int
    classes: int
    hidden: int

    @property
    def size(self) -> int:
        if not self.hidden:
            return self.classes * self.features
        return self.hidden * self.features + self.classes * (self.hidden + 1)

    def start(self, seed: int) -> Float[Array, "size"]:
        """Return the initial model."""
        if not self.hidden:
            return jnp.zeros(self.size, jnp.float32)
        draw = np.random.default_rng([seed, 2])
        inner = draw.normal(size=self.hidden * self.features) / np.sqrt(self.features)
        outer = draw.normal(size=self.classes * (self.hidden + 1)) / np.sqrt(
            self.hidden
        )
        return jnp.asarray(np.concatenate([2 * inner, 0.1 * outer]), jnp.float32)

    def scores(
        self, y: Float[Array, "size"], features: Float[Array, "rows features"]
    ) -> Float[Array, "rows classes"]:
        if not self.hidden:
            return features @ y.reshape(self.classes, self.features).T
        cut = self.hidden * self.features
        inner = jax.nn.relu(features @ y[:cut].reshape(self.hidden, self.features).T)
        outer = y[cut:].reshape(self.classes, self.hidden + 1)
        return inner @ outer[:, :-1].T + outer[:, -1][None]


@lru_cache(maxsize=4)
def rows_of(task: SitesTask) -> Rows:
    """Return the examples of all sites."""
    site = np.repeat(np.arange(len(task.sites)), [len(s.labels) for s in task.sites])
    return _rows(task, task.sites, site)


@lru_cache(maxsize=4)
def trusted_of(task: SitesTask) -> Rows:
    """Return the trusted examples of all places."""
    size = sum(len(part.labels) for part in task.trusted)
    return _rows(task, task.trusted, np.zeros(size, int))


def _rows(task: SitesTask, parts: Any, site: np.ndarray) -> Rows:
    labels = np.concatenate([part.labels for part in parts])
    features = jnp.asarray(np.concatenate([part.features for part in parts]))
    targets = jnp.asarray(np.eye(task.classes, dtype=np.float32)[labels])
    return Rows(features, targets, site, labels)


def network_of(task: SitesTask) -> Network:
    """Return the model's sizes."""
    hidden = HIDDEN if task.architecture == "network" else 0
    return Network(task.test.features.shape[1], task.classes, hidden)


def sizes_of(task: SitesTask) -> Float[np.ndarray, "sites"]:
    return np.array([len(s.labels) for s in task.sites], float)


def example_weights(
    task: SitesTask, weights: Float[np.ndarray, "models sites"]
) -> Float[Array, "models rows"]:
    """Return weights of the examples with sum 1, from weights of the sites."""
    shares = np.asarray(weights, float)
    shares = shares / shares.sum(axis=1, keepdims=True)
    each = (shares / sizes_of(task))[:, rows_of(task).site]
    return jnp.asarray(each, jnp.float32)


@partial(jax.jit, static_argnames=("network", "loss"))
def losses_of(
    network: Network,
    y: Models,
    features: Float[Array, "rows features"],
    targets: Float[Array, "#models rows classes"],
    loss: Loss = "soft",
) -> Float[Array, "models rows"]:
    """Return the loss of every model on every example."""

    def losses(y: Array, targets: Array) -> Array:
        logs = jax.nn.log_softmax(network.scores(y, features))
        if loss == "forward":
            return -jax.nn.logsumexp(logs + jnp.log(targets), axis=1)
        return -jnp.sum(targets * logs, axis=1)

    shared = targets.shape[0] == 1
    axes = (0, None) if shared else (0, 0)
    each: Array = jax.vmap(losses, axes)(y, targets[0] if shared else targets)
    return each


class State(NamedTuple):
    """A point of accelerated gradient descent, or of Adam."""

    y: Models
    ahead: Models
    first: Array
    second: Array


def initial(network: Network, y: Models) -> State:
    """Return the state before the first step."""
    if network.hidden:
        return State(y, y, jnp.zeros_like(y), jnp.zeros_like(y))
    ones = jnp.ones(len(y), y.dtype)
    return State(y, y, ones, ones)


def advance(
    network: Network,
    state: State,
    gradient: Models,
    bound: Float[Array, "models"],
    number: Array,
) -> State:
    """Return the state after a step by the gradient at `state.ahead`.

    Softmax regression: Nesterov's method with the step 1 / bound, and a restart when
    the step goes uphill. Network: Adam, whose rate falls to 0 by a cosine.

    Args:
        network: sizes of the model.
        state: the last state.
        gradient: gradient at `state.ahead`.
        bound: bound of the curvature.
        number: number of the step divided by the number of steps.
    """
    if network.hidden:
        first = 0.9 * state.first + 0.1 * gradient
        second = 0.99 * state.second + 0.01 * gradient**2
        rate = RATE * 0.5 * (1 + jnp.cos(jnp.pi * number))
        # Bias corrections, which matter in the first steps only, cancel nearly.
        y = state.y - rate * first / (jnp.sqrt(second) + 1e-6)
        return State(y, y, first, second)
    y = state.ahead - gradient / bound[:, None]
    uphill = jnp.sum(gradient * (y - state.y), axis=1) > 0
    age = jnp.where(uphill, 1.0, state.first)
    later = (1 + jnp.sqrt(1 + 4 * age**2)) / 2
    ahead = y + ((age - 1) / later)[:, None] * (y - state.y)
    return State(y, ahead, later, later)


@partial(jax.jit, static_argnames="network")
def curvature(
    network: Network, features: Array, weights: Array, penalty: Float[Array, "models"]
) -> Float[Array, "models"]:
    """Return the curvature of weighted softmax regression, a little enlarged.

    The largest eigenvalue of the features' second moments comes from power iteration.
    Covariances of classes have eigenvalues up to 1/2; with ten classes, half of it.
    """
    if network.hidden:
        return penalty
    start = jnp.ones((len(weights), features.shape[1]), features.dtype)

    def multiply(_: int, vector: Array) -> Array:
        image: Array = (weights * (vector @ features.T)) @ features
        length: Array = jnp.linalg.norm(image, axis=1, keepdims=True)
        return image / (length + 1e-12)

    vector = jax.lax.fori_loop(0, 10, multiply, start)
    largest = jnp.sum(weights * (vector @ features.T) ** 2, axis=1)
    spread = 0.5 if network.classes == 2 else 0.25
    bound: Array = 1.1 * spread * largest + 2 * penalty
    return bound


@partial(jax.jit, static_argnames=("network", "loss"))
def _fit(
    network: Network,
    loss: Loss,
    steps: Int[Array, ""],
    features: Array,
    targets: Array,
    weights: Array,
    start: Models,
    centre: Models,
    penalty: Array,
    bound: Array,
) -> Models:
    def value(y: Models) -> Array:
        fits = jnp.sum(weights * losses_of(network, y, features, targets, loss))
        return fits + jnp.sum(penalty[:, None] * (y - centre) ** 2)

    def step(number: Array, state: State) -> State:
        gradient = jax.grad(value)(state.ahead)
        return advance(network, state, gradient, bound, number / steps)

    # The number of steps is no constant of the program, which is compiled once.
    last: State = jax.lax.fori_loop(0, steps, step, initial(network, start))
    return last.y


def fit(
    task: SitesTask,
    rows: Rows,
    weights: Float[Array, "models rows"],
    *,
    targets: Float[Array, "#models rows classes"] | None = None,
    start: Models | None = None,
    centre: Models | None = None,
    penalty: float | Float[np.ndarray, "models"] = RIDGE,
    steps: int = STEPS,
    loss: Loss = "soft",
    bound: Float[Array, "models"] | None = None,
) -> Models:
    """Return a model for each row of weights.

    Args:
        task: the task.
        rows: training examples.
        weights: weights of the examples of each model, with sum 1.
        targets: soft labels, for all models or for each; default: the labels.
        start: initial models.
        centre: point to which the penalty pulls.
        penalty: factor of the penalty, of all models or of each.
        steps: number of steps.
        loss: loss of an example.
        bound: curvature of each model's loss; default: computed.
    """
    network, count = network_of(task), len(weights)
    if targets is None:
        targets = rows.targets[None]
    first = network.start(task.seed)
    if start is None:
        start = jnp.tile(first[None], (count, 1))
    if centre is None:
        centre = jnp.zeros_like(start)
    penalties = jnp.broadcast_to(jnp.asarray(penalty, jnp.float32), (count,))
    if bound is None:
        masses = weights * jnp.sum(targets, axis=2)
        bound = curvature(network, rows.features, masses, penalties)
    y: Models = _fit(
        network,
        loss,
        jnp.int32(steps),
        rows.features,
        targets,
        weights,
        start,
        centre,
        penalties,
        bound,
    )
    return y


def train(
    task: SitesTask,
    weights: Float[np.ndarray, "models sites"],
    start: Models | None = None,
    steps: int = STEPS,
) -> Models:
    """Return a model for each weighting of the sites, as FedAvg would."""
    return fit(
        task, rows_of(task), example_weights(task, weights), start=start, steps=steps
    )


def chances(
    task: SitesTask, y: Models, features: Float[Array, "rows features"]
) -> Float[Array, "models rows classes"]:
    """Return the predicted chances of all classes."""
    predicted: Array = _chances(network_of(task), y, features)
    return predicted


@partial(jax.jit, static_argnames="network")
def _chances(network: Network, y: Models, features: Array) -> Array:
    def predict(model: Array) -> Array:
        return jax.nn.softmax(network.scores(model, features))

    predicted: Array = jax.vmap(predict)(y)
    return predicted


def trusted_losses(task: SitesTask, y: Models) -> Float[np.ndarray, "models"]:
    """Return the mean loss of each model on the trusted examples."""
    rows = trusted_of(task)
    each = losses_of(network_of(task), y, rows.features, rows.targets[None])
    return np.asarray(each.mean(axis=1), float)


def site_losses(task: SitesTask, y: Models) -> Float[np.ndarray, "models sites"]:
    """Return the mean loss of each model on each site's examples."""
    rows = rows_of(task)
    each = np.asarray(losses_of(network_of(task), y, rows.features, rows.targets[None]))
    starts = np.flatnonzero(np.diff(rows.site, prepend=-1))
    return np.asarray(np.add.reduceat(each, starts, axis=1) / sizes_of(task))
