"""`fedbilevel` as a user calls it, on an experiment of seconds."""

import os
import subprocess
import sys

from tests.tracking.servers import ENVIRONMENT

FILE = """
rounds = 2000

[problem]
name = "Regularisation"

[data]
train_size = 80
validation_size = 40

[partition]
devices = 2

[algorithm]
name = "FedBiO"
learning_rate = 0.1
batch_size = 4

[checkpoints]
every = 5

[tracking]
tensorboard = true
wandb = "federated"
"""


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fedbilevel", *arguments],
        env={**os.environ, **ENVIRONMENT, "WANDB_MODE": "offline"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
