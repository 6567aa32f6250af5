"""Cost of an exchange with secure sums over a plain exchange of the same numbers.

All sites live in this process: times are those of one core for the server and all sites
together, without a network. Both exchanges send the task with the same downlink, upload
the same levels and alternate; computations of the sites are not included. Sites have
certificates with RSA keys of 2048 bits, as in startup kits. Keys and shares do not
depend on the size of the upload.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from statistics import median
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from benchmarks.timing import print_table, ratio, wants_fast
from fedbilevel import Upload
from fedbilevel.algorithms import Aggregation
from fedbilevel.engines.protocol import Moment, PhaseReference
from fedbilevel.federation import REHEARSAL, ExchangeCounter, Reply
from fedbilevel.federation.messages import Answer, Task
from fedbilevel.federation.replies import Form
from fedbilevel.federation.secure_exchange import Place, Schedule, SecureExchange
from fedbilevel.federation.secure_messages import STEPS
from fedbilevel.federation.secure_site import SecureAnswers, Terms
from fedbilevel.federation.secure_sums.identity import Identity
from fedbilevel.federation.streaming_mean import RunningMean
from fedbilevel.federation.sum_record import SumRecord
from fedbilevel.federation.wire_format import pack, unpack
from fedbilevel.transforms.stages import Sent

SITES = (4, 32)
SIZES = {"1 KB": 2**8, "1 MB": 2**18, "10 MB": 10 * 2**18}
REPEATS = 7
SHARE = 1000
"""Whole share of each site: equal."""


class Work(NamedTuple):
    """A task that a site has begun."""

    upload: Upload
    digest: str


class Measured(NamedTuple):
    """An exchange: its seconds and its bytes to all sites and back.

    Attributes:
        total: sum of the uploads.
        seconds: seconds of the whole exchange.
        parts: seconds of each request.
        bytes_down: bytes of all messages to sites.
        bytes_up: bytes of all messages to the server.
    """

    total: np.ndarray
    seconds: float
    parts: Mapping[str, float]
    bytes_down: int
    bytes_up: int


class Sites:
    """Sites in this process with uploads of one size.

    Args:
        identities: certificates by name.
        size: numbers of an upload.
    """

    def __init__(self, identities: Mapping[str, Identity], size: int) -> None:
        draw = np.random.default_rng(0)
        self.names = tuple(identities)
        self.root = next(iter(identities.values())).root
        self.uploads = {
            name: Upload(
                (draw.integers(-(2**14), 2**14, size, np.int32),),
                Sent(ones=jnp.ones((), jnp.int32)),
            )
            for name in identities
        }
        upload = next(iter(self.uploads.values()))
        shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), upload
        )
        self.form = Form(shapes, {}, shapes)
        self.downlink = np.zeros(size, np.float32)
        self._rounds = 0
        self._answers = {
            name: SecureAnswers(
                Terms(identity, None, REHEARSAL, 1),
                partial(self._begin, name),
                lambda work: work.upload,
                SumRecord(REHEARSAL.most_second_sums, ExchangeCounter()),
            )
            for name, identity in identities.items()
        }

    def enrol(self, names: Sequence[str], left: Callable[[], float]) -> Iterator[Reply]:
        return iter(())

    def exchange(
        self, messages: Mapping[str, bytes], left: Callable[[], float]
    ) -> Iterator[Reply]:
        for name, message in messages.items():
            yield Reply(name, self._answers[name].answer(message))

    def secure(self) -> Measured:
        """Carry out a secure exchange."""
        began = time.perf_counter()
        exchange = SecureExchange(
            self,
            self.root,
            Place("a1", self._moment()),
            dict.fromkeys(self.names, SHARE),
            self.form,
            Schedule(timeout=3600.0, straggler_factor=None, fewest=1),
        )
        exchange.advertise(dict.fromkeys(self.names, self._task()))
        total = exchange.mean(exchange.sum(), 1.0, 2**15 - 1).total.update[0]
        return Measured(
            np.asarray(total),
            time.perf_counter() - began,
            exchange.seconds,
            exchange.bytes_down,
            exchange.bytes_up,
        )

    def plain(self) -> Measured:
        """Carry out an exchange in which the server reads each upload."""
        began = time.perf_counter()
        moment, task = self._moment(), self._task()
        mean = RunningMean(self.form.received, {}, Aggregation(is_sum=True))
        up = 0
        for name in self.names:
            upload = self._worked(name, task)
            reply = Answer.of("a1", moment, upload, {}).encode()
            up += len(reply)
            received, _ = Answer.decode(reply).read((self.form.upload, {}))
            mean.add(received, {}, SHARE / 2**15)
        total = np.asarray(mean.value.total.update[0])
        seconds = time.perf_counter() - began
        return Measured(total, seconds, {}, len(task) * len(self.names), up)

    def _begin(self, name: str, message: bytes) -> Work:
        return Work(self._worked(name, message), str(self._rounds))

    def _worked(self, name: str, message: bytes) -> Upload:
        unpack(Task.decode(message).arrays, self.downlink)
        return self.uploads[name]

    def _moment(self) -> Moment:
        self._rounds += 1
        return Moment(self._rounds, 0)

    def _task(self) -> bytes:
        key = np.zeros(2, np.uint32)
        moment = Moment(self._rounds, 0)
        arrays = pack(self.downlink)
        return Task(
            "a1", PhaseReference(False, 0), moment, key, (0, 0), arrays
        ).encode()


def identities(count: int) -> dict[str, Identity]:
    """Return certificates of a new root authority."""
    authority = rsa.generate_private_key(65537, 2048)
    root = _certificate("project", authority, authority, "project")
    result = {}
    for number in range(count):
        name, key = f"site-{number + 1}", rsa.generate_private_key(65537, 2048)
        certificate = _certificate(name, key, authority, "project")
        result[name] = Identity(certificate, root, key)
    return result


def _certificate(
    name: str, key: rsa.RSAPrivateKey, signer: rsa.RSAPrivateKey, issuer: str
) -> x509.Certificate:
    subject, authority = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)])
        for each in (name, issuer)
    )
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(signer, hashes.SHA256())
    )


def measure(sites: Sites, repeats: int) -> tuple[list[Measured], list[Measured]]:
    """Return secure and plain exchanges, alternating, after one of each."""
    pairs = [(sites.secure(), sites.plain()) for _ in range(repeats + 1)]
    for secure, plain in pairs:
        np.testing.assert_array_equal(secure.total, plain.total)
    first, second = zip(*pairs[1:], strict=True)
    return list(first), list(second)


def main() -> None:
    fast = wants_fast(__doc__, "4 sites and small arrays only, few repeats")
    counts = SITES[:1] if fast else SITES
    sizes = {"1 KB": SIZES["1 KB"]} if fast else SIZES
    kits = identities(max(counts))
    rows, parts = [], []
    for count in counts:
        chosen = dict(list(kits.items())[:count])
        for name, size in sizes.items():
            secure, plain = measure(Sites(chosen, size), 2 if fast else REPEATS)
            seconds = [[each.seconds for each in some] for some in (secure, plain)]
            last = secure[-1], plain[-1]
            rows.append(
                [
                    count,
                    name,
                    *(f"{1000 * median(each):.1f}" for each in seconds),
                    f"{ratio(*seconds):.1f}",
                    *(f"{each.bytes_down / count / 1e3:.1f}" for each in last),
                    *(f"{each.bytes_up / count / 1e3:.1f}" for each in last),
                ]
            )
            parts.append(
                [
                    count,
                    name,
                    *(
                        f"{1000 * median(each.parts[step] for each in secure):.1f}"
                        for step in STEPS
                    ),
                ]
            )
    header = ["sites", "upload", "secure, ms", "plain, ms", "ratio"]
    kilobytes = ["secure down, kB", "plain down", "secure up", "plain up"]
    print_table([*header, *kilobytes], rows)
    print()
    print_table(["sites", "upload", *(f"{step}, ms" for step in STEPS)], parts)


if __name__ == "__main__":
    main()
