"""An algorithm of which some devices send attacks in place of their updates."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from fedbilevel import Phase, Upload
from fedbilevel.algorithms import Aggregation, map_phases
from fedbilevel.transforms.stages import Sent
from fedbilevel.transforms.transformed import Transformed


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Attacked:
    """An algorithm with transforms, whose first devices send an attack.

    The bad devices know what all devices send. The attack is put in the place of their
    uploads before the server decodes, clips and averages these. `Transformed` sends
    changes, of which an idle device's is zero.

    Attributes:
        algorithm: algorithm with transforms, or with none, and without codes.
        attack: function of the honest and of the bad devices' changes to what the bad
            devices send: a `Partial` of `tests.transforms.attacks`, or a pytree.
        bad: number of bad devices.
    """

    algorithm: Transformed
    attack: Callable[[Any, Any], Any]
    bad: int = field(metadata={"static": True})

    def init(self, problem, x, y):
        return self.algorithm.init(problem, x, y)

    def opening(self, problem):
        return map_phases(self._attacked, self.algorithm.opening(problem))

    def phases(self, problem):
        return map_phases(self._attacked, self.algorithm.phases(problem))

    def _attacked(self, phase: Phase) -> Phase:
        def mean(changes, weights, downlink):
            _, tree_of = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], changes))
            rows = jax.vmap(lambda change: ravel_pytree(change)[0])(changes)
            own, honest = rows[: self.bad], rows[self.bad :]
            if self.bad:
                rows = jnp.concatenate([self.attack(honest, own), honest])
            sent = jax.vmap(tree_of)(rows)
            updates = jax.vmap(
                lambda change: (
                    phase.decode_upload(Upload(change, Sent()), downlink).update
                )
            )(sent)
            if phase.aggregation.mean is not None:
                result = phase.aggregation.mean(updates, weights, downlink)
            else:
                shares = weights / jnp.sum(weights)
                result = jax.tree.map(
                    lambda leaf: jnp.tensordot(shares, leaf, 1), updates
                )
            # The engine expects the form of what devices send: a plain tuple.
            form = jax.tree.structure(changes)
            return jax.tree.unflatten(form, jax.tree.leaves(result))

        return phase._replace(reference=None, aggregation=Aggregation(mean=mean))
