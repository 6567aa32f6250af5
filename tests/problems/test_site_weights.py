"""The ready-made problem of site weights: its start, its derivatives, its mistakes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import AutoFedBiO, Weights, run, with_whole_batches
from fedbilevel.metrics import newton_reference
from fedbilevel.problems import (
    ClassWeights,
    LabelledRows,
    LabelMaps,
    PlainWeights,
    linear_label_losses,
    site_weights,
)

FORMS = {"weights": PlainWeights(), "classes": ClassWeights(), "maps": LabelMaps()}
Y = np.zeros((3, 4))


def rows(count: int, seed: int, shift: int = 0) -> LabelledRows:
    """Return examples of three classes; labels are shifted by some classes."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(count, 4))
    return LabelledRows(features, (features[:, :3].argmax(1) + shift) % 3)


SITES = {"Oslo": rows(40, 0), "Rome": rows(80, 1), "Bonn": rows(60, 2, shift=1)}


def task_of(form, **changes):
    settings: dict[str, Any] = {
        "sites": SITES,
        "trusted": rows(60, 9),
        "y": Y,
        "classes": 3,
    }
    return site_weights(linear_label_losses, **settings | {"form": form} | changes)


@pytest.mark.parametrize("name", FORMS)
def test_the_start_is_averaging_by_size(name):
    """Plain weights have the losses of averaging by size at every y."""
    task = task_of(FORMS[name])
    reference = newton_reference(task.problem, task.devices)
    y = reference.lower_solution(task.x, Y)
    pooled = [np.concatenate(parts) for parts in zip(*SITES.values(), strict=True)]

    def pooled_loss(y):
        losses = linear_label_losses(y, jnp.asarray(pooled[0]))
        targets = jnp.eye(3)[pooled[1]]
        if name == "maps":
            targets = jax.nn.softmax(3.0 * jnp.eye(3), axis=1)[pooled[1]]
        mean = jnp.mean(jnp.sum(targets * losses, axis=1))
        return mean + 0.5 * 0.002 * jnp.sum(y**2)

    gradient = jax.grad(pooled_loss)(jnp.asarray(y))
    np.testing.assert_allclose(gradient, 0.0, atol=1e-8)


@pytest.mark.parametrize("name", FORMS)
def test_the_hypergradient_is_that_of_differences(name):
    task = task_of(FORMS[name])
    reference = newton_reference(task.problem, task.devices)
    gradient = reference.hypergradient(task.x, Y)
    generator = np.random.default_rng(0)
    direction = jax.tree.map(lambda leaf: generator.normal(size=np.shape(leaf)), task.x)
    # The server has no training examples, so its entries have no effect.
    trusted = rows(60, 9)

    def objective(step: float) -> float:
        x = jax.tree.map(lambda a, b: np.asarray(a) + step * b, task.x, direction)
        y = reference.lower_solution(x, Y)
        losses = linear_label_losses(jnp.asarray(y), jnp.asarray(trusted.features))
        return float(jnp.mean(losses[jnp.arange(60), trusted.labels]))

    slope = (objective(1e-4) - objective(-1e-4)) / 2e-4
    along = sum(
        float(np.sum(a * b))
        for a, b in zip(
            jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True
        )
    )
    np.testing.assert_allclose(along, slope, rtol=1e-5)


@pytest.mark.slow
def test_a_site_of_another_convention_loses_its_weight_or_gets_its_map():
    for form in (PlainWeights(), LabelMaps()):
        task = task_of(form)
        algorithm = with_whole_batches(
            AutoFedBiO(rounds=80, upper_rate=0.1, local_steps=1)
        )
        *_, last = run(
            task.problem,
            algorithm,
            task.devices,
            task.x,
            task.y,
            rounds=80,
            every=80,
        )
        if isinstance(form, PlainWeights):
            oslo, rome, bonn, server = np.asarray(last.x.all_weights())
            assert bonn < 0.3 < 1 < max(oslo, rome)
            assert server == 0
        else:
            maps = np.asarray(jax.nn.softmax(last.x.map.rows, axis=2))
            # Label t of Bonn means class t − 1; those of Oslo mean themselves.
            assert (maps[2].argmax(1) == np.array([2, 0, 1])).all()
            assert (maps[0].argmax(1) == np.arange(3)).all()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"sites": {}}, "sites is empty"),
        ({"trusted": {}}, "trusted is empty"),
        ({"sites": SITES | {"server": rows(9, 3)}}, "A site has the name 'server'"),
        ({"classes": 2}, "Site 'Oslo': a label is 2, expected 0 to 1 with classes=2"),
        (
            {"sites": {"Ulm": LabelledRows(np.ones((2, 4)), np.array([-1, 1]))}},
            "Site 'Ulm': a label is -1, expected 0 to 2",
        ),
        (
            {"sites": {"Ulm": LabelledRows(np.ones((2, 4)), np.array([0.0, 1.0]))}},
            "Site 'Ulm': labels have dtype float64",
        ),
    ],
)
def test_wrong_sites_are_refused(changes, text):
    with pytest.raises(ValueError, match=text):
        task_of(PlainWeights(), **changes)


def test_trusted_examples_may_be_at_sites():
    task = task_of(PlainWeights(), trusted={"Rome": rows(30, 5), "lab": rows(20, 6)})
    assert task.devices.names == ("Oslo", "Rome", "Bonn", "lab")
    assert task.devices.upper_sizes.tolist() == [0, 30, 0, 20]
    assert task.devices.lower_sizes.tolist() == [40, 80, 60, 0]
    assert Weights(upper={"lab": 1.0}).upper == {"lab": 1.0}
