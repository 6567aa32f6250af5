"""LocalBSGVRM of fedbilevel as a solver of benchopt's bilevel benchmark."""

from typing import ClassVar

from benchopt import BaseSolver, safe_import_context
from benchopt.stopping_criterion import SufficientProgressCriterion

with safe_import_context() as import_ctx:
    import jax
    import jax.numpy as jnp
    import numpy as np

    import fedbilevel as fb


def mean_over_samples(oracle):
    """Return a loss of (x, y, sample numbers) from the benchmark's oracle.

    The oracles read contiguous samples from `start` on. This loss calls them
    for one sample at a time, so that a device can hold any samples and draw them
    independently.
    """

    def loss(x, y, samples):
        values = jax.vmap(lambda i: oracle(y, x, start=i, batch_size=1))(samples)
        return jnp.mean(values)

    return loss


class Solver(BaseSolver):
    """Local bilevel stochastic gradient with momentum-based variance reduction.

    H. Gao, "On the Convergence of Momentum-Based Algorithms for Federated Bilevel
    Optimization Problems", Algorithm 2, in the implementation of fedbilevel. The
    benchmark runs on one machine: with `devices=1`, one device holds all samples and
    nothing is averaged. With more devices, samples are partitioned at random among
    devices that are simulated on the same machine and average every `local_steps`
    steps.
    """

    name = "LocalBSGVRM"
    requirements: ClassVar = ["pip::fedbilevel"]

    # The same patience as the benchmark's solvers.
    stopping_criterion = SufficientProgressCriterion(
        patience=12_800, strategy="callback"
    )

    # step_size, outer_ratio, n_hia_steps, batch_size, eval_freq and random_state have
    # the meaning of the benchmark's solvers. `forget` is the weight αη² = βη² that an
    # estimate removes from its past.
    parameters: ClassVar = {
        "step_size": [0.1],
        "outer_ratio": [1.0],
        "n_hia_steps": [10],
        "forget": [0.1],
        "batch_size": [64],
        "local_steps": [16],
        "devices": [1],
        "eval_freq": [128],
        "random_state": [1],
    }

    @staticmethod
    def get_next(stop_val):
        """Return the next evaluation: one more block of `eval_freq` steps."""
        return stop_val + 1

    def skip(self, n_inner_samples, n_outer_samples, **_):
        """Return whether to skip a setting with more devices than samples."""
        if self.devices > min(n_inner_samples, n_outer_samples):
            return True, f"devices={self.devices} exceeds the number of samples"
        return False, None

    def set_objective(
        self,
        f_inner,
        f_outer,
        n_inner_samples,
        n_outer_samples,
        inner_var0,
        outer_var0,
    ):
        """Partition the samples and compile the rounds."""
        generator = np.random.default_rng(self.random_state)

        def partition(count):
            parts = np.array_split(generator.permutation(count), self.devices)
            return [part.astype(np.int32) for part in parts]

        self.problem = fb.BilevelProblem(
            mean_over_samples(f_outer), mean_over_samples(f_inner)
        )
        upper, lower = partition(n_outer_samples), partition(n_inner_samples)
        self.federation = fb.InMemoryDevices(list(map(fb.LocalExamples, upper, lower)))
        self.algorithm = fb.LocalBSGVRM(
            learning_rate=self.step_size,
            hypergradient=fb.NeumannSeries(self.n_hia_steps, self.step_size),
            upper_rate=1 / self.outer_ratio,
            upper_mixing=self.forget / self.step_size**2,
            lower_mixing=self.forget / self.step_size**2,
            local_steps=self.local_steps,
            batch_size=self.batch_size,
            initial_batch_size=self.batch_size,
        )
        self.start = outer_var0, inner_var0
        # Compile the first and a later round before the timing starts.
        self.run_once(2)

    def run(self, callback):
        """Run rounds until the benchmark's stopping criterion is met."""
        self.outer_var, self.inner_var = self.start
        rounds = fb.run(
            self.problem,
            self.algorithm,
            self.federation,
            *self.start,
            rounds=2**31 - 1,
            seed=self.random_state,
        )
        rounds_per_evaluation = max(1, self.eval_freq // self.local_steps)
        while callback():
            for _ in range(rounds_per_evaluation):
                last = next(rounds)
            self.outer_var, self.inner_var = last.x, last.y
        rounds.close()

    def get_result(self):
        """Return both variables by the benchmark's names."""
        return {"inner_var": self.inner_var, "outer_var": self.outer_var}
