"""The client half: a device that answers tasks, within the rules of its operator."""

import hashlib
import hmac
import secrets
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedbilevel.algorithms.protocol import Downlink, FederatedAlgorithm, Private
from fedbilevel.data.devices import InMemoryDevices, LocalExamples
from fedbilevel.data.examples import DeviceData, RandomKey, one_device
from fedbilevel.engines.device_work import Done, run_device
from fedbilevel.engines.fingerprint import fingerprint
from fedbilevel.engines.loss_checks import check_means
from fedbilevel.engines.preparation import canonical, references
from fedbilevel.engines.protocol import Moment, PhaseReference, device_key
from fedbilevel.federation.device_state import DeviceStates
from fedbilevel.federation.enrolment import Enrolment
from fedbilevel.federation.exchange_counter import ExchangeCounter
from fedbilevel.federation.messages import Answer, Task
from fedbilevel.federation.shared_entries import require_shared_entries
from fedbilevel.federation.site_rules import (
    SiteRules,
    require_batches,
    require_examples,
)
from fedbilevel.federation.task_record import TaskRecord
from fedbilevel.federation.transport import RefusedError
from fedbilevel.federation.wire_format import unpacked
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper

SALT_BYTES = 32


class Site:
    """One device of a federation.

    It answers within its rules, or says which of them keeps it from answering. Uploads
    are computed from its examples, and a server can reconstruct examples from them:
    see docs/security.md.

    Args:
        number: among all enrolled devices.
        problem: the two losses.
        algorithm: what devices and server do.
        examples: what it holds.
        x: where the upper variable starts; its shapes are what matters.
        y: where the lower variable starts.
        directory: where it keeps private states and the list of what it has answered, in
            a directory for each run; none to keep them in memory.
        rules: set by its operator.
        salt: secret bytes that its samples are drawn by; made here if none are given.
            Not used where the rules ask for a simulation's draws.
        run: the only run that it answers; none to answer any, each within the rules.
        answers: counts the exchanges of all runs, which the rules bound together; by
            default those of all runs in the directory.

    Raises:
        RefusedError: if the rules forbid to take part; says what to set where.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedbilevel import BilevelProblem, FedBiO
        >>> from fedbilevel.federation import REHEARSAL
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> held = LocalExamples(np.ones(4), np.ones(6))
        >>> what = BilevelProblem(loss, loss), FedBiO(0.1), held, 3.0, 0.0
        >>> Site(0, *what, rules=REHEARSAL).enrolment.lower_size
        6
        >>> Site(0, *what)
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: the site holds 4 upper
        examples, but its rules ask for at least 128. Let it hold more, or let its
        operator lower fewest_examples in local/site_rules.toml
    """

    def __init__(
        self,
        number: int,
        problem: BilevelProblem,
        algorithm: FederatedAlgorithm,
        examples: LocalExamples,
        x: Upper,
        y: Lower,
        directory: Path | None = None,
        *,
        rules: SiteRules = SiteRules(),
        salt: bytes | None = None,
        run: str | None = None,
        answers: ExchangeCounter | None = None,
    ) -> None:
        self.enrolment = Enrolment.of(examples)
        self._rules, self._run, self._directory = rules, run, directory
        self._salt = salt or secrets.token_bytes(SALT_BYTES)
        self._answers = answers or ExchangeCounter(directory)
        self._answered: dict[str, TaskRecord] = {}
        self._number, self._problem, self._algorithm = number, problem, algorithm
        self._data = one_device(InMemoryDevices([examples]).cohort(np.array([0])))
        x, y = canonical(x), canonical(y)
        check_means(problem, x, y, self._data)
        # A job chooses these: with other settings the same message asks for something
        # else, and two answers by the same draws could tell of one example.
        self._computation = fingerprint([number, problem, algorithm, examples, x, y])
        server, private = canonical(algorithm.init(problem, x, y))
        self._server = jax.eval_shape(lambda: server)
        self._kept = DeviceStates(private, directory)
        self._forms: dict[PhaseReference, PyTree] = {}
        require_examples(rules, self.enrolment)
        pairs = [
            (reference.of(algorithm, problem), self._form_of(reference))
            for reference in self._references()
        ]
        require_batches(rules, pairs, private, self._data)
        require_shared_entries(rules, problem, x, y, self._data)

    def warm_up(self) -> None:
        """Compile every distinct phase once, so that no exchange waits for it."""
        for reference in self._references():
            downlink = jax.tree.map(
                lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
                self._form_of(reference),
            )
            private = self._kept.get("", None)
            self._work(reference, downlink, private, jax.random.key(0))

    def require_left(self, rounds: int) -> None:
        """Refuse a run of so many rounds if the rules forbid to answer it to its end.

        Raises:
            RefusedError: says what to set where.
            ValueError: if the site answers any run.
        """
        if self._run is None:
            raise ValueError("no run is given that would have so many rounds.")
        every = len(self._algorithm.phases(self._problem))
        first = len(self._algorithm.opening(self._problem)) or every
        self._answered_in(self._run).require_left(first + (rounds - 1) * every)

    def answer(self, message: bytes) -> bytes:
        """Carry out a task; return all that leaves the device.

        Raises:
            RefusedError: if the task cannot be carried out here; says why.
        """
        task = Task.decode(message)
        if self._run not in (None, task.run):
            raise RefusedError(f"the site has enrolled in run {self._run}, in no other")
        downlink = unpacked(task.arrays, self._form_of(task.reference))
        private = self._kept.get(task.run, self._last(task))
        # SHA-256 takes twice the time, of 50 MB a third of what a site does besides its
        # computation.
        digest = hashlib.blake2b(self._computation, digest_size=32)
        digest.update(message)
        self._answered_in(task.run).admit(task.moment, digest.hexdigest())
        key = self._key(task, digest.digest())
        upload, kept, info = self._work(task.reference, downlink, private, key)
        # Which of its states is the one to go on from, the server says next time.
        self._kept.put(task.run, task.moment, kept)
        return Answer.of(task.run, task.moment, upload, info).encode()

    def _key(self, task: Task, digest: bytes) -> RandomKey:
        """Return the key of the device's work.

        By the salt it follows from all that is computed: the task, and the settings and
        data that it meets. So the same gets the same answer, anything else draws other
        samples, and the server knows neither.
        """
        form = jax.random.key_data(jax.random.key(0))
        if self._rules.simulated_draws:
            if task.key.shape != form.shape:
                raise RefusedError("its key is of another kind than keys are here")
            key = jax.random.wrap_key_data(jnp.asarray(task.key))
            return device_key(key, task.moment, self._number)
        code = hmac.new(self._salt, digest, hashlib.sha256)
        words = np.frombuffer(code.digest(), np.uint32)[: form.size]
        drawn: RandomKey = jax.random.wrap_key_data(
            jnp.asarray(words).reshape(form.shape)
        )
        return drawn

    def _answered_in(self, run: str) -> TaskRecord:
        if run not in self._answered:
            directory = None if self._directory is None else self._directory / run
            self._answered[run] = TaskRecord(self._rules, directory, self._answers)
        return self._answered[run]

    def _references(self) -> tuple[PhaseReference, ...]:
        """Return every distinct phase of the algorithm."""
        opening = references(True, self._algorithm.opening(self._problem))
        phases = references(False, self._algorithm.phases(self._problem))
        return tuple(dict.fromkeys((*opening, *phases)))

    def _work(
        self,
        reference: PhaseReference,
        downlink: Downlink,
        private: Private,
        key: RandomKey,
    ) -> Done:
        done: Done = compute_on_device(
            self._algorithm,
            downlink,
            private,
            self._data,
            key,
            problem=self._problem,
            reference=reference,
        )
        return done

    def _last(self, task: Task) -> Moment | None:
        """Return the last exchange that this device has counted in."""
        if not self._kept.stateful:
            return None
        round_number, exchanges = task.counted
        return Moment(round_number, exchanges - 1) if exchanges else None

    def _form_of(self, reference: PhaseReference) -> PyTree:
        if reference not in self._forms:
            try:
                phase = reference.of(self._algorithm, self._problem)
            except IndexError:
                raise RefusedError("it asks for a phase that there is not") from None
            self._forms[reference] = jax.eval_shape(phase.broadcast, self._server)
        return self._forms[reference]


@partial(jax.jit, static_argnames=("problem", "reference"))
def compute_on_device(
    algorithm: FederatedAlgorithm,
    downlink: Downlink,
    private: Private,
    data: DeviceData,
    key: RandomKey,
    *,
    problem: BilevelProblem,
    reference: PhaseReference,
) -> Done:
    """Return what one device sends, keeps and reports after an exchange.

    Example:
        >>> compute_on_device.__name__
        'compute_on_device'
    """
    phase = reference.of(algorithm, problem)
    return run_device(phase, downlink, private, data, key)
