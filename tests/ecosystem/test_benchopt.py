"""The solver for benchopt's bilevel benchmark, run by benchopt in a small benchmark."""

import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

pytestmark = pytest.mark.process

SOLVER = Path(__file__).parents[2] / "integrations/benchopt/solvers/localbsgvrm.py"
# The interface of the bilevel benchmark's objective with solvers and data sets.
OBJECTIVE = """
from benchopt import BaseObjective
import jax.numpy as jnp


class Objective(BaseObjective):
    name = "Penalties"
    min_benchopt_version = "1.10"

    def set_data(self, pb_inner, pb_outer, metrics):
        self.f_inner, self.n_inner_samples, self.dim_inner, _ = pb_inner
        self.f_outer, self.n_outer_samples, self.dim_outer, _ = pb_outer
        self.metrics = metrics

    def get_one_result(self):
        return self.start()

    def start(self):
        return {
            "inner_var": jnp.zeros(self.dim_inner),
            "outer_var": -2 * jnp.ones(self.dim_outer),
        }

    def evaluate_result(self, inner_var, outer_var):
        return self.metrics(inner_var, outer_var)

    def get_objective(self):
        return {
            "f_inner": self.f_inner,
            "f_outer": self.f_outer,
            "n_inner_samples": self.n_inner_samples,
            "n_outer_samples": self.n_outer_samples,
            "inner_var0": self.start()["inner_var"],
            "outer_var0": self.start()["outer_var"],
        }
"""
# A penalty for each feature of a regression in which half of the features are noise.
# The oracles read batches of consecutive samples.
DATASET = """
from functools import partial

from benchopt import BaseDataset
import jax
import jax.numpy as jnp
import numpy as np


class Dataset(BaseDataset):
    name = "noisy features"
    parameters = {"features": [6]}

    def get_data(self):
        generator = np.random.default_rng(0)
        truth = np.where(np.arange(self.features) % 2, 1.0, 0.0)

        def samples(count):
            matrix = generator.normal(size=(count, self.features))
            target = matrix @ truth + generator.normal(size=count)
            return jnp.asarray(matrix), jnp.asarray(target)

        def loss(held, y, start, batch_size):
            matrix = jax.lax.dynamic_slice_in_dim(held[0], start, batch_size)
            target = jax.lax.dynamic_slice_in_dim(held[1], start, batch_size)
            return 0.5 * jnp.mean((matrix @ y - target) ** 2)

        training, validation = samples(40), samples(30)

        @partial(jax.jit, static_argnames=("batch_size",))
        def f_inner(inner_var, outer_var, start=0, batch_size=1):
            penalty = 0.5 * jnp.sum(jnp.exp(outer_var) * inner_var**2)
            return loss(training, inner_var, start, batch_size) + penalty

        @partial(jax.jit, static_argnames=("batch_size",))
        def f_outer(inner_var, outer_var, start=0, batch_size=1):
            return loss(validation, inner_var, start, batch_size)

        @jax.jit
        def hypergradient(outer_var):
            def value(outer_var):
                matrix, target = training
                gram = matrix.T @ matrix / 40 + jnp.diag(jnp.exp(outer_var))
                solved = jnp.linalg.solve(gram, matrix.T @ target / 40)
                return f_outer(solved, outer_var, batch_size=30)

            return jax.grad(value)(outer_var)

        def metrics(inner_var, outer_var):
            return {"value": float(jnp.sum(hypergradient(outer_var) ** 2))}

        return {
            "pb_inner": (f_inner, 40, self.features, partial(f_inner, batch_size=40)),
            "pb_outer": (f_outer, 30, self.features, partial(f_outer, batch_size=30)),
            "metrics": metrics,
        }
"""
SETTINGS = "step_size=0.2,outer_ratio=0.2,forget=0.04,batch_size=8,n_hia_steps=4"
SETTINGS += ",local_steps=8,eval_freq=64"


@pytest.fixture
def benchmark(tmp_path):
    directory = tmp_path / "benchmark"
    (directory / "datasets").mkdir(parents=True)
    (directory / "solvers").mkdir()
    (directory / "objective.py").write_text(OBJECTIVE)
    (directory / "datasets" / "noisy_features.py").write_text(DATASET)
    shutil.copy(SOLVER, directory / "solvers")
    return directory


@pytest.mark.nightly
def test_benchopt_runs_the_solver_with_one_device_and_with_several(benchmark):
    solver = f"LocalBSGVRM[devices=[1,4,31],{SETTINGS}]"
    options = ["--no-plot", "--no-html", "--no-cache", "--output", "found"]
    options += ["--max-runs", "8", "--solver", solver]
    process = subprocess.run(
        [sys.executable, "-m", "benchopt", "run", benchmark, *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "devices=31 exceeds the number of samples" in process.stdout
    results = pd.read_parquet(benchmark / "outputs" / "found.parquet")
    assert results["solver_name"].str.startswith("LocalBSGVRM[").all()
    curves = results.groupby("p_solver_devices")["objective_value"]
    assert sorted(curves.groups) == [1, 4]
    for _, curve in curves:
        assert len(curve) == 9  # the start, and eight evaluations
        assert curve.iloc[-1] < curve.iloc[0] / 5
