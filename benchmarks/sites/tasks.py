"""Tasks of the benchmark of sites: some label wrongly, and few examples are trusted.

Every task is a deterministic function of a case and a seed. Sites, trusted examples and
test examples are disjoint; test examples are those of the published test split. The
sizes of all arrays depend on the case only, so that programs are compiled once a case.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int32

from fedbilevel import datasets
from fedbilevel.datasets import DataSet, LabelledData

Source = Literal["adult", "fashion", "digits"]
Split = Literal["occupation", "skewed", "dirichlet", "alike"]
Convention = Literal["flip", "next", "permutation", "random"]
Place = Literal["server", "one", "three"]
Architecture = Literal["softmax", "network"]

POOLED_SHARE = 0.1
"""The share of every occupation that no site of Adult has."""
MEAN, DEVIATION = 0.286, 0.353
"""Statistics of Fashion-MNIST's pixels, which many programs use.

On pixels between 0 and 1, a hundred steps of softmax regression end far from the
minimiser: an oracle had an accuracy of 0.70 instead of 0.75, and every method that only
moves further looked better than it is.
"""
PLACES: dict[Place, int] = {"server": 0, "one": 1, "three": 3}
"""The number of sites that have trusted examples."""


class Case(NamedTuple):
    """The parameters of a task, except its seed.

    Attributes:
        source: name of the data set.
        split: way in which sites differ in their features or classes.
        bad: number of bad sites.
        convention: way in which bad sites label.
        trusted: number of trusted examples.
        place: place of the trusted examples.
        architecture: model that is trained.
        sites: number of sites; 15 for Adult.
        rows: number of examples of a site, except for Adult.
    """

    source: Source
    split: Split
    bad: int
    convention: Convention
    trusted: int
    place: Place = "server"
    architecture: Architecture = "softmax"
    sites: int = 20
    rows: int = 200

    @property
    def name(self) -> str:
        """A name of all parameters that differ between cases of one data set."""
        parts = [self.source, self.split, str(self.bad), self.convention]
        parts += [str(self.trusted), self.place]
        return "-".join(
            [*parts, *(["network"] if self.architecture != "softmax" else [])]
        )


@dataclass(frozen=True, eq=False)
class SitesTask:
    """Sites with examples, of which some are labelled wrongly, and trusted examples.

    Attributes:
        name: name of the case.
        seed: seed of all draws.
        names: names of the sites.
        sites: examples of every site, with the labels of its convention.
        trusted: trusted examples by place: one part at the server or at one site,
            three parts at three sites.
        holders: numbers of the sites that have these parts; empty at the server.
        test: published test examples.
        bad: sites that label wrongly.
        classes: number of classes.
        architecture: model that is trained.
    """

    name: str
    seed: int
    names: tuple[str, ...]
    sites: list[LabelledData]
    trusted: list[LabelledData]
    holders: tuple[int, ...]
    test: LabelledData
    bad: Bool[np.ndarray, "sites"]
    classes: int
    architecture: Architecture = "softmax"


class _Drawn(NamedTuple):
    """Rows of the training examples: those of every site, and those of no site."""

    names: tuple[str, ...]
    rows: list[Int32[np.ndarray, "rows"]]
    pool: Int32[np.ndarray, "rows"]


def make_task(case: Case, seed: int) -> SitesTask:
    """Return the task of a case and a seed.

    Example:
        >>> task = make_task(FAST_CASE, seed=0)
        >>> len(task.sites), int(task.bad.sum()), len(task.trusted[0].labels)
        (8, 3, 60)
    """
    source = _source(case.source)
    draw = np.random.default_rng([seed, 1])
    names, rows, pool = _DRAWS[case.split](case, source, draw)
    sites = [_rows_of(source.train, part) for part in rows]
    bad = np.zeros(len(sites), bool)
    bad[draw.permutation(len(sites))[: case.bad]] = True
    relabelled = [
        site._replace(labels=_relabel(site.labels, case.convention, source, draw))
        if is_bad
        else site
        for site, is_bad in zip(sites, bad, strict=True)
    ]
    # Only good sites with enough examples of their own are trusted.
    large = [k for k, site in enumerate(sites) if len(site.labels) >= 50]
    good = [k for k in large if not bad[k]]
    count = PLACES[case.place]
    holders = tuple(int(k) for k in sorted(draw.permutation(good)[:count]))
    drawn = draw.permutation(pool)[: case.trusted]
    parts = [_rows_of(source.train, p) for p in np.array_split(drawn, max(1, count))]
    return SitesTask(
        case.name,
        seed,
        names,
        relabelled,
        parts,
        holders,
        source.test,
        bad,
        source.classes,
        case.architecture,
    )


def _relabel(
    labels: Int32[np.ndarray, "rows"],
    convention: Convention,
    source: DataSet,
    draw: np.random.Generator,
) -> Int32[np.ndarray, "rows"]:
    """Return the labels of a bad site, which follows its convention with a chance."""
    classes = source.classes
    chance = draw.uniform(0.3 if convention == "flip" else 0.5, 1.0)
    if convention == "permutation":
        meant = draw.permutation(classes)
        # A permutation that leaves most classes unchanged would be no bad site.
        while np.mean(meant == np.arange(classes)) > 0.2:
            meant = draw.permutation(classes)
        wrong = meant[labels]
    elif convention == "random":
        wrong = draw.integers(0, classes, len(labels))
    else:
        wrong = (labels + 1) % classes
    changes = draw.random(len(labels)) < chance
    return np.where(changes, wrong, labels).astype(np.int32)


@cache
def _source(name: Source) -> DataSet:
    """Return a data set with a constant feature, and images of at most 8 × 8."""
    if name == "adult":
        adult = datasets.adult()
        data = DataSet(adult.train, adult.test, adult.classes)
    elif name == "fashion":
        fashion = datasets.fashion_mnist()
        data = fashion._replace(train=_small(fashion.train), test=_small(fashion.test))
    else:
        data = datasets.digits()
    return data._replace(train=_extend(data.train), test=_extend(data.test))


def _small(table: LabelledData) -> LabelledData:
    pixels = table.features[:, : 28 * 28].reshape(-1, 7, 4, 7, 4).mean((2, 4))
    scaled = (pixels - MEAN) / DEVIATION
    return table._replace(features=scaled.reshape(-1, 7 * 7).astype(np.float32))


def _extend(table: LabelledData) -> LabelledData:
    constant = np.ones((len(table.labels), 1), np.float32)
    return table._replace(features=np.concatenate([table.features, constant], axis=1))


def _rows_of(table: LabelledData, rows: Int32[np.ndarray, "rows"]) -> LabelledData:
    return LabelledData(table.features[rows], table.labels[rows])


def _by_occupation(case: Case, source: DataSet, draw: np.random.Generator) -> _Drawn:
    adult = datasets.adult()
    kept, pool = [], []
    for group in range(len(adult.group_names)):
        rows = draw.permutation(np.flatnonzero(adult.train_groups == group))
        first = round(POOLED_SHARE * len(rows))
        pool.append(rows[:first])
        kept.append(rows[first:].astype(np.int32))
    return _Drawn(adult.group_names, kept, np.concatenate(pool).astype(np.int32))


def _by_shares(
    shares: Callable[[int, np.random.Generator], Float32[np.ndarray, "classes"]],
) -> Callable[[Case, DataSet, np.random.Generator], _Drawn]:
    """Return a split whose sites have classes by shares drawn for each."""

    def split(case: Case, source: DataSet, draw: np.random.Generator) -> _Drawn:
        labels = source.train.labels
        order = draw.permutation(len(labels))
        stacks = [list(order[labels[order] == c]) for c in range(source.classes)]
        parts = []
        for _ in range(case.sites):
            wanted = draw.multinomial(case.rows, shares(source.classes, draw))
            taken = [_pop(stacks[c], count) for c, count in enumerate(wanted)]
            parts.append(np.concatenate(taken).astype(np.int32))
        pool = np.sort(np.concatenate([np.asarray(s, np.int32) for s in stacks]))
        names = tuple(str(k) for k in range(case.sites))
        return _Drawn(names, parts, pool)

    return split


def _pop(stack: list[int], count: int) -> np.ndarray:
    taken, stack[:] = stack[:count], stack[count:]
    if len(taken) < count:
        raise ValueError("too few examples of a class; use fewer or smaller sites")
    return np.asarray(taken, np.int32)


def _three_classes(classes: int, draw: np.random.Generator) -> np.ndarray:
    shares = np.zeros(classes)
    shares[draw.permutation(classes)[:3]] = 1 / 3
    return shares


_DRAWS: dict[Split, Callable[[Case, DataSet, np.random.Generator], _Drawn]] = {
    "occupation": _by_occupation,
    "skewed": _by_shares(_three_classes),
    "dirichlet": _by_shares(lambda c, draw: draw.dirichlet(np.full(c, 0.5))),
    "alike": _by_shares(lambda c, draw: np.full(c, 1 / c)),
}
FAST_CASE = Case("digits", "alike", 3, "next", 60, sites=8, rows=80)
"""The small task of the checks; its data are part of scikit-learn."""


def full_cases() -> Sequence[Case]:
    """Return the cases at full size."""
    flipped = [Case("adult", "occupation", b, "flip", 150) for b in (0, 4, 8, 11)]
    places: tuple[Place, ...] = ("one", "three")
    elsewhere = [
        case._replace(trusted=count, place=place)
        for case in flipped[-1:]
        for place, count in zip(places, (150, 300), strict=True)
    ]
    skewed = [Case("fashion", "skewed", b, "next", 100) for b in (0, 4, 10, 14)]
    counts = [c._replace(trusted=n) for c in skewed[2:] for n in (30, 300)]
    others: tuple[Convention, ...] = ("permutation", "random")
    conventions = [skewed[2]._replace(convention=c) for c in others]
    spread = [skewed[2]._replace(place=place, trusted=150) for place in places]
    splits: tuple[Split, ...] = ("dirichlet", "alike")
    alike = [c._replace(split=s) for s in splits for c in (skewed[0], *skewed[2:])]
    network = [c._replace(architecture="network") for c in skewed[2:]]
    return [
        *flipped,
        *elsewhere,
        *skewed,
        *counts,
        *conventions,
        *spread,
        *alike,
        *network,
    ]
