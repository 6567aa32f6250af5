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

    The benchmark's oracles read samples that lie side by side, from `start` on. One
    sample at a time, any device can hold any of them, and draws them independently.
    """

    def loss(x, y, samples):
        values = jax.vmap(lambda one: oracle(y, x, start=one, batch_size=1))(samples)
        return jnp.mean(values)

    return loss


class Solver(BaseSolver):
    """Local bilevel stochastic gradient with momentum-based variance reduction.

    H. Gao, "On the Convergence of Momentum-Based Algorithms for Federated Bilevel
    Optimization Problems", Algorithm 2, as fedbilevel has it. The benchmark is of one
    machine: with `devices=1`, one device holds all samples and nothing is averaged.
    With more, samples are dealt at random to devices that are simulated on the same
    machine and average every `local_steps` steps.
    """

    name = "LocalBSGVRM"
    requirements: ClassVar = ["pip::fedbilevel"]

    # As patient as the benchmark's own solvers.
    stopping_criterion = SufficientProgressCriterion(
        patience=12_800, strategy="callback"
    )

    # step_size, outer_ratio, n_hia_steps, batch_size, eval_freq and random_state mean
    # what they mean in the benchmark's own solvers. The share of the past that an
    # estimate forgets is `forget`, αη² = βη² of the paper.
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
        """Evaluate every `eval_freq` steps."""
        return stop_val + 1

    def skip(self, n_inner_samples, n_outer_samples, **_):
        """Refuse more devices than there are samples to deal."""
        if self.devices > min(n_inner_samples, n_outer_samples):
            return True, f"{self.devices} devices cannot each have a sample"
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
        """Deal the samples and compile the rounds."""
        generator = np.random.default_rng(self.random_state)

        def deal(count):
            dealt = np.array_split(generator.permutation(count), self.devices)
            return [part.astype(np.int32) for part in dealt]

        self.problem = fb.BilevelProblem(
            mean_over_samples(f_outer), mean_over_samples(f_inner)
        )
        held = map(fb.LocalExamples, deal(n_outer_samples), deal(n_inner_samples))
        self.held = fb.InMemoryDevices(list(held))
        self.algorithm = fb.LocalBSGVRM(
            learning_rate=self.step_size,
            hypergradient=fb.NeumannSeries(self.n_hia_steps, self.step_size),
            upper_rate=1 / self.outer_ratio,
            upper_mixing=self.forget / self.step_size**2,
            lower_mixing=self.forget / self.step_size**2,
            local_steps=self.local_steps,
            batch_size=self.batch_size,
            opening_batch_size=self.batch_size,
        )
        self.start = outer_var0, inner_var0
        # The first and a later round are compiled before time is taken.
        self.run_once(2)

    def run(self, callback):
        """Run rounds until the benchmark has seen enough."""
        self.outer_var, self.inner_var = self.start
        rounds = fb.run(
            self.problem,
            self.algorithm,
            self.held,
            *self.start,
            rounds=2**31 - 1,
            seed=self.random_state,
        )
        a_time = max(1, self.eval_freq // self.local_steps)
        while callback():
            for _ in range(a_time):
                done = next(rounds)
            self.outer_var, self.inner_var = done.x, done.y
        rounds.close()

    def get_result(self):
        """Return both variables, under the benchmark's names."""
        return {"inner_var": self.inner_var, "outer_var": self.outer_var}
