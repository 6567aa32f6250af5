"""The computation of a site or server: a digest of its programs, and its versions.

A site with another version of an algorithm or a loss would otherwise count in every
exchange without being noticed.
"""

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
import numpy as np

from fedbilevel.algorithms.protocol import FederatedAlgorithm
from fedbilevel.data.devices import LocalExamples
from fedbilevel.data.examples import one_device
from fedbilevel.engines.device_work import run_device
from fedbilevel.engines.preparation import canonical, references
from fedbilevel.engines.program_text import program_text
from fedbilevel.federation.enrolment import LONGEST, EnrolledDevices, Enrolment
from fedbilevel.federation.site_terms import SiteTerms
from fedbilevel.federation.transport import RefusedError, readable
from fedbilevel.mathematics.batches import for_devices
from fedbilevel.mathematics.chacha import SECRET_BYTES, secret_key
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper

PACKAGE = "fedbilevel"
OF_PYTORCH, OF_JAX = "PyTorch", "JAX"
DIGEST = 32
"""Characters of a digest."""
COMPUTATION = "computation"
"""Field of an enrolment message."""
MOST_VERSIONS, LONGEST_VERSION = 8, 40
"""Maximum number of packages in a message, and of characters of a name or version."""


class Computation(NamedTuple):
    """The computation of a device, as far as two machines can compare it.

    The digest is one of the programs that JAX traces: the device's part of each phase,
    with the losses, all settings of the algorithm, and its transforms. Sizes of data do
    not enter. Losses of PyTorch enter as the graphs that PyTorch traces, so digests of
    the two libraries differ.

    Attributes:
        losses: library of the losses, `JAX` or `PyTorch`.
        digest: hexadecimal digest of the programs.
        versions: version of each package, by name.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedbilevel import FedBiO
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> problem = BilevelProblem(loss, loss)
        >>> form = LocalExamples(np.ones(4), np.ones(6))
        >>> first, other = (
        ...     Computation.of(problem, FedBiO(rate), form, 3.0, 0.0)
        ...     for rate in (0.1, 0.05)
        ... )
        >>> first.losses, first.digest == other.digest
        ('JAX', False)
    """

    losses: str
    digest: str
    versions: Mapping[str, str]

    @classmethod
    def of(
        cls,
        problem: BilevelProblem,
        algorithm: FederatedAlgorithm,
        form: LocalExamples,
        x: Upper,
        y: Lower,
    ) -> "Computation":
        """Return the computation of a device.

        Args:
            problem: upper and lower loss.
            algorithm: federated algorithm with its transforms.
            form: examples with the required shapes and types; their count is ignored.
            x: start of the upper variable; only its shapes and types matter.
            y: start of the lower variable.
        """
        text = hashlib.sha256()
        for part in _texts(problem, algorithm, form, x, y):
            text.update(part.encode())
        losses = OF_JAX if problem.view is None else OF_PYTORCH
        return cls(losses, text.hexdigest()[:DIGEST], _versions(losses))


class EnrolmentMessage(NamedTuple):
    """The message with which a site enrols.

    Attributes:
        enrolment: names, counts and shapes of its examples.
        computation: what the site would compute.

    Example:
        >>> enrolment = Enrolment.of(LocalExamples(np.ones(4), np.ones(6)))
        >>> sent = EnrolmentMessage(enrolment, Computation("JAX", "00ff", {}))
        >>> EnrolmentMessage.decode(sent.encode()) == sent
        True
        >>> EnrolmentMessage.decode(enrolment.encode())
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: the message does not say what the
        site computes; install the server's version of fedbilevel at the site
    """

    enrolment: Enrolment
    computation: Computation

    def encode(self) -> bytes:
        """Return the message as bytes."""
        parts = self.enrolment._asdict()
        return json.dumps({**parts, COMPUTATION: self.computation._asdict()}).encode()

    @classmethod
    def decode(cls, message: bytes) -> "EnrolmentMessage":
        """Return the enrolment and the computation of a message.

        Raises:
            RefusedError: if the message is not valid.
        """
        if len(message) > LONGEST:
            raise RefusedError(
                f"the enrolment has {len(message)} bytes, but {LONGEST} are allowed"
            )
        try:
            fields = json.loads(message)
            computation = fields.pop(COMPUTATION, None)
            rest = json.dumps(fields).encode()
        except (ValueError, AttributeError, RecursionError):
            raise RefusedError("the message is not a valid enrolment") from None
        enrolment = Enrolment.decode(rest)
        if not _is_computation(computation):
            raise RefusedError(
                "the message does not say what the site computes; install the server's "
                f"version of {PACKAGE} at the site"
            )
        versions = {
            readable(name): readable(value)
            for name, value in computation["versions"].items()
        }
        return cls(enrolment, Computation(**{**computation, "versions": versions}))


def _is_computation(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != set(Computation._fields):
        return False
    versions = value["versions"]
    if not isinstance(versions, dict) or len(versions) > MOST_VERSIONS:
        return False
    texts = [value["digest"], *versions, *versions.values()]
    return value["losses"] in [OF_JAX, OF_PYTORCH] and all(
        isinstance(text, str) and len(text) <= LONGEST_VERSION for text in texts
    )


class Comparison(NamedTuple):
    """The result of comparing a site's computation with the server's.

    Attributes:
        refusal: reason why the site cannot participate; None if it can.
        warning: difference that the submitter should know; None without any.
    """

    refusal: str | None = None
    warning: str | None = None


def compare(site: Computation, server: Computation) -> Comparison:
    """Compare a site's computation with the server's.

    Example:
        >>> server = Computation("JAX", "00ff", {"fedbilevel": "0.1", "jax": "0.10.1"})
        >>> compare(server, server)
        Comparison(refusal=None, warning=None)
        >>> newer = {"fedbilevel": "0.1", "jax": "0.11.1"}
        >>> print(compare(server._replace(versions=newer), server).warning)
        computes the same as the server, with other versions: jax 0.11.1 (server 0.10.1)
        >>> print(compare(server._replace(digest="11aa"), server).refusal)
        its programs differ from the server's, although the versions are equal
        (fedbilevel 0.1, jax 0.10.1): a file of fedbilevel, of a plug-in or of the
        problem was changed at one of the two. Install the same files at the site and at
        the server
    """
    other = _differing(site.versions, server.versions)
    if site.losses != server.losses:
        if site.versions.get(PACKAGE) != server.versions.get(PACKAGE):
            return Comparison(
                refusal=f"its losses are those of {site.losses}, so its programs "
                "cannot be compared with the server's, and it has other versions: "
                f"{other}. "
                f"Install the server's version of {PACKAGE} at the site"
            )
        return Comparison(
            warning=f"its losses are those of {site.losses} and the server's those of "
            f"{server.losses}, so nobody has compared what it computes"
        )
    if site.digest == server.digest:
        same = "computes the same as the server, with other versions"
        return Comparison(warning=f"{same}: {other}" if other else None)
    if other:
        return Comparison(
            refusal=f"its programs differ from the server's, and so do its versions: "
            f"{other}. Install the server's versions at the site"
        )
    listed = ", ".join(f"{name} {value}" for name, value in site.versions.items())
    return Comparison(
        refusal="its programs differ from the server's, although the versions are "
        f"equal ({listed}): a file of {PACKAGE}, of a plug-in or of the problem was "
        "changed at one of the two. Install the same files at the site and at the "
        "server"
    )


def _differing(site: Mapping[str, str], server: Mapping[str, str]) -> str:
    """Return the packages whose versions differ, with both versions."""
    return ", ".join(
        f"{name} {site.get(name, 'missing')} (server {server.get(name, 'missing')})"
        for name in dict.fromkeys([*server, *site])
        if site.get(name) != server.get(name)
    )


def _versions(losses: str) -> dict[str, str]:
    names = [PACKAGE, "jax", "numpy", *(["torch"] if losses == OF_PYTORCH else [])]
    return {"python": platform.python_version(), **{n: version(n) for n in names}}


def _texts(
    problem: BilevelProblem,
    algorithm: FederatedAlgorithm,
    form: LocalExamples,
    x: Upper,
    y: Lower,
) -> Iterator[str]:
    """Yield the text of the programs of each phase, then those of PyTorch's losses."""
    enrolment = Enrolment.of(form)
    enrolled = EnrolledDevices({"": enrolment}, form)
    # The number of a site is an input of the programs, so that all have one digest.
    terms = SiteTerms(0, enrolment, x, algorithm)
    data = terms.add(one_device(enrolled.cohort(np.array([0]))), terms.usual)
    of_jax = for_devices(problem.for_jax)
    server, private = canonical(algorithm.init(of_jax, canonical(x), canonical(y)))
    opening = references(True, algorithm.opening(of_jax))
    phases = references(False, algorithm.phases(of_jax))
    for reference in dict.fromkeys((*opening, *phases)):
        phase = reference.of(algorithm, of_jax)
        downlink = jax.eval_shape(phase.broadcast, server)

        program = jax.make_jaxpr(partial(run_device, phase))(
            downlink, private, data, secret_key(bytes(SECRET_BYTES))
        )
        yield f"{reference} {phase.name}\n{program_text(program)}"
    if problem.view is not None:
        # Imported here: other sites do not need PyTorch.
        from fedbilevel.torch.graphs import graph_texts

        yield from graph_texts(problem, x, y, data)
