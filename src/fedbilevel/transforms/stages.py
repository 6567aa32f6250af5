"""Stages: the steps from a device's change to its upload, and back on the server."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from jaxtyping import PyTree

from fedbilevel.algorithms.protocol import Downlink, Private, Shares, Upload
from fedbilevel.data.examples import RandomKey
from fedbilevel.transforms.protocol import Bounds

VOTES = 0.02
"""Share of the privacy of an exchange that is spent on the votes of `AdaptiveClip`."""
BESIDE = 0.08
"""Share that is spent on the values that an algorithm sends beside its update."""


class Sent(NamedTuple):
    """All that a device with transforms sends beside the change of its update.

    Attributes:
        values: values that the algorithm sends beside its update.
        votes: for each part of the update, 1/2 if it was within its bound and −1/2 if
            not; () without an adaptive clip.
        ones: 1 under `FixedPoint`, so that sums contain the sum of the whole shares, by
            which the server divides; otherwise ().
    """

    values: PyTree = ()
    votes: PyTree = ()
    ones: PyTree = ()


class Work(NamedTuple):
    """The work of a device, as far as stages change it.

    Attributes:
        upload: what the device sends: a change of its update, and `Sent`.
        private: its next private state.
        before: its private state before the work; () without noise by device.
        memories: errors of earlier codes, by the name of the phase.
    """

    upload: Upload
    private: Private
    before: Private
    memories: Mapping[str, PyTree]


class Exchange(NamedTuple):
    """An exchange, as far as stages depend on it.

    Attributes:
        name: name of the phase.
        downlink: downlink of the inner phase.
        idle: update of an idle device; () if the phase sends no update.
        form: zeros in the form of a change.
        clip: rule that clips changes; None without.
        bounds: bounds of the clip.
        has_units: True if values beside the update are within bounds.
        shares: weights of the devices behind the mean, for noise on it.
        normals: standard normal numbers in the form of the mean.
    """

    name: str
    downlink: Downlink
    idle: tuple[PyTree, ...]
    form: tuple[PyTree, ...]
    clip: Any
    bounds: Bounds | None
    has_units: bool
    shares: Shares | tuple[Any, Any] = (None, None)
    normals: Any = None


class Stage(NamedTuple):
    """A step between the change of a device's update and its upload.

    The server undoes the steps in reverse order: `receive` for each upload, `release`
    for their mean or sum. Functions are pure; by default they change nothing.

    Attributes:
        send: function of a device's work, the exchange and a key to the work.
        receive: function of an upload and the exchange to the upload that is averaged.
        release: function of the mean or sum and the exchange to the mean.
    """

    send: Callable[[Work, Exchange, RandomKey], Work] = lambda work, exchange, key: work
    receive: Callable[[Upload, Exchange], Upload] = lambda upload, exchange: upload
    release: Callable[[Upload, Exchange], Upload] = lambda mean, exchange: mean


@runtime_checkable
class Staged(Protocol):
    """A transform of another type than those of this library."""

    def stage(self) -> Stage:
        """Return the stage, which follows the clip and comes before codes."""


class Piece(NamedTuple):
    """A piece of an upload with separate bounds.

    Attributes:
        number: number in the keys of its noise.
        norm: largest norm.
        largest: largest magnitude of a number.
        share: share of the privacy of the exchange; these add up to 1.
    """

    number: int
    norm: Any
    largest: Any
    share: float


def map_pieces(
    function: Callable[..., PyTree], exchange: Exchange, upload: Upload, *others: Upload
) -> Upload:
    """Return an upload with a function applied to each piece that has bounds.

    Args:
        function: function from the piece, its tree, and its tree in each other upload
            to a tree of the same form.
        exchange: the exchange.
        upload: changes, or levels, of an upload.
        others: further uploads of the same form.
    """

    def trees(upload: Upload) -> list[PyTree]:
        parts = exchange.clip.split(upload.update) if exchange.idle else []
        return [upload.beside.values, upload.beside.votes, *parts]

    bounds = list(exchange.bounds) if exchange.bounds is not None else []
    votes = sum(leaf.size for leaf in jax.tree.leaves(upload.beside.votes))
    rest = 1.0 - BESIDE * exchange.has_units - VOTES * exchange.clip.is_adaptive
    pieces = [
        Piece(2, 1.0, 1.0, BESIDE if exchange.idle else 1.0),
        Piece(1, 0.5 * max(1, votes) ** 0.5, 0.5, VOTES),
        *(
            Piece(3 + row, bound, bound, rest / len(bounds))
            for row, bound in enumerate(bounds)
        ),
    ]
    rows = zip(pieces, *map(trees, (upload, *others)), strict=True)
    values, counts, *parts = [function(*row) for row in rows]
    structure = jax.tree.structure(upload.update)
    update = jax.tree.unflatten(structure, jax.tree.leaves(parts))
    return Upload(update, upload.beside._replace(values=values, votes=counts))
