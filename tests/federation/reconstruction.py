"""Reconstruction attacks on a site's examples by an active and by a passive server.

The attacks use the server's information: problem, algorithm, start, shapes and number
of examples, its messages and the uploads. `python -m
tests.federation.reconstruction` prints the table of docs/security.md.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

from fedbilevel import FedBiO, FederatedAlgorithm
from fedbilevel.engines.preparation import canonical
from fedbilevel.engines.protocol import Moment, PhaseReference
from fedbilevel.federation import REHEARSAL, RefusedError, Site, SiteRules
from fedbilevel.federation.exchange_counter import ExchangeCounter
from fedbilevel.federation.messages import Answer, Task
from fedbilevel.federation.wire_format import pack
from fedbilevel.problems import LabelledRows, Split, hyper_cleaning, regularisation
from fedbilevel.problems.task import Task as Problem

CLASSES, LEVELS = 10, 16
COUNT, QUESTIONS, UPLOADS = 200, 10_000, 50
"""Examples of each loss, queries of the active and uploads to the passive server."""
HALF_A_LEVEL = 0.5 / LEVELS
"""Maximum pixel error of a reconstruction: rounding then gives the exact image."""
FIRST = PhaseReference(opening=False, index=0)
FAR = 1000.0
"""Logit beyond which a sigmoid or a softmax is exactly 0 or 1."""


class Claim(NamedTuple):
    """A reconstructed image and its label."""

    image: np.ndarray
    label: int


def digits(count: int) -> LabelledRows:
    """Return the first `count` images, with grey levels 0 to 1, and their labels."""
    result = load_digits()
    rows = np.random.default_rng(0).permutation(len(result.target))[: 3 * count]
    return LabelledRows(result.data[rows] / LEVELS, result.target[rows])


def held(make: Callable[..., Problem], count: int, **settings: Any) -> Problem:
    """Return a problem whose only site has `count` images for each loss."""
    pair = digits(count)
    training, validation = (
        LabelledRows(pair.features[rows], pair.labels[rows])
        for rows in (slice(count), slice(count, 2 * count))
    )
    rows = [np.arange(count)]
    tables = training, validation, validation, rows, rows
    return make(Split(*tables, classes=CLASSES), **settings)


class Victim:
    """A site that a server attacks with queries.

    Args:
        problem: problem and examples.
        algorithm: algorithm of the run.
        rules: rules of the site.

    Attributes:
        questions: number of queries so far, answered or not.
        answered: number of answered queries.
        answers: the site's counter of answered exchanges.
        runs: number of runs in which the site has enrolled.
        reason: reason for which the site refuses to enrol.
    """

    def __init__(
        self, problem: Problem, algorithm: FederatedAlgorithm, rules: SiteRules
    ) -> None:
        self.problem, self.algorithm, self.rules = problem, algorithm, rules
        self.questions = self.answered = self.runs = 0
        self.answers = ExchangeCounter()
        self.reason = ""
        self._site: Site | None = None
        server, _ = algorithm.init(problem.problem, problem.x, problem.y)
        self._first = canonical(server)

    def ask(self, **sent: Any) -> Any:
        """Return the upload for a downlink with these fields; None if refused.

        If the site answers no more queries of a run, the next run is used, as long as
        the site's rules let it enrol.
        """
        self.questions += 1
        if self.reason:
            return None
        server = self._first._replace(
            **{
                name: jnp.asarray(value, getattr(self._first, name).dtype)
                for name, value in sent.items()
            }
        )
        phase = FIRST.of(self.algorithm, self.problem.problem)
        key = np.zeros(2, np.uint32)
        downlink = pack(phase.broadcast(server))
        moment = Moment(self.questions, 0)
        while not self.reason:
            self._site = self._site or self._enrolled()
            if self._site is not None:
                task = Task(f"run{self.runs}", FIRST, moment, key, (0, 0), downlink)
                try:
                    message = self._site.answer(task.encode())
                    self.answered += 1
                    return list(Answer.decode(message).arrays.values())
                except RefusedError:
                    self._site = None
        return None

    def _enrolled(self) -> Site | None:
        if self.answered >= self.rules.most_exchanges:
            self.reason = "the site has answered as many exchanges as it does"
            return None
        examples = self.problem.devices.local(0)
        setting = self.problem.problem, self.algorithm, examples
        start = self.problem.x, self.problem.y
        try:
            site = Site(0, *setting, *start, rules=self.rules, answers=self.answers)
        except RefusedError as error:
            self.reason = str(error)
            return None
        self.runs += 1
        return site


def read_by_weights(victim: Victim, most: int) -> list[Claim]:
    """Read examples whose weights are entries of x: switch off all but one weight.

    For any batch, the upload is then the gradient of that example: a label's column
    times the image. If the example was not drawn, the upload is 0 and the query is
    repeated.
    """
    count = len(victim.problem.x)
    claims: dict[int, Claim] = {}
    while len(claims) < count and victim.questions < most:
        for target in range(count):
            if target in claims or victim.questions >= most:
                continue
            x = np.full(count, -FAR)
            x[target] = FAR
            upload = victim.ask(x=x)
            if upload is None:
                return list(claims.values())
            gradient = -np.asarray(upload[1], float)
            if np.abs(gradient).max() > 1e-9:
                claims[target] = _factored(gradient)
    return list(claims.values())


def _factored(gradient: np.ndarray) -> Claim:
    """Return the image and label whose gradients sum to a matrix of rank 1."""
    left, _, right = np.linalg.svd(gradient)
    image = right[0] * np.sign(right[0].sum())
    label = int(np.argmax(np.abs(left[:, 0])))
    return Claim(on_levels(image), label)


def on_levels(image: np.ndarray) -> np.ndarray:
    """Return an image, scaled so that all its pixels are grey levels."""
    image = image / image.max()
    bright = np.arange(LEVELS, 0, -1)
    errors = [np.abs(item * image - np.round(item * image)).max() for item in bright]
    level = bright[int(np.argmin(np.array(errors) > 0.02))]
    scaled: np.ndarray = image * level / LEVELS
    return scaled


def read_sums(
    victim: Victim, most: int, separate: Callable[[np.ndarray], Iterable[np.ndarray]]
) -> list[Claim]:
    """Read examples that share x and y: query one point, and separate the sums.

    At a y that predicts one class with certainty, another class's row of the gradient
    is the sum of its images in the batch, each times its number of draws. These numbers
    differ between queries; the images do not.

    Args:
        victim: site with one local step.
        most: maximum number of queries.
        separate: function that separates images from sums of them.
    """
    rate = float(victim.algorithm.learning_rate)  # type: ignore[attr-defined]
    size = victim.algorithm.batch_size  # type: ignore[attr-defined]
    sums: dict[int, list[np.ndarray]] = {label: [] for label in range(CLASSES)}
    no_penalty = np.full_like(victim.problem.x, -FAR)
    while victim.questions < most:
        sure = victim.questions % 2
        y = np.zeros_like(victim.problem.y)
        y[sure] = FAR
        upload = victim.ask(x=no_penalty, y=y)
        if upload is None:
            break
        rows = np.asarray(upload[1], float) * size / rate
        for label in set(range(CLASSES)) - {sure}:
            sums[label].append(np.round(rows[label] * LEVELS))
    return [
        Claim(image / LEVELS, label)
        for label, result in sums.items()
        if result
        for image in separate(np.array(result))
    ]


def read_lone(victim: Victim, most: int) -> list[Claim]:
    """Read images that were the only one of their class in a batch."""
    return read_sums(victim, most, lone_images)


def read_separated(victim: Victim, most: int) -> list[Claim]:
    """Read images from sums by independent components as well."""
    return read_sums(
        victim, most, lambda sums: [*lone_images(sums), *independent_images(sums)]
    )


def lone_images(sums: np.ndarray) -> np.ndarray:
    """Return the sums of a single image: no pixel is too bright.

    A single image recurs; sums of several images do not.
    """
    images, times = np.unique(sums, axis=0, return_counts=True)
    lone: np.ndarray = images[(images.max(axis=1) == LEVELS) & (times > 1)]
    return lone


def independent_images(sums: np.ndarray) -> np.ndarray:
    """Return the images in the sums, by independent component analysis.

    The number of draws of each image is an independent source. Rounded to integers the
    sources are exact, and so are the images.
    """
    from sklearn.decomposition import FastICA

    rank = int(np.linalg.matrix_rank(sums))
    if len(sums) < 2 * rank or rank < 2:
        return np.zeros((0, sums.shape[1]))
    _, _, right = np.linalg.svd(sums, full_matrices=False)
    reduced = sums @ right[:rank].T
    analysis = FastICA(
        rank, whiten="unit-variance", fun="cube", max_iter=200, random_state=0
    )
    analysis.fit(reduced)
    drawn = {}
    for direction in analysis.components_:
        for source in (reduced @ direction, -reduced @ direction):
            counts = _whole(reduced, source)
            if counts is not None:
                drawn[counts.tobytes()] = counts
                break
    if not drawn:
        return np.zeros((0, sums.shape[1]))
    images: np.ndarray = np.linalg.lstsq(np.array(list(drawn.values())).T, sums)[0]
    return images


def _whole(reduced: np.ndarray, source: np.ndarray) -> np.ndarray | None:
    """Return a source as integer numbers of draws, if it can be rounded."""
    # A batch of 128 of 200 draws an example 0.64 times, with standard deviation 0.8.
    counts = np.round((source - np.quantile(source, 0.05)) / (source.std() / 0.8))
    for _ in range(20):
        direction, *_ = np.linalg.lstsq(reduced, counts)
        exact = reduced @ direction
        counts = np.clip(np.round(exact), 0, None)
        if np.abs(exact - counts).max() < 1e-3:
            return counts if counts.any() else None
    return None


def overheard(
    victim: Victim, uploads: int, *, moves: bool = True
) -> Iterator[list[Claim]]:
    """Read examples from the uploads of an honest run.

    Args:
        victim: the site.
        uploads: number of uploads.
        moves: send each upload as the next point; otherwise the server is dishonest and
            sends the first point every time, where the penalty has no gradient.

    Yields:
        The reconstructions from each upload.
    """
    settings: Any = getattr(victim.algorithm, "algorithm", victim.algorithm)
    plan = getattr(victim.algorithm, "plan", None)
    sends_changes = plan is not None and plan.changes_uploads
    x, y, z = map(np.asarray, (victim.problem.x, victim.problem.y, victim.problem.y))
    rate = float(settings.learning_rate)
    for step in range(uploads):
        upload = victim.ask(x=x, y=y, adjoint=z, step=step)
        if upload is None:
            yield []
            continue
        new = [np.asarray(item, float) for item in upload[:3]]
        if sends_changes:
            new = [old + change for old, change in zip((x, y, z), new, strict=True)]
        gradient = (y - new[1]) / rate - np.exp(x)[None] * y
        yield _claims(gradient, y, settings.batch_size)
        if moves:
            x, y, z = new


def _claims(gradient: np.ndarray, y: np.ndarray, size: int) -> list[Claim]:
    """Return the images a from the mean of (softmax(y a) − label) ⊗ a."""
    strength = np.linalg.svd(gradient, compute_uv=False)
    if strength[1] < 1e-6 * strength[0]:
        return [_factored(gradient)]
    # Near y = 0 all probabilities are equal: a row is a tenth of the sum of all images
    # minus the images of its class. A class without draws reveals the sum, and a class
    # with a single draw then reveals that image.
    base = gradient[np.argmax(gradient.sum(axis=1))]
    rows = (base[None] - gradient) * size
    return [
        Claim(row, label)
        for label, row in enumerate(rows)
        if 0.5 < row.max() < 1 + 2 * HALF_A_LEVEL and row.min() > -2 * HALF_A_LEVEL
    ]


def matched(claims: list[Claim], problem: Problem) -> int:
    """Return the number of exactly reconstructed examples.

    The label must be right, and no pixel may be off by half a grey level. At most twice
    as many reconstructions as examples are counted, the first ones.
    """
    held = problem.devices.local(0)
    # In the problem with weights, rows contain their indices.
    tables = [getattr(level, "examples", level) for level in held]
    count = len(tables[0].labels)
    result: set[tuple[int, int]] = set()
    for claim in claims[: 2 * count]:
        for number, table in enumerate(tables):
            errors = np.abs(np.asarray(table.features) - claim.image).max(axis=1)
            right = (errors < HALF_A_LEVEL) & (np.asarray(table.labels) == claim.label)
            result |= {(number, int(row)) for row in np.flatnonzero(right)}
    return len(result)


CLEANING = FedBiO(
    1.0,
    upper_rate=0.03,
    lower_rate=0.3,
    adjoint_rate=0.3,
    local_steps=5,
    batch_size=16,
)
"""The settings of `fedbilevel new NAME --ready cleaning`."""
SHARED = FedBiO(1.0, upper_rate=0.0, batch_size=16)
"""Settings of a problem whose x is shared by examples."""


def table() -> Iterator[str]:
    """Measure and yield the rows of the table of docs/security.md."""
    from tests.federation.cones import (
        read_by_cones,
    )  # Imported here, because it imports this module.

    real = SiteRules()
    lenient = replace(real, fewest_per_entry=1)
    cleaning, shared = held(hyper_cleaning, COUNT), held(regularisation, COUNT)
    large = real.smallest_batch
    for text, algorithm, rules in (
        ("passive, no rules, batch 1", FedBiO(0.1), REHEARSAL),
        ("passive, defaults, batch 1", FedBiO(0.1), real),
        ("passive, no rules, batch 16", FedBiO(0.1, batch_size=16), REHEARSAL),
        ("passive, defaults, batch 128", FedBiO(0.1, batch_size=large), real),
    ):
        victim = Victim(shared, algorithm, rules)
        read_from = [matched(item, shared) > 0 for item in overheard(victim, UPLOADS)]
        yield f"{text}: {sum(read_from)} of {UPLOADS} uploads; {victim.reason}"
    for text, problem, algorithm, rules, read in (
        ("active, weights, no rules", cleaning, CLEANING, REHEARSAL, read_by_weights),
        ("active, weights, defaults", cleaning, CLEANING, real, read_by_weights),
        (
            "active, weights, defaults, batch 128",
            cleaning,
            replace(CLEANING, batch_size=large),
            real,
            read_by_weights,
        ),
        (
            "active, weights, fewest_per_entry 1, batch 128",
            cleaning,
            replace(CLEANING, batch_size=large),
            lenient,
            read_by_weights,
        ),
        ("active, shared x, no rules", shared, SHARED, REHEARSAL, read_lone),
        (
            "active, shared x, defaults, batch 128",
            shared,
            replace(SHARED, batch_size=large),
            real,
            read_separated,
        ),
        (
            "active, shared x, by curvature, defaults, batch 128",
            shared,
            replace(SHARED, batch_size=large),
            real,
            read_by_cones,
        ),
        (
            "active, shared x, most_exchanges 10,000, batch 128",
            shared,
            replace(SHARED, batch_size=large),
            replace(real, most_exchanges=QUESTIONS),
            read_separated,
        ),
    ):
        victim = Victim(problem, algorithm, rules)
        claims = read(victim, QUESTIONS)
        yield (
            f"{text}: {matched(claims, problem)} of {COUNT} in {victim.answered} "
            f"answers; {victim.reason}"
        )


if __name__ == "__main__":
    import jax

    jax.config.update("jax_enable_x64", True)
    for line in table():
        print(line, flush=True)
