"""A small federation with secure sums in this process, and its dropouts.

x and y are vectors of three numbers; every site has other examples.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedbilevel import (
    BilevelProblem,
    Clip,
    FedBiO,
    FixedPoint,
    LocalExamples,
    Round,
    run,
    with_transforms,
)
from fedbilevel.federation import (
    REHEARSAL,
    EnrolledDevices,
    Exchange,
    Federation,
    InProcess,
    NoQuorumError,
    Reply,
    Site,
    SiteRules,
    Transport,
)
from fedbilevel.federation.messages import Task
from fedbilevel.federation.secure_messages import STEPS, SecureMessage, is_secure
from fedbilevel.federation.site import SALT_BYTES
from tests.federation.secure_exchange import ALL, AUTHORITY, names_of
from tests.waiting import HANG

COUNT = 5
NAMES = names_of(COUNT)
START = np.array([1.0, -2.0, 0.5]), np.array([0.0, 1.0, 2.0])
WEIGHTS = np.array([1.0, 2.0, 0.5, 1.0, 1.5])
CLIP = 0.5


def upper_loss(x, y, batch):
    return 0.5 * jnp.mean((y[None] - batch) ** 2) + 0.5 * jnp.sum(x**2)


def lower_loss(x, y, batch):
    return 0.5 * jnp.mean((y[None] - x[None] * batch) ** 2)


PROBLEM = BilevelProblem(upper_loss, lower_loss)
STATEFUL = FedBiO(0.1, local_steps=2, private_lower=True)
"""An algorithm whose devices keep a state."""
ALGORITHM = with_transforms(STATEFUL, Clip(CLIP), FixedPoint())


def held(number: int) -> LocalExamples:
    draw = np.random.default_rng(number)
    return LocalExamples(draw.normal(size=(4, 3)), 1.0 + draw.normal(size=(6, 3)))


def sites(
    algorithm: Any = ALGORITHM,
    *,
    secure: bool = True,
    directory: Path | None = None,
    rules: SiteRules = REHEARSAL,
    names: Sequence[str] = NAMES,
) -> dict[str, Site]:
    return {
        name: Site(
            number,
            PROBLEM,
            algorithm,
            held(number),
            *START,
            directory=None if directory is None else directory / name,
            rules=rules,
            # Attacks that repeat an exchange need the noise to repeat.
            salt=bytes([number]) * SALT_BYTES,
            identity=ALL[name] if secure else None,
            roster=names,
        )
        for number, name in enumerate(names)
    }


class Federated(NamedTuple):
    """The rounds of a run, and the server's record of its exchanges."""

    rounds: list[Round]
    exchanges: list[Exchange]

    @property
    def states(self) -> list[np.ndarray]:
        """All numbers of the server after each round."""
        return [
            np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(each.server)])
            for each in self.rounds
        ]


def federate(
    transport: Transport,
    among: Mapping[str, Site],
    algorithm: Any = ALGORITHM,
    *,
    secure: bool = True,
    rounds: int = 2,
    weights: Any = WEIGHTS,
    note: Callable[[Exchange], None] = lambda exchange: None,
    **settings: Any,
) -> Federated:
    exchanges: list[Exchange] = []
    options = {key: settings.pop(key) for key in ("limits",) if key in settings}
    enrolled = EnrolledDevices(
        {name: site.enrolment for name, site in among.items()}, form=held(0)
    )

    def noted(exchange: Exchange) -> None:
        exchanges.append(exchange)
        note(exchange)

    engine = Federation(
        transport,
        enrolled,
        run="first",
        timeout=HANG,
        note=noted,
        secure_sums=AUTHORITY.root if secure else None,
        **settings,
    )
    results = run(
        PROBLEM,
        algorithm,
        enrolled,
        *START,
        rounds=rounds,
        weights=weights,
        engine=engine,
        **options,
    )
    return Federated(list(results), exchanges)


def secure_run(algorithm: Any = ALGORITHM, **settings: Any) -> Federated:
    among = sites(algorithm)
    return federate(InProcess(among), among, algorithm, **settings)


def plain_run(algorithm: Any = ALGORITHM, **settings: Any) -> Federated:
    among = sites(algorithm, secure=False)
    return federate(InProcess(among), among, algorithm, secure=False, **settings)


class Relay:
    """A transport whose server changes or withholds messages.

    Args:
        among: sites by name.
        change: function from the name of a site, the request and the messages of all
            sites to the site's message; None to drop it. A plain task is the request
            "task".
    """

    def __init__(
        self,
        among: Mapping[str, Site],
        change: Callable[[str, str, Mapping[str, bytes]], bytes | None],
    ) -> None:
        self._inner, self._change = InProcess(among), change

    def enrol(self, names: Sequence[str], left: Callable[[], float]) -> Iterator[Reply]:
        return self._inner.enrol(names, left)

    def exchange(
        self, messages: Mapping[str, bytes], left: Callable[[], float]
    ) -> Iterator[Reply]:
        for name in messages:
            message = self._change(name, request_of(messages[name]), messages)
            if message is not None:
                yield from self._inner.exchange({name: message}, left)


def request_of(message: bytes) -> str:
    if not is_secure(message):
        return "task"
    return STEPS[SecureMessage.decode(message).step]


def round_of(message: bytes) -> int:
    """Return the round of a task, alone or in the first request."""
    task = SecureMessage.decode(message).task if is_secure(message) else message
    return int(Task.decode(task).moment[0])


class Dropouts:
    """Dropouts of sites, for the rest of an exchange.

    Args:
        schedule: for each round, the first request that a site does not answer.
    """

    def __init__(self, schedule: Sequence[Mapping[str, str]]) -> None:
        self._schedule = schedule
        self._round = 0

    def __call__(
        self, name: str, request: str, messages: Mapping[str, bytes]
    ) -> bytes | None:
        if request == "advertise":
            self._round = round_of(messages[name])
        first = self._schedule[self._round].get(name)
        gone = first is not None and STEPS.index(first) <= STEPS.index(request)
        return None if gone else messages[name]


def only(counted: Sequence[Sequence[str]]) -> Callable[..., bytes | None]:
    """Return a function that drops the tasks of all other sites in each round."""

    def change(name: str, request: str, messages: Mapping[str, bytes]) -> bytes | None:
        kept = name in counted[round_of(messages[name])]
        return messages[name] if kept else None

    return change


def schedule_of(seed: int, rounds: int) -> list[dict[str, str]]:
    """Return random dropouts: for each round, the first request without an answer."""
    draw = np.random.default_rng(seed)
    schedule = []
    for _ in range(rounds):
        count = draw.choice([0, 1, 1, 1, 2])
        chosen = draw.choice(NAMES, size=count, replace=False)
        schedule.append({str(name): str(draw.choice(STEPS)) for name in chosen})
    return schedule


def check_schedule(seed: int, rounds: int) -> bool:
    """Run rounds with random dropouts; return whether all have a sum.

    A round with a sum must equal, to the bit, that of plain integers of the same sites.
    Otherwise the error must name sites that dropped out.
    """
    schedule = schedule_of(seed, rounds)
    among, exchanges = sites(), list[Exchange]()
    transport = Relay(among, Dropouts(schedule))
    refusal = None
    try:
        result = federate(transport, among, rounds=rounds, note=exchanges.append)
    except NoQuorumError as error:
        refusal = str(error)
    if refusal is not None:
        # A site that was skipped is not contacted after the first request.
        last = {*schedule[exchanges[-1].round_number], *exchanges[-1].skipped}
        # With 5 sites, 4 are needed.
        assert len(last) > 1, (seed, schedule, refusal)
        assert "required sites answered the request" in refusal
        named = [name for name in NAMES if f'"{name}"' in refusal]
        assert named
        assert set(named) <= last
        return False
    counted = [exchange.counted for exchange in result.exchanges]
    for names, gone in zip(counted, schedule, strict=True):
        late = ("confirm", "unmask")
        early = {name for name, step in gone.items() if step not in late}
        assert set(names) <= set(NAMES) - early
        assert len(names) >= 4
    plain = sites(secure=False)
    transport = Relay(plain, only(counted))
    # With this quorum, both contact skipped sites in the same exchanges.
    expected = federate(transport, plain, secure=False, rounds=rounds, quorum=4)
    assert [exchange.counted for exchange in expected.exchanges] == counted
    for one, other in zip(result.states, expected.states, strict=True):
        np.testing.assert_array_equal(one, other)
    return True
