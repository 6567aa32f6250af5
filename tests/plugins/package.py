"""A package that adds an algorithm, a problem and an optimiser, as authors would."""

from pathlib import Path

MODULE = '''"""A plug-in: plain local steps, and softmax regression with a penalty."""

from dataclasses import dataclass
from typing import NamedTuple

import optax
from fedbilevel.algorithms import (
    Count, LearningRate, Phase, Rate, Upload, check_settings, draw_samples, rate_at,
    register, tree,
)
from fedbilevel.problems import regularisation


class State(NamedTuple):
    x: object
    y: object
    step: object


@register
@dataclass(frozen=True)
class Plain:
    """Local steps on y along its loss, and on x along what the upper loss says of it.

    Attributes:
        learning_rate: of both.
        drag: divides the steps of x.
        local_steps: between two exchanges.
    """

    learning_rate: LearningRate
    drag: Rate = 10.0
    local_steps: Count = 1

    def __post_init__(self):
        check_settings(self)

    def init(self, problem, x, y):
        return State(x, y, 0), ()

    def opening(self, problem):
        return ()

    def phases(self, problem):
        def step(carry, data, key):
            x, y, t = carry
            samples = draw_samples(data, key, 4)
            rate = rate_at(self.learning_rate, t)
            slope, _ = problem.upper_gradients(x, y, samples.upper)
            down = problem.lower_gradient(x, y, samples.lower)
            x = tree.add_scaled(x, -rate / self.drag, slope)
            return State(x, tree.add_scaled(y, -rate, down), t)

        return (
            Phase(
                name="local steps",
                steps=self.local_steps,
                broadcast=lambda server: server,
                start=lambda downlink, private, data, key: downlink,
                step=step,
                finish=lambda carry, downlink, key: (Upload(carry[:2]), (), {}),
                server=lambda server, mean, key: State(
                    *mean.update, server.step + self.local_steps
                ),
                reference=lambda downlink: downlink[:2],
            ),
        )


@dataclass(frozen=True)
class Penalised:
    """Softmax regression with one more setting than the library's.

    Attributes:
        strength: of the penalty at the start.
    """

    strength: float = 0.1

    def build(self, data):
        return regularisation(data.split, penalty=self.strength)


def shortened(learning_rate, share=0.5):
    return optax.sgd(share * learning_rate)
'''
POINTS = """[fedbilevel.algorithms]
Plain = plugged:Plain
Broken = plugged:missing
FedBiO = plugged:Plain

[fedbilevel.problems]
Penalised = plugged:Penalised

[fedbilevel.server_optimisers]
shortened = plugged:shortened
sgd = plugged:shortened
"""


def write_package(directory: Path) -> None:
    """Write the package as pip would install it into a directory of the path."""
    (directory / "plugged.py").write_text(MODULE)
    about = directory / "plugged-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: plugged\nVersion: 1.0"
    )
    (about / "entry_points.txt").write_text(POINTS)
