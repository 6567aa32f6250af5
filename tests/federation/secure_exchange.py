"""One secure sum in process, with dropouts in any request."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from fedbilevel.federation.secure_sums.context import Context
from fedbilevel.federation.secure_sums.identity import Identity
from fedbilevel.federation.secure_sums.server import SecureServer, SecureSum
from fedbilevel.federation.secure_sums.site import SecureSite
from tests.federation.authority import Authority

AUTHORITY = Authority()
Drop = Mapping[str, Collection[str]]
"""Names of the sites that stop answering, by the first request without an answer."""


def names_of(count: int) -> tuple[str, ...]:
    return tuple(f"site-{number}" for number in range(1, count + 1))


ALL = AUTHORITY.identities(names_of(32))
"""Identities of 32 sites: their keys are made once."""


def context_of(count: int, exchange: int = 0) -> Context:
    return Context("a1", 3, exchange, names_of(count))


def vectors_of(count: int, size: int, seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {
        name: draw.integers(0, 2**32, size, np.uint32, endpoint=False)
        for name in names_of(count)
    }


def plain_sum(vectors: Mapping[str, np.ndarray], names: Collection[str]) -> np.ndarray:
    # In Python's own integers, without the overflow that the protocol relies on.
    columns = zip(*(vectors[name].tolist() for name in names), strict=True)
    return np.array([sum(column) % 2**32 for column in columns], np.uint32)


class Exchange:
    """A server and its sites, whose requests are carried out one at a time.

    Attributes:
        requests: messages to the sites of the last step, by site.
        replies: replies of the last step, by site.
    """

    STEPS = "advertise", "share", "mask", "confirm", "unmask"

    def __init__(
        self,
        context: Context,
        vectors: Mapping[str, np.ndarray],
        identities: Mapping[str, Identity] = ALL,
        drop: Drop | None = None,
    ) -> None:
        self.context = context
        self.vectors = vectors
        self.sites = {
            name: SecureSite(identities[name], context) for name in context.roster
        }
        size = len(next(iter(vectors.values())))
        self.server = SecureServer(context, AUTHORITY.root, size)
        self._drop = drop or {}
        self._absent: set[str] = set()
        self.requests: Mapping[str, bytes] = dict.fromkeys(context.roster, b"")
        self.replies: dict[str, bytes] = {}

    def ask(self, step: str, name: str, message: bytes) -> bytes:
        site = self.sites[name]
        if step == "advertise":
            return site.advertise()
        if step == "mask":
            return site.mask(message, self.vectors[name])
        method: Callable[[bytes], bytes] = getattr(site, step)
        return method(message)

    def answer(self, step: str) -> None:
        """Let all sites that are still there answer the last messages."""
        self._absent |= set(self._drop.get(step, ()))
        self.replies = {
            name: self.ask(step, name, message)
            for name, message in self.requests.items()
            if name not in self._absent
        }

    def collect(self, step: str) -> Any:
        collect: dict[str, Callable[..., Any]] = {
            "advertise": self.server.collect_keys,
            "share": self.server.collect_shares,
            "mask": self.server.collect_masked,
            "confirm": self.server.collect_confirmations,
            "unmask": self.server.collect_revealed,
        }
        result: Any = collect[step](self.replies)
        if step != "unmask":
            self.requests = result
        return result

    def until(self, step: str) -> "Exchange":
        """Carry out all requests before one, whose messages are then in `requests`."""
        for earlier in self.STEPS[: self.STEPS.index(step)]:
            self.answer(earlier)
            self.collect(earlier)
        return self

    def finish(self, begin: str = "advertise") -> SecureSum:
        result = None
        for step in self.STEPS[self.STEPS.index(begin) :]:
            self.answer(step)
            result = self.collect(step)
        assert isinstance(result, SecureSum)
        return result
