"""A site whose package computes something else is refused, and named."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import fedbilevel
from fedbilevel import BilevelProblem, Clip, FedBiO, LocalExamples, run, with_transforms
from fedbilevel.federation import (
    REHEARSAL,
    Computation,
    EnrolledDevices,
    Enrolment,
    EnrolmentTerms,
    Federation,
    InProcess,
    Reply,
    Site,
    enrol,
)
from tests.waiting import HANG

pytestmark = pytest.mark.slow


def loss(x, y, batch):
    return jnp.mean((y - x * batch) ** 2)


def steeper(x, y, batch):
    return 2 * jnp.mean((y - x * batch) ** 2)


PROBLEM, ALGORITHM = BilevelProblem(loss, loss), FedBiO(0.1)
ONES = LocalExamples(np.ones(4), np.full(6, 2.0))


def digest(problem=PROBLEM, algorithm=ALGORITHM, form=ONES, x=3.0):
    return Computation.of(problem, algorithm, form, x, 0.0).digest


@pytest.fixture
def halved() -> Iterator[pytest.MonkeyPatch]:
    """Install a package whose FedBiO has half of its rate, under the same version."""
    phases = FedBiO.phases

    def changed(self, problem):
        return phases(replace(self, learning_rate=self.learning_rate / 2), problem)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FedBiO, "phases", changed)
        yield patch


class Sent(InProcess):
    """A transport with the enrolments that sites have sent."""

    def __init__(self, messages):
        self._messages = messages

    def enrol(self, names, left):
        for name in names:
            yield Reply(name, self._messages[name])


def site(number: int, problem: BilevelProblem = PROBLEM) -> Site:
    return Site(number, problem, ALGORITHM, ONES, 3.0, 0.0, rules=REHEARSAL)


def test_a_site_with_a_halved_rate_is_refused_by_name(tmp_path, halved):
    changed = site(1).enrol()
    halved.undo()
    transport = Sent({"east": site(0).enrol(), "west": changed})
    ours = Computation.of(PROBLEM, ALGORITHM, ONES, 3.0, 0.0)
    with pytest.raises(ValueError, match="west could not begin: its programs differ"):
        enrol(
            transport,
            ["east", "west"],
            ONES,
            tmp_path,
            computation=ours,
            terms=EnrolmentTerms(60.0, at_least=2),
        )


def test_without_the_comparison_it_would_count_unseen(halved):
    def last(sites):
        held = Enrolment.of(ONES)
        enrolled = EnrolledDevices(dict.fromkeys(sites, held), ONES)
        engine = Federation(InProcess(sites), enrolled, run="a", timeout=HANG)
        setting = PROBLEM, ALGORITHM, enrolled, 3.0, 0.0
        *_, result = run(*setting, rounds=1, engine=engine)
        assert result.participants.tolist() == [0, 1]
        return float(result.server.y)

    def same(x, y, batch):
        return loss(x, y, batch)

    # Compiled while the package is changed, as a separate program.
    changed = site(1, BilevelProblem(same, same))
    changed.warm_up()
    halved.undo()
    honest = last({"east": site(0), "west": site(1)})
    attacked = last({"east": site(0), "west": changed})
    assert attacked == pytest.approx(0.75 * honest)


def test_a_digest_depends_on_all_that_is_computed():
    first = digest()
    others = [
        digest(BilevelProblem(loss, steeper)),
        digest(BilevelProblem(steeper, loss)),
        digest(algorithm=FedBiO(0.1001)),
        digest(algorithm=FedBiO(0.1, local_steps=2)),
        digest(algorithm=FedBiO(0.1, batch_size=2)),
        digest(algorithm=with_transforms(ALGORITHM, Clip(1.0))),
        digest(algorithm=with_transforms(ALGORITHM, Clip(2.0))),
        digest(x=np.ones(1)),
    ]
    assert len({first, *others}) == 1 + len(others)


def test_a_digest_does_not_depend_on_data_starts_or_rounding():
    many = LocalExamples(np.zeros(40), np.zeros(9))
    assert digest(form=many, x=-1.0) == digest()
    weights = np.array([0.1, 0.7])

    def weighed(factor):
        def weighed_loss(x, y, batch):
            return loss(x, y, batch) * jnp.sum(jnp.asarray(weights * factor))

        return digest(BilevelProblem(loss, weighed_loss))

    assert weighed(1.0) == weighed(1.0 + 1e-12) != weighed(1.001)


PRINT = """
import jax.numpy as jnp, numpy as np
from fedbilevel import BilevelProblem, FedBiO, LocalExamples
from fedbilevel.federation import Computation
loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
form = LocalExamples(np.ones(4), np.ones(6))
print(Computation.of(BilevelProblem(loss, loss), FedBiO(0.1), form, 3.0, 0.0).digest)
"""


def printed(source: Path, seed: str) -> str:
    """Return the digest in another process, with the package in a directory."""
    return subprocess.run(
        [sys.executable, "-c", PRINT],
        env={"PYTHONPATH": str(source), "PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG,
    ).stdout


@pytest.mark.nightly
def test_a_package_with_one_changed_line_has_another_digest(tmp_path):
    source = Path(fedbilevel.__file__).parents[1]
    shutil.copytree(source / "fedbilevel", tmp_path / "fedbilevel")
    file = tmp_path / "fedbilevel" / "algorithms" / "fedbio.py"
    line = "eta = schedules.rate_at(self.learning_rate, t)"
    text = file.read_text()
    assert line in text
    ours = printed(source, "2")
    assert printed(tmp_path, "1") == ours
    file.write_text(text.replace(line, f"{line} / 2"))
    assert printed(tmp_path, "1") != ours
