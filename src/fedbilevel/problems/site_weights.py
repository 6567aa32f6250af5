"""Site weights: how far to trust each site, learned from a few trusted examples.

For site k with loss ℓ of an example a with label t, and own part x_k of x,

    g_k(x, y) = w_k (mean over the site's examples of ℓ_k(x_k, y; a, t) + ½ ridge ‖y‖²),
    f(x, y)   = mean over trusted examples of ℓ(y; a, t),

where w = K softmax(x) are weights with mean 1. The forms differ in ℓ_k: the loss of the
label, weighted by its class, or a mean of the losses of all classes, weighted by what
the site may mean by the label.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedbilevel.data.devices import InMemoryDevices, LocalExamples
from fedbilevel.mathematics import arrays, tree
from fedbilevel.mathematics.problem import BilevelProblem, Loss, Lower, Upper
from fedbilevel.mathematics.settings import Rate, check_ranges
from fedbilevel.mathematics.sites import SiteRows, SiteWeights
from fedbilevel.problems.split import LabelledRows, LabelledTable
from fedbilevel.problems.task import Task, TaskMetric

SERVER = "server"
"""The name of the device with trusted examples that belong to no site."""
NO_WEIGHT = -1e9
"""Logit of a device without training examples: its weight is 0 and does not move."""
LabelLosses: TypeAlias = Callable[[Lower, Any], Float[Array, "examples classes"]]
"""A function of y and features: the loss of each example for each label it may have."""


@runtime_checkable
class SiteForm(Protocol):
    """A form of what is learned of each site."""

    def start(self, sizes: Int[np.ndarray, "sites"], classes: int) -> Upper:
        """Return x of averaging by size, given the sites' numbers of examples."""

    def loss(
        self,
        own: Any,
        losses: Float[Array, "examples classes"],
        labels: Int[Array | np.ndarray, "examples"],
    ) -> Float[Array, ""]:
        """Return the mean loss of a batch of a site, without the site's weight."""

    def weight(self, own: Any) -> Float[Array, ""]:
        """Return the weight of a site."""


@dataclass(frozen=True)
class PlainWeights:
    """One weight for each site.

    Use it with few trusted examples (30), and where labels are right or wrong.

    Example:
        >>> x = PlainWeights().start(np.array([100, 300]), classes=2)
        >>> [round(float(weight), 3) for weight in x.all_weights()]
        [0.5, 1.5]
    """

    def start(self, sizes: Int[np.ndarray, "sites"], classes: int) -> SiteWeights:
        """Return weights proportional to the sizes."""
        logits = np.where(sizes > 0, np.log(np.maximum(sizes, 1)), NO_WEIGHT)
        return SiteWeights(jnp.asarray(logits, float))

    def loss(
        self,
        own: Float[Array, ""],
        losses: Float[Array, "examples classes"],
        labels: Int[Array | np.ndarray, "examples"],
    ) -> Float[Array, ""]:
        """Return the mean loss of the labels."""
        return arrays.mean(_of_labels(losses, labels))

    def weight(self, own: Float[Array, ""]) -> Float[Array, ""]:
        """Return the weight of a site."""
        return own


class OwnClasses(NamedTuple):
    """The parts of x of `ClassWeights`, or those that a site sees.

    Attributes:
        weight: weight of each site.
        classes: one number for each class and site.
    """

    weight: Any
    classes: Any


@dataclass(frozen=True)
class ClassWeights:
    """A weight for each site, and within it for each class: C softmax of a row.

    Use it where some classes of a site are labelled well and others badly.

    Example:
        >>> x = ClassWeights().start(np.array([100, 300]), classes=3)
        >>> x.classes.rows.shape
        (2, 3)
    """

    def start(self, sizes: Int[np.ndarray, "sites"], classes: int) -> OwnClasses:
        """Return weights proportional to the sizes, equal for all classes."""
        rows = jnp.zeros((len(sizes), classes))
        return OwnClasses(PlainWeights().start(sizes, classes), SiteRows(rows))

    def loss(
        self,
        own: OwnClasses,
        losses: Float[Array, "examples classes"],
        labels: Int[Array | np.ndarray, "examples"],
    ) -> Float[Array, ""]:
        """Return the mean loss of the labels, weighted by class."""
        weights = len(own.classes) * _softmax(own.classes)
        return arrays.mean(weights[labels] * _of_labels(losses, labels))

    def weight(self, own: OwnClasses) -> Float[Array, ""]:
        """Return the weight of a site."""
        weight: Float[Array, ""] = own.weight
        return weight


class OwnMap(NamedTuple):
    """The parts of x of `LabelMaps`, or those that a site sees.

    Attributes:
        weight: weight of each site.
        map: logits of the label map of each site, label × class.
    """

    weight: Any
    map: Any


@dataclass(frozen=True)
class LabelMaps:
    """A weight and a label map for each site: what a site means by each label.

    Row t of the map is a softmax: the shares of the classes in label t. So data that
    are labelled by another convention are used. It has C² numbers for each site; use it
    with 100 trusted examples or more.

    Attributes:
        certainty: initial logit of a label's own class, against 0 for the others.

    Example:
        >>> LabelMaps().start(np.array([100, 300]), classes=3).map.rows[0].tolist()
        [[3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 3.0]]
    """

    certainty: Rate = 3.0

    def __post_init__(self) -> None:
        check_ranges(self)

    def start(self, sizes: Int[np.ndarray, "sites"], classes: int) -> OwnMap:
        """Return weights proportional to the sizes, and maps near the identity."""
        shape = len(sizes), classes, classes
        rows = jnp.broadcast_to(self.certainty * jnp.eye(classes), shape)
        return OwnMap(PlainWeights().start(sizes, classes), SiteRows(rows))

    def loss(
        self,
        own: OwnMap,
        losses: Float[Array, "examples classes"],
        labels: Int[Array | np.ndarray, "examples"],
    ) -> Float[Array, ""]:
        """Return the mean over examples of the losses of all classes, weighted."""
        shares = _softmax(own.map)[labels]
        xp = arrays.namespace(losses)
        mean: Float[Array, ""] = xp.mean(xp.sum(shares * losses, axis=1))
        return mean

    def weight(self, own: OwnMap) -> Float[Array, ""]:
        """Return the weight of a site."""
        weight: Float[Array, ""] = own.weight
        return weight


def site_weights(
    losses: LabelLosses,
    sites: Mapping[str, LabelledTable],
    trusted: LabelledTable | Mapping[str, LabelledTable],
    y: Lower,
    *,
    classes: int,
    form: SiteForm = PlainWeights(),
    ridge: float = 0.002,
    metrics: Mapping[str, TaskMetric] | None = None,
    derive: Callable[[Loss, Loss], BilevelProblem] = BilevelProblem,
) -> Task:
    """Return the problem of learning how far to trust each site.

    It starts at federated averaging by size. A low weight is no proof of wrong labels:
    a site with a rare population may have one too, if the trusted examples lack it.

    Args:
        losses: losses of each example for each label that it may have, as a function of
            y and of a site's features.
        sites: training examples by the names of the sites.
        trusted: trusted examples at the server, or by the names of their sites.
        y: initial model.
        classes: number of classes.
        form: what is learned of each site: `PlainWeights`, `ClassWeights` or
            `LabelMaps`.
        ridge: penalty on the model. The lower loss needs one to be strongly convex.
        metrics: metrics of the task, such as the accuracy on test examples.
        derive: function that derives the oracles of the two losses, such as
            `fedbilevel.torch.bilevel_problem` if `losses` is a function of tensors.

    Raises:
        ValueError: if there is no site, a site has the name "server" of the trusted
            examples, or a label is not one of 0 … classes − 1.

    Example:
        >>> from fedbilevel import AutoFedBiO, run
        >>> generator = np.random.default_rng(0)
        >>> def rows(count, is_flipped=False):
        ...     features = generator.normal(size=(count, 2)).astype(np.float32)
        ...     return LabelledRows(features, (features[:, 0] > 0) ^ is_flipped)
        >>> sites = {"Oslo": rows(80), "Rome": rows(80), "Bonn": rows(80, True)}
        >>> task = site_weights(
        ...     linear_label_losses, sites, rows(40), jnp.zeros((2, 2)), classes=2
        ... )
        >>> algorithm = AutoFedBiO(rounds=60, upper_rate=0.1, local_steps=1)
        >>> *_, last = run(
        ...     task.problem, algorithm, task.devices, task.x, task.y, rounds=60
        ... )
        >>> weights = dict(zip(task.devices.names, last.x.all_weights()))
        >>> bool(weights["Bonn"] < 0.2 < 1 < weights["Oslo"])
        True
    """
    if not isinstance(trusted, Mapping):
        if SERVER in sites:
            raise ValueError(
                f"A site has the name {SERVER!r} of the trusted examples. Rename the "
                "site, or pass trusted by name."
            )
        trusted = {SERVER: trusted}
    if not sites:
        raise ValueError("sites is empty. Pass the examples of at least one site.")
    if not trusted:
        raise ValueError(
            "trusted is empty. Pass trusted examples of at least one place."
        )
    for name, table in (*sites.items(), *trusted.items()):
        _require_labels(name, table, classes)
    names = [*sites, *(name for name in trusted if name not in sites)]
    devices = InMemoryDevices(
        {
            name: LocalExamples(_rows(trusted.get(name)), _rows(sites.get(name)))
            for name in names
        }
    )
    problem = derive(TrustedLoss(losses), SiteLoss(losses, form, ridge))
    x = form.start(devices.lower_sizes, classes)
    return Task(problem, devices, x, y, metrics or {})


# Losses are frozen dataclasses instead of closures, so that two tasks with the same
# settings share one compiled program.
@dataclass(frozen=True)
class TrustedLoss:
    """f, the mean loss of trusted examples.

    Example:
        >>> batch = LabelledRows(jnp.eye(2), np.array([0, 1]))
        >>> float(TrustedLoss(linear_label_losses)(None, jnp.zeros((2, 2)), batch))
        0.6931471824645996
    """

    losses: LabelLosses

    def __call__(self, x: Upper, y: Lower, batch: LabelledRows, /) -> Float[Array, ""]:
        """Return the mean loss."""
        return arrays.mean(_of_labels(self.losses(y, batch.features), batch.labels))


@dataclass(frozen=True)
class SiteLoss:
    """g, the mean loss of a site's examples with a ridge, times the site's weight.

    Example:
        >>> batch = LabelledRows(jnp.eye(2), np.array([0, 1]))
        >>> loss = SiteLoss(linear_label_losses, PlainWeights(), ridge=0.1)
        >>> float(loss(jnp.array(2.0), jnp.zeros((2, 2)), batch))
        1.3862943649291992
    """

    losses: LabelLosses
    form: SiteForm
    ridge: float

    def __call__(self, x: Upper, y: Lower, batch: LabelledRows, /) -> Float[Array, ""]:
        """Return the mean loss with the ridge, times the weight."""
        loss = self.form.loss(x, self.losses(y, batch.features), batch.labels)
        # Weighted too, so that a site's weight only scales its loss.
        penalty = 0.5 * self.ridge * tree.squared_norm(y)
        return self.form.weight(x) * (loss + penalty)


def linear_label_losses(
    y: Float[Array | np.ndarray, "classes features"],
    features: Float[Array | np.ndarray, "examples features"],
) -> Float[Array, "examples classes"]:
    """Return the cross-entropies of softmax regression for each label.

    Example:
        >>> linear_label_losses(jnp.zeros((2, 3)), jnp.ones((1, 3)))
        Array([[0.6931472, 0.6931472]], dtype=float32)
    """
    scores = features @ y.T
    xp = arrays.namespace(scores)
    shifted = scores - xp.max(scores, axis=1, keepdims=True)
    normaliser = xp.log(xp.sum(xp.exp(shifted), axis=1, keepdims=True))
    losses: Float[Array, "examples classes"] = normaliser - shifted
    return losses


def _require_labels(name: str, table: LabelledTable, classes: int) -> None:
    labels = np.asarray(table.labels)
    if not np.issubdtype(labels.dtype, np.integer) and labels.dtype != bool:
        raise ValueError(
            f"Site {name!r}: labels have dtype {labels.dtype}. Number the classes with "
            "integers from 0."
        )
    if not len(labels):
        raise ValueError(f"Site {name!r} has no examples. Remove it.")
    for label in (labels.min(), labels.max()):
        if not 0 <= label < classes:
            raise ValueError(
                f"Site {name!r}: a label is {label}, expected 0 to {classes - 1} with "
                f"classes={classes}. Number the classes from 0, or raise classes."
            )


def _rows(table: LabelledTable | None) -> LabelledRows | None:
    if table is None:
        return None
    return LabelledRows(table.features, np.asarray(table.labels, np.int32))


def _of_labels(
    losses: Float[Array, "examples classes"],
    labels: Int[Array | np.ndarray, "examples"],
) -> Float[Array, "examples"]:
    xp = arrays.namespace(losses)
    place = {"device": losses.device} if arrays.is_tensor(losses) else {}
    own: Float[Array, "examples"] = losses[xp.arange(len(labels), **place), labels]
    return own


def _softmax(logits: Float[Array, "*rows classes"]) -> Float[Array, "*rows classes"]:
    xp = arrays.namespace(logits)
    raised = xp.exp(logits - xp.max(logits, axis=-1, keepdims=True))
    shares: Float[Array, "*rows classes"] = raised / xp.sum(
        raised, axis=-1, keepdims=True
    )
    return shares
