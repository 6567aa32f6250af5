"""Values of byzfl 0.0.11 for tests, in byzfl_values.json.

In an environment with byzfl: python -m tests.transforms.byzfl_values
"""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from tests.transforms.attacks import Rows

VALUES = Path(__file__).parent / "byzfl_values.json"
SHAPES = (5, 3), (11, 4), (21, 6)


def main() -> None:
    import byzfl  # type: ignore[import-not-found]

    means: dict[str, Any] = {
        "TrMean": (byzfl.TrMean, [{"f": 1}, {"f": 2}]),
        "GeometricMedian": (
            byzfl.GeometricMedian,
            [{"nu": 0.1, "T": 3}, {"nu": 0.001, "T": 20}, {"nu": 1.5, "T": 8}],
        ),
        "CenteredClipping": (
            byzfl.CenteredClipping,
            [{"L": 1, "tau": 2.0}, {"L": 6, "tau": 0.5}, {"L": 3, "tau": 1e3}],
        ),
    }
    attacks: dict[str, Any] = {
        "ALittleIsEnough": (byzfl.ALittleIsEnough, [{"tau": 1.5}]),
        "InnerProductManipulation": (byzfl.InnerProductManipulation, [{"tau": 2.0}]),
    }
    inputs = [rows(seed, shape) for seed, shape in enumerate(SHAPES)]
    cases = [
        {
            "input": index,
            "name": name,
            "settings": settings,
            "output": function(**settings)(vectors.copy()).tolist(),
        }
        for index, vectors in enumerate(inputs)
        for name, (function, choices) in {**means, **attacks}.items()
        for settings in choices
    ]
    VALUES.write_text(
        f'{{"byzfl": "{version("byzfl")}",\n"inputs": [\n'
        + ",\n".join(json.dumps(vectors.tolist()) for vectors in inputs)
        + '\n],\n"cases": [\n'
        + ",\n".join(json.dumps(case) for case in cases)
        + "\n]}\n"
    )


def rows(seed: int, shape: tuple[int, int]) -> Rows:
    vectors = 1 + np.random.default_rng(seed).normal(size=shape)
    vectors[0] *= 50
    return vectors


if __name__ == "__main__":
    main()
