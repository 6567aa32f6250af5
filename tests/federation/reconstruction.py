"""Two servers that read a site's examples: an active and a passive one.

They know what a server knows: problem, algorithm, start, the form of examples and how
many there are, what they send and what comes back. `python -m
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
from fedbilevel.federation.wire_format import packed
from fedbilevel.problems import LabelledRows, Split, hyper_cleaning, regularisation
from fedbilevel.problems.task import Task as Problem

CLASSES, LEVELS = 10, 16
COUNT, QUESTIONS, UPLOADS = 200, 10_000, 50
"""Examples of each loss, and what the two servers may ask and hear."""
HALF_A_LEVEL = 0.5 / LEVELS
"""An image whose pixels are all nearer than this is the image: rounding finds it."""
FIRST = PhaseReference(opening=False, index=0)
FAR = 1000.0
"""Beyond which a sigmoid or a softmax is 0 or 1 to the last bit."""


class Claim(NamedTuple):
    """An image and its label, as a server has reconstructed them."""

    image: np.ndarray
    label: int


def digits(count: int) -> LabelledRows:
    """Return images of grey levels 0 to 1 and their labels, the first `count`."""
    found = load_digits()
    rows = np.random.default_rng(0).permutation(len(found.target))[: 3 * count]
    return LabelledRows(found.data[rows] / LEVELS, found.target[rows])


def held(make: Callable[..., Problem], count: int, **settings: Any) -> Problem:
    """Return a problem whose only site holds `count` images for each loss."""
    both = digits(count)
    training, validation = (
        LabelledRows(both.features[rows], both.labels[rows])
        for rows in (slice(count), slice(count, 2 * count))
    )
    rows = [np.arange(count)]
    tables = training, validation, validation, rows, rows
    return make(Split(*tables, classes=CLASSES), **settings)


class Victim:
    """A site, and all that its server can do with it: ask.

    Args:
        problem: and the examples.
        algorithm: that the site has enrolled with.
        rules: of the site.

    Attributes:
        questions: that were asked so far, answered or not.
        answered: how many of them were.
        answers: the site's own count of them.
        runs: that the site has enrolled in.
        reason: why it does not enrol.
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
        """Return the upload for a downlink with these fields; none if refused.

        A site that answers no more questions of a run is asked in another run, as long
        as its rules let it enrol.
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
        downlink = packed(phase.broadcast(server))
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
        what = self.problem.problem, self.algorithm, examples
        start = self.problem.x, self.problem.y
        try:
            site = Site(0, *what, *start, rules=self.rules, answers=self.answers)
        except RefusedError as error:
            self.reason = str(error)
            return None
        self.runs += 1
        return site


def read_by_weights(victim: Victim, most: int) -> list[Claim]:
    """Read examples whose weights are entries of x: switch off all but one.

    Whatever the batch, it is then the gradient of that example: a label's column times
    the image. If the example was not drawn, nothing comes back, and it is asked again.
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
    """Return an image at the brightness at which all its pixels are grey levels."""
    image = image / image.max()
    bright = np.arange(LEVELS, 0, -1)
    errors = [np.abs(one * image - np.round(one * image)).max() for one in bright]
    level = bright[int(np.argmin(np.array(errors) > 0.02))]
    scaled: np.ndarray = image * level / LEVELS
    return scaled


def read_sums(
    victim: Victim, most: int, separate: Callable[[np.ndarray], Iterable[np.ndarray]]
) -> list[Claim]:
    """Read examples that share x and y: ask at one point, and separate the sums.

    At a y that predicts one class for sure, another class's row of the gradient is the
    sum of its images in the batch, each as often as it was drawn. Those numbers differ
    from question to question; the images do not.

    Args:
        victim: with one local step.
        most: questions.
        separate: images from sums of them.
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
        for label, found in sums.items()
        if found
        for image in separate(np.array(found))
    ]


def read_lone(victim: Victim, most: int) -> list[Claim]:
    """Read the images that were alone of their class in a batch."""
    return read_sums(victim, most, lone_images)


def read_separated(victim: Victim, most: int) -> list[Claim]:
    """Read those, and the ones that sums are made of."""
    return read_sums(
        victim, most, lambda sums: [*lone_images(sums), *independent_images(sums)]
    )


def lone_images(sums: np.ndarray) -> np.ndarray:
    """Return the sums that are one image: none of their pixels is too bright.

    The same image comes again and again, sums of several do not.
    """
    images, times = np.unique(sums, axis=0, return_counts=True)
    lone: np.ndarray = images[(images.max(axis=1) == LEVELS) & (times > 1)]
    return lone


def independent_images(sums: np.ndarray) -> np.ndarray:
    """Return the images of which the sums are made, by independent components.

    How often each was drawn is a source of its own. Rounded to whole numbers the
    sources are exact, and then so are the images.
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
    """Return a source as numbers of draws, if it can be made whole."""
    # A batch of 128 of 200 draws an example 0.64 times, with a deviation of 0.8.
    counts = np.round((source - np.quantile(source, 0.05)) / (source.std() / 0.8))
    for _ in range(20):
        direction, *_ = np.linalg.lstsq(reduced, counts)
        exact = reduced @ direction
        counts = np.clip(np.round(exact), 0, None)
        if np.abs(exact - counts).max() < 1e-3:
            return counts if counts.any() else None
    return None


def overheard(victim: Victim, uploads: int) -> Iterator[list[Claim]]:
    """Read what an honest run sends, without asking for anything else.

    Yields:
        What one upload gives away, for each of them.
    """
    settings: Any = victim.algorithm
    x, y, z = map(np.asarray, (victim.problem.x, victim.problem.y, victim.problem.y))
    rate = float(settings.learning_rate)
    for step in range(uploads):
        upload = victim.ask(x=x, y=y, adjoint=z, step=step)
        if upload is None:
            yield []
            continue
        new = [np.asarray(one, float) for one in upload[:3]]
        gradient = (y - new[1]) / rate - np.exp(x)[None] * y
        yield _claims(gradient, y, settings.batch_size)
        x, y, z = new


def _claims(gradient: np.ndarray, y: np.ndarray, size: int) -> list[Claim]:
    """Return what the mean of (softmax(y a) − label) ⊗ a tells of the images a."""
    strength = np.linalg.svd(gradient, compute_uv=False)
    if strength[1] < 1e-6 * strength[0]:
        return [_factored(gradient)]
    # Near y = 0 all probabilities are alike: a row is a tenth of all images less those
    # of its class. A class that was not drawn shows the former, one of which a single
    # image was drawn then shows that image.
    base = gradient[np.argmax(gradient.sum(axis=1))]
    rows = (base[None] - gradient) * size
    return [
        Claim(row, label)
        for label, row in enumerate(rows)
        if 0.5 < row.max() < 1 + 2 * HALF_A_LEVEL and row.min() > -2 * HALF_A_LEVEL
    ]


def matched(claims: list[Claim], problem: Problem) -> int:
    """Return how many of the site's examples a server has, pixel by pixel.

    The label must be right, and no pixel may be off by half a grey level. Of as many
    claims as there are examples twice over, the first count.
    """
    held = problem.devices.local(0)
    # Of the problem with weights, rows know their numbers.
    tables = [getattr(level, "examples", level) for level in held]
    count = len(tables[0].labels)
    found: set[tuple[int, int]] = set()
    for claim in claims[: 2 * count]:
        for number, table in enumerate(tables):
            errors = np.abs(np.asarray(table.features) - claim.image).max(axis=1)
            right = (errors < HALF_A_LEVEL) & (np.asarray(table.labels) == claim.label)
            found |= {(number, int(row)) for row in np.flatnonzero(right)}
    return len(found)


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
"""For a problem whose x examples share."""


def table() -> Iterator[str]:
    """Yield the lines of the table of docs/security.md, as they are measured."""
    from tests.federation.cones import read_by_cones  # which is built on this module

    real = SiteRules()
    lenient = replace(real, fewest_per_entry=1)
    cleaning, shared = held(hyper_cleaning, COUNT), held(regularisation, COUNT)
    large = real.smallest_batch
    for words, algorithm, rules in (
        ("passive, no rules, batch 1", FedBiO(0.1), REHEARSAL),
        ("passive, defaults, batch 1", FedBiO(0.1), real),
        ("passive, no rules, batch 16", FedBiO(0.1, batch_size=16), REHEARSAL),
        ("passive, defaults, batch 128", FedBiO(0.1, batch_size=large), real),
    ):
        victim = Victim(shared, algorithm, rules)
        read_from = [matched(one, shared) > 0 for one in overheard(victim, UPLOADS)]
        yield f"{words}: {sum(read_from)} of {UPLOADS} uploads; {victim.reason}"
    for words, problem, algorithm, rules, read in (
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
            f"{words}: {matched(claims, problem)} of {COUNT} in {victim.answered} "
            f"answers; {victim.reason}"
        )


if __name__ == "__main__":
    import jax

    jax.config.update("jax_enable_x64", True)
    for line in table():
        print(line, flush=True)
