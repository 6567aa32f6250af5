"""Both algorithms written by hand in JAX: the reference for the overhead.

This module does not import the package. A round is one jitted scan over stacked arrays
with donated buffers. It uses every optimisation that measured faster: batches gathered
one by one from flat arrays, the series unrolled, large federations processed in groups
that fit the cache.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec


class Settings(NamedTuple):
    """Settings of both programs."""

    devices: int
    batch: int
    group: int
    p: int = 10
    q: int = 5
    theta: float = 0.05
    eta: float = 0.1
    rho1: float = 0.5
    rho2: float = 0.5
    alpha: float = 2.0
    beta: float = 2.0


def cross_entropy(y, features, labels):
    scores = features @ y.T
    chosen = jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(scores, axis=1) - chosen)


def f(x, y, features, labels):
    return cross_entropy(y, features, labels)


def g(x, y, features, labels):
    return cross_entropy(y, features, labels) + 0.5 * jnp.sum(
        jnp.exp(x)[None, :] * y**2
    )


gradient_y = jax.grad(g, argnums=1)


def hypergradient(x, y, upper, cross, curvature, theta):
    gx, gy = jax.grad(f, argnums=(0, 1))(x, y, *upper)
    power = total = gy
    for batch in reversed(curvature):
        product = jax.jvp(lambda y, b=batch: gradient_y(x, y, *b), (y,), (power,))[1]
        power = power - theta * product
        total = total + power

    def slope(x):
        return jax.jvp(lambda y: g(x, y, *cross), (y,), (theta * total,))[1]

    return gx - jax.grad(slope)(x)


def program(settings: Settings, algorithm: int) -> Callable[..., Any]:
    """Return the round: (x, y, u, v), data, key, number → (x, y, u, v)."""
    mean = mean_program(settings, algorithm)

    @partial(jax.jit, donate_argnums=0)
    def round_program(server, data, offsets, counts, key, number):
        keys = device_keys(key, number, jnp.arange(settings.devices))
        return mean(server, data, offsets, counts, keys)

    return round_program


def sharded_program(
    settings: Settings, algorithm: int, mesh: Mesh
) -> Callable[..., Any]:
    """Return the round of devices split over a mesh; each shard has its data."""
    mean = mean_program(settings, algorithm)

    def run_shard(server, data, offsets, counts, devices, key, number):
        data = jax.tree.map(lambda a: a[0], data)
        keys = device_keys(key, number, devices)
        return jax.lax.pmean(mean(server, data, offsets, counts, keys), "shards")

    split, whole = PartitionSpec("shards"), PartitionSpec()
    specs = whole, split, split, split, split, whole, whole
    mapped = jax.shard_map(
        run_shard, mesh=mesh, in_specs=specs, out_specs=whole, check_vma=False
    )
    return jax.jit(mapped, donate_argnums=0)


def device_keys(key, number, devices):
    key = jax.random.fold_in(jax.random.fold_in(key, number), 0)
    return jax.vmap(lambda k: jax.random.fold_in(key, k))(devices)


def mean_program(settings: Settings, algorithm: int) -> Callable[..., Any]:
    """Return the local steps of some devices and the mean of their results."""
    _, batch, group, p, q, theta, eta, rho1, rho2, alpha, beta = settings

    def draw(data, offset, count, key):
        upper_data, lower_data = data
        upper_key, lower_key = jax.random.split(key)

        def randint(key, shape):
            return jax.random.randint(key, shape, 0, count, jnp.int32)

        i = offset + randint(upper_key, (1, batch))
        j = offset + randint(lower_key, (2 + q, batch))
        get = partial(_rows, lower_data)
        return _rows(upper_data, i[0]), get(j[0]), get(j[1]), [get(k) for k in j[2:]]

    def step(carry, data, offset, count, key):
        x, y, u, v = carry
        x_new, y_new = x - rho1 * eta * u, y - rho2 * eta * v
        upper, lower, cross, curvature = draw(data, offset, count, key)
        h = hypergradient(x_new, y_new, upper, cross, curvature, theta)
        v_fresh = gradient_y(x_new, y_new, *lower)
        if algorithm == 1:
            u_new = (1 - alpha * eta) * u + alpha * eta * h
            v_new = (1 - beta * eta) * v + beta * eta * v_fresh
        else:
            h_old = hypergradient(x, y, upper, cross, curvature, theta)
            u_new = (1 - alpha * eta**2) * (u - h_old) + h
            v_old = gradient_y(x, y, *lower)
            v_new = (1 - beta * eta**2) * (v - v_old) + v_fresh
        return x_new, y_new, u_new, v_new

    def work(server, data, offsets, counts, keys):
        carry = jax.tree.map(
            lambda a: jnp.broadcast_to(a, (len(keys), *a.shape)), server
        )

        def body(carry, number):
            step_keys = jax.vmap(lambda k: jax.random.fold_in(k, number))(keys)
            new = jax.vmap(step, (0, None, 0, 0, 0))(
                carry, data, offsets, counts, step_keys
            )
            return new, None

        carry, _ = jax.lax.scan(body, carry, jnp.arange(1, p + 1))
        return jax.tree.map(lambda a: a.mean(0), carry)

    def mean(server, data, offsets, counts, keys):
        devices = len(keys)
        if group >= devices:
            return work(server, data, offsets, counts, keys)
        groups = jax.tree.map(
            lambda a: a.reshape(devices // group, group, *a.shape[1:]),
            (offsets, counts, keys),
        )
        means = jax.lax.map(lambda part: work(server, data, *part), groups)
        return jax.tree.map(lambda a: a.mean(0), means)

    return mean


def _rows(arrays, rows):
    return tuple(
        a.at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False)
        for a in arrays
    )
