"""The two losses on the data of all devices, as metrics."""

from fedbilevel.metrics.metric import Metric

LOSS = Metric(
    "loss",
    "validation loss",
    is_slow=False,
    function=lambda point: point.full.upper_loss(point.x, point.y),
)
TRAINING_LOSS = Metric(
    "training_loss",
    "training loss",
    is_slow=False,
    function=lambda point: point.full.lower_loss(point.x, point.y),
)
