"""A problem whose updates are zero, so that a noised run shows the noise alone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedbilevel import BilevelProblem, FedBiO, InMemoryDevices, LocalExamples, run
from fedbilevel.federation import REHEARSAL, EnrolledDevices, Federation, Site
from fedbilevel.federation.in_process import InProcess
from fedbilevel.federation.release_log import ReleaseLog

SIZE = 3000
DEVICES = 4
START = np.zeros(SIZE), np.zeros(SIZE)


def loss(x: Any, y: Any, batch: Any) -> Any:
    return jnp.mean(batch) * 0.0 * (jnp.sum(x) + jnp.sum(y))


PROBLEM = BilevelProblem(loss, loss)
HELD = [LocalExamples(np.ones(3), np.ones(3)) for _ in range(DEVICES)]


def devices() -> InMemoryDevices:
    return InMemoryDevices(HELD)


def noise_of_round(algorithm: Any, engine: Any, seed: int = 0, **others: Any) -> Any:
    """Return all numbers of x, y and z after one round."""
    options = {"rounds": 1, "seed": seed, "engine": engine, **others}
    held = options.pop("devices", None) or devices()
    (last,) = run(PROBLEM, algorithm, held, *START, **options)
    server: Any = getattr(last.server, "inner", last.server)
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(server[:3])])


def federation(
    algorithm: Any, releases: ReleaseLog | None = None
) -> tuple[Federation, EnrolledDevices]:
    """Return an engine and devices in this process, with secret noise."""
    sites = {
        f"site-{number}": Site(
            number, PROBLEM, algorithm, held, *START, rules=REHEARSAL
        )
        for number, held in enumerate(HELD)
    }
    enrolled = EnrolledDevices(
        {name: site.enrolment for name, site in sites.items()}, form=HELD[0]
    )
    engine = Federation(
        InProcess(sites), enrolled, run="a", timeout=600.0, releases=releases
    )
    return engine, enrolled


def plain() -> FedBiO:
    return FedBiO(0.1)
