"""Downloads in fewer bytes: a code of the arrays that the server sends."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedbilevel.algorithms.protocol import Beside, Downlink, Phase, Units, Upload
from fedbilevel.data.examples import RandomKey
from fedbilevel.mathematics.settings import Count, check_ranges, register
from fedbilevel.transforms.compressor import Chain, Compressor, is_floating
from fedbilevel.transforms.feedback import Feedback
from fedbilevel.transforms.quantise import Quantise
from fedbilevel.transforms.random_words import random_seeds
from fedbilevel.transforms.sparsify import RandomK, TopK
from fedbilevel.transforms.states import Seed, TransformedState

FIRST_SEED = (0, 0)
"""The seed of the first exchange: the server's key is known only after it."""
NEXT_SEED = 0x5EED
"""A number folded into the server's key for the seed of the next download."""


class Form(NamedTuple):
    """The structure of a downlink, which devices know without a message.

    Attributes:
        structure: tree structure of the downlink.
        coded: shape and dtype of each array that is coded; None for others.
    """

    structure: Any
    coded: tuple[jax.ShapeDtypeStruct | None, ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CodedDownlink:
    """A downlink whose large arrays are coded.

    Attributes:
        code: code of the large floating-point arrays.
        others: all other arrays, unchanged.
        form: structure of the downlink.
    """

    code: PyTree
    others: tuple[Any, ...]
    form: Form = field(metadata={"static": True})


@register
@dataclass(frozen=True)
class Download:
    """Send a code of x, y and all other large arrays to the devices.

    Devices work from the decoded arrays. The server's state stays exact: it adds the
    mean change of the devices, measured from the decoded arrays, to its exact ones. So
    errors of downloads do not add up over rounds.

    A code is of the whole arrays, not of their changes, since a device that was not
    selected in earlier rounds has nothing to add a change to. All devices of an
    exchange receive the same code. Random rounding differs in every exchange, so
    the errors of an unbiased code have mean zero, and small steps average them out.
    Rounding to the nearest level would leave a bias.

    Attributes:
        code: code of the arrays: `Quantise` or another code that sends all entries.
        smallest: smallest number of entries of an array that is coded. Smaller arrays
            and integers are sent unchanged: rates and counts are among them.

    Example:
        >>> from fedbilevel.mathematics import tree
        >>> download = Download(Quantise(bits=8), smallest=4)
        >>> sent = download.encode((jnp.arange(100.0), 3), jnp.zeros(2, jnp.uint32))
        >>> tree.number_of_bytes(sent)  # 100 levels, one scale and the 3
        108
        >>> x, number = download.decode(sent)
        >>> bool(jnp.max(jnp.abs(x - jnp.arange(100.0))) <= 99 / 127), int(number)
        (True, 3)
    """

    code: Any = Quantise()
    smallest: Count = 16

    def __post_init__(self) -> None:
        check_ranges(self)
        if not isinstance(self.code, Compressor):
            raise TypeError(
                f"Download: {self.code!r} has no encode and decode. Pass a code such "
                "as Quantise(bits=8)."
            )
        for part in _parts(self.code):
            name = type(part).__name__
            if isinstance(part, Feedback):
                raise TypeError(
                    f"Download: {name} stores the error of each exchange, but a device "
                    "that misses an exchange would miss its correction. Pass the code "
                    "without it: Download(Quantise(bits=8))."
                )
            if isinstance(part, TopK | RandomK):
                raise TypeError(
                    f"Download: {name} omits entries of x and y, and a device has no "
                    "values for them. Pass a code that sends all entries: "
                    "Download(Quantise(bits=8))."
                )

    def encode(self, downlink: Downlink, seed: Seed) -> CodedDownlink:
        """Return the coded downlink.

        Args:
            downlink: message to the devices.
            seed: random words, other ones in each exchange.
        """
        leaves, structure = jax.tree.flatten(downlink)
        leaves = [jnp.asarray(leaf) for leaf in leaves]
        chosen = [is_floating(leaf) and leaf.size >= self.smallest for leaf in leaves]
        pairs = list(zip(leaves, chosen, strict=True))
        coded = tuple(
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if large else None
            for leaf, large in pairs
        )
        key = jax.random.wrap_key_data(seed, impl="threefry2x32")
        return CodedDownlink(
            self.code.encode(tuple(leaf for leaf, large in pairs if large), key),
            tuple(leaf for leaf, large in pairs if not large),
            Form(structure, coded),
        )

    def decode(self, sent: CodedDownlink) -> Downlink:
        """Return the downlink that a device works from."""
        coded = sent.form.coded
        like = tuple(form for form in coded if form is not None)
        decoded, others = iter(self.code.decode(sent.code, like)), iter(sent.others)
        leaves = [next(others if form is None else decoded) for form in coded]
        return jax.tree.unflatten(sent.form.structure, leaves)

    def around(self, phase: Phase) -> Phase:
        """Return a phase whose devices work from the decoded downlink.

        Its server's state is a `TransformedState` with the seed of the next download.
        """

        def decoded(function: Any) -> Any:
            """Return a function whose last argument is the downlink, decoded."""
            if function is None:
                return None
            return lambda *others: function(*others[:-1], self.decode(others[-1]))

        reference, limits = phase.reference, phase.beside
        units = limits.units

        def broadcast(server: TransformedState) -> CodedDownlink:
            return self.encode(phase.broadcast(server.inner), server.seed)

        def server(server: TransformedState, mean: Upload, key: RandomKey) -> Any:
            if reference is not None:
                exact = reference(phase.broadcast(server.inner))
                received = reference(self.decode(broadcast(server)))
                trees = (mean.update, exact, received)
                # The difference comes first: of two close numbers, it is exact.
                moved = [
                    (a - c.astype(a.dtype)) + b.astype(a.dtype)
                    for a, b, c in zip(*map(jax.tree.leaves, trees), strict=True)
                ]
                structure = jax.tree.structure(mean.update)
                mean = mean._replace(update=jax.tree.unflatten(structure, moved))
            following = phase.server(server.inner, mean, key)
            (seed,) = random_seeds(jax.random.fold_in(key, NEXT_SEED), 1)
            return TransformedState(following, seed=seed)

        return phase._replace(
            broadcast=broadcast,
            start=lambda sent, *rest: phase.start(self.decode(sent), *rest),
            finish=lambda carry, sent, key: phase.finish(carry, self.decode(sent), key),
            server=server,
            reference=decoded(reference),
            beside=Beside(
                decoded(limits.limit),
                decoded(limits.gauge),
                units and Units(decoded(units.narrow), decoded(units.widen)),
            ),
        )


def _parts(code: Any) -> list[Any]:
    """Return the codes of a chain, which may be nested."""
    if isinstance(code, Chain):
        return [*_parts(code.first), *_parts(code.second)]
    return [code]
