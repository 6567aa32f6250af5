"""Matrix mechanisms of jax-privacy 2.0.0 for tests, in correlated_values.json.

In an environment with jax-privacy: python -m tests.transforms.correlated_values
"""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

VALUES = Path(__file__).parent / "correlated_values.json"
ROUNDS = 16, 64
SEPARATION = 8


def main() -> None:
    from jax_privacy.matrix_factorization import (  # type: ignore[import-not-found]
        buffered_toeplitz,
        dense,
        sensitivity,
        toeplitz,
    )

    def case(name: str, matrix: Any, separation: int) -> dict[str, Any]:
        rounds = len(matrix)
        return {
            "name": name,
            "rounds": rounds,
            "separation": separation,
            # All are diagonal or Toeplitz matrices.
            "diagonal": np.diag(matrix).tolist(),
            "column": np.asarray(matrix)[:, 0].tolist(),
            "sensitivity": sensitivity.get_min_sep_sensitivity_upper_bound(
                matrix, separation
            ),
            "squares": dense.per_query_error(strategy_matrix=matrix).tolist(),
        }

    cases = []
    for rounds in ROUNDS:
        for separation in (1, SEPARATION):
            bands = toeplitz.optimize_banded_toeplitz(rounds, SEPARATION)
            matrix = toeplitz.materialize_lower_triangular(bands, rounds)
            cases.append(case("banded", matrix, separation))
            for error in ("mean", "max"):
                buffered = buffered_toeplitz.optimize(
                    n=rounds,
                    min_sep=separation,
                    max_participations=-(-rounds // separation),
                    error=error,
                )
                matrix = buffered.materialize(rounds)
                cases.append(case(f"BLT, {error} error", matrix, separation))
        matrix = dense.optimize(rounds, epochs=rounds)
        cases.append(case("dense", matrix, 1))
    VALUES.write_text(
        f'{{"jax-privacy": "{version("jax-privacy")}",\n"cases": [\n'
        + ",\n".join(json.dumps(each) for each in cases)
        + "\n]}\n"
    )


if __name__ == "__main__":
    with jax.enable_x64(True):
        main()
