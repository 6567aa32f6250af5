"""The library's own contenders: site weights and label maps, by `AutoFedBiO`.

Nothing is searched: one run from federated averaging by size, with whole batches and
one local step, so that a round is one exchange.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from benchmarks.sites.results import Result, finish
from benchmarks.sites.tasks import SitesTask
from benchmarks.sites.training import RIDGE, Network, network_of
from fedbilevel import AutoFedBiO, run, with_whole_batches
from fedbilevel.problems import LabelMaps, PlainWeights, SiteForm, site_weights

ROUNDS = 240
WEIGHT_STEP, MAP_STEP = 0.05, 0.1
"""Steps of Adam on logits of weights, and on those of maps."""


@dataclass(frozen=True)
class NetworkLosses:
    """Cross-entropies of a network, for each label. Equal for equal sizes.

    Attributes:
        network: sizes of the network.
    """

    network: Network

    def __call__(
        self, y: Float[Array, "size"], features: Float[Array, "rows features"]
    ) -> Float[Array, "rows classes"]:
        return -jax.nn.log_softmax(self.network.scores(y, features))


def by_weights(task: SitesTask, seed: int) -> Result:
    """One weight for each site."""
    return _solve(task, PlainWeights(), WEIGHT_STEP, lambda x: -x.all_weights())


def by_label_maps(task: SitesTask, seed: int) -> Result:
    """A weight and a label map for each site."""
    return _solve(task, LabelMaps(), MAP_STEP, lambda x: 1 - _own_shares(x))


def _solve(task: SitesTask, form: SiteForm, step: float, suspicion: Any) -> Result:
    network = network_of(task)
    parts: Any = task.trusted[0]
    if task.holders:
        holders = [task.names[k] for k in task.holders]
        parts = dict(zip(holders, task.trusted, strict=True))

    problem = site_weights(
        NetworkLosses(network),
        dict(zip(task.names, task.sites, strict=True)),
        parts,
        network.start(task.seed),
        classes=task.classes,
        form=form,
        ridge=2 * RIDGE,
    )
    algorithm = AutoFedBiO(rounds=ROUNDS, upper_rate=step, local_steps=1)
    *_, last = run(
        problem.problem,
        with_whole_batches(algorithm),
        problem.devices,
        problem.x,
        problem.y,
        rounds=ROUNDS,
        every=ROUNDS,
    )
    scores = np.asarray(suspicion(last.x))[: len(task.sites)]
    return finish(task, jnp.asarray(last.y), scores=scores, exchanges=ROUNDS)


def _own_shares(x: Any) -> Any:
    """Return the mean share of a label's own class in the maps."""
    raised = jnp.exp(x.map.rows - x.map.rows.max(axis=2, keepdims=True))
    shares = raised / raised.sum(axis=2, keepdims=True)
    return jnp.diagonal(shares, axis1=1, axis2=2).mean(axis=1)
