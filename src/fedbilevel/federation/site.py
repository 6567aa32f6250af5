"""A site of a federation: a device that answers tasks within its operator's rules."""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree, UInt32

from fedbilevel.algorithms.protocol import (
    Downlink,
    FederatedAlgorithm,
    Info,
    Private,
    Upload,
)
from fedbilevel.data.devices import InMemoryDevices, LocalExamples
from fedbilevel.data.examples import DeviceData, RandomKey, one_device
from fedbilevel.engines.costs import work_sizes
from fedbilevel.engines.device_work import DeviceResult, run_device
from fedbilevel.engines.fingerprint import fingerprint
from fedbilevel.engines.loss_checks import check_means
from fedbilevel.engines.preparation import canonical, references
from fedbilevel.engines.protocol import (
    Moment,
    PhaseReference,
    RunState,
    device_key,
)
from fedbilevel.federation.computation import Computation, EnrolmentMessage
from fedbilevel.federation.device_state import DeviceStates
from fedbilevel.federation.enrolment import Enrolment, with_placeholders
from fedbilevel.federation.epsilon_account import EpsilonAccount, SiteEpsilon
from fedbilevel.federation.exchange_counter import ExchangeCounter
from fedbilevel.federation.messages import Answer, Task
from fedbilevel.federation.run_charges import Charges
from fedbilevel.federation.secure_messages import is_secure
from fedbilevel.federation.separate_losses import require_separate_losses
from fedbilevel.federation.shared_entries import require_shared_entries
from fedbilevel.federation.site_rules import (
    PLAIN,
    SiteRules,
    require_examples,
    require_noise,
    require_secure,
    require_timeout,
    require_work,
)
from fedbilevel.federation.site_terms import Factors, SiteTerms
from fedbilevel.federation.sum_record import SumRecord
from fedbilevel.federation.task_record import TaskRecord
from fedbilevel.federation.transport import PREPARE, RefusedError
from fedbilevel.federation.wire_format import encode, pack, unpack
from fedbilevel.mathematics.batches import for_devices
from fedbilevel.mathematics.chacha import secret_key
from fedbilevel.mathematics.keys import HostKey
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.transforms.noise import DeviceNoise
from fedbilevel.transforms.transformed import noise_of, transforms_of

if TYPE_CHECKING:
    from fedbilevel.federation.secure_site import SecureAnswers
    from fedbilevel.federation.secure_sums.identity import Identity
    from fedbilevel.torch.device_work import TensorWork

SALT_BYTES = 32
KEY_WORDS = 2
"""Number of 32-bit words of a key of a seed, or of a problem of PyTorch."""
LITTLE_NOISE = (
    "the server would see this site's upload, whose noise is only a part of that of "
    "DeviceNoise; set secure_sums = true in [federation]"
)
"""The reason why a site with `DeviceNoise` refuses a plain task."""
NOT_SECURE = (
    "the server would see this site's upload, but the job has secure sums (secure_sums "
    "= true in [federation]); check who operates the server"
)
"""The reason why a site of a job with secure sums refuses a plain task."""
FACTORS_IN_SUMS = (
    "the task has factors of the losses, by which a server could make the sum show a "
    "single upload; give every site examples of both losses and the same weight in "
    "both, or set secure_sums = false in [federation]"
)
"""The reason why a site of a job with secure sums refuses a task with factors."""


class _Work(NamedTuple):
    """A task that has begun.

    Attributes:
        task: the task.
        digest: digest of all that the upload follows from, but the salt.
        result: upload, state and metrics, which JAX may still compute.
    """

    task: Task
    digest: str
    result: DeviceResult


class Site:
    """One device of a federation.

    It answers a task, or refuses it and names the rule that forbids it. A server can
    reconstruct examples from uploads: see docs/security.md.

    Args:
        number: device number among all enrolled devices.
        problem: upper and lower loss.
        algorithm: federated algorithm.
        examples: examples of the site.
        x: start of the upper variable; only its shapes and types matter.
        y: start of the lower variable.
        directory: directory of device states and of the record of answered tasks, with
            a subdirectory for each run; None to keep them in memory.
        form: examples with the required shapes and types, for a site that has examples
            of one loss only; None for other sites.
        rules: rules set by the operator.
        salt: secret bytes from which samples are drawn; random by default. Not used
            with `simulated_draws`.
        run: the only run whose tasks are answered; None to answer any run.
        answers: counter of the exchanges of all runs, for `most_exchanges`; by default
            of all runs in the directory.
        identity: certificate and private key of the site (`load_kit`), for secure
            sums, and then for these only; None to answer plain tasks.
        roster: names of the sites that may participate in a secure sum; None for any
            site with a certificate of the same root.

    Raises:
        RefusedError: if the rules forbid to participate; the message names the rule.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedbilevel import BilevelProblem, FedBiO
        >>> from fedbilevel.federation import REHEARSAL
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> held = LocalExamples(np.ones(4), np.ones(6))
        >>> setting = BilevelProblem(loss, loss), FedBiO(0.1), held, 3.0, 0.0
        >>> Site(0, *setting, rules=REHEARSAL).enrolment.lower_size
        6
        >>> Site(0, *setting)
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: the site has 4 upper
        examples, but its rules require at least 128. Add examples, or ask its
        operator to lower fewest_examples in local/site_rules.toml
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
        form: LocalExamples | None = None,
        rules: SiteRules = SiteRules(),
        salt: bytes | None = None,
        run: str | None = None,
        answers: ExchangeCounter | None = None,
        identity: "Identity | None" = None,
        roster: Sequence[str] | None = None,
    ) -> None:
        if problem.view is not None:
            # Imported here: other sites do not need PyTorch.
            from fedbilevel.torch.devices import as_arrays

            examples = as_arrays(examples)
        self.enrolment = Enrolment.of(examples)
        self._rules, self._run, self._directory = rules, run, directory
        self._salt = salt or secrets.token_bytes(SALT_BYTES)
        self._answers = answers or ExchangeCounter(directory)
        self._account = EpsilonAccount(rules, self._answers)
        self._records: dict[str, TaskRecord] = {}
        self._secure: SecureAnswers | None = None
        noise = noise_of(algorithm)
        is_noisy = noise is not None and not noise.from_seed
        self._has_public_key = rules.simulated_draws and not is_noisy
        if identity is not None:
            self._secure = self._secure_answers(identity, roster, algorithm)
        self._number, self._algorithm = number, algorithm
        x, y = canonical(x), canonical(y)
        # A job chooses these settings. Two answers to the same message with the same
        # samples but other settings could reveal a single example.
        self._computation = fingerprint(
            [number, problem.for_jax, algorithm, examples, x, y]
        )
        examples = with_placeholders(examples, form)
        own = InMemoryDevices([examples])
        self._terms = SiteTerms(number, self.enrolment, x, algorithm)
        self._stored = one_device(own.cohort(np.array([0])))
        self._data = self._terms.add(self._stored, self._terms.usual)
        self._is_prepared = self._terms.usual is not None
        self._setting = problem, algorithm, examples, x, y
        check_means(problem.for_jax, x, y, self._data, self.enrolment.levels)
        problem = for_devices(problem)
        # All checks read the losses as functions of JAX; only the work of a task
        # calls PyTorch directly.
        self._tensors = _tensor_work(problem, algorithm, examples)
        problem = self._problem = problem.for_jax
        server, private = canonical(algorithm.init(problem, x, y))
        self._server = jax.eval_shape(lambda: server)
        self._states = DeviceStates(private, directory)
        self._charges = Charges(
            algorithm,
            problem,
            RunState(server, private),
            self._data,
            self.enrolment,
            is_secret=not rules.simulated_draws,
        )
        self._forms: dict[PhaseReference, PyTree] = {}
        self._admit(own, private, x, y)

    def _admit(
        self, own: InMemoryDevices, private: Private, x: Upper, y: Lower
    ) -> None:
        """Raise if the rules forbid to participate."""
        rules, algorithm, problem = self._rules, self._algorithm, self._problem
        levels = self.enrolment.levels
        require_secure(rules, self._secure is not None, algorithm)
        require_noise(rules, algorithm)
        require_separate_losses(algorithm, own)
        require_examples(rules, self.enrolment)
        pairs = [
            (reference.of(algorithm, problem), self._form_of(reference))
            for reference in self._references()
        ]
        sizes = [
            work_sizes(*pair, private, self._data, rules.largest_batch, levels)
            for pair in pairs
        ]
        require_work(rules, sizes)
        require_shared_entries(rules, problem, x, y, self._data, levels)

    def warm_up(self, *, with_factors: bool = False) -> None:
        """Compile every distinct phase, so that no exchange waits for compilation.

        Nothing is computed: a phase may take minutes. PyTorch compiles nothing.

        Args:
            with_factors: whether tasks will have factors. A site with examples of both
                losses learns it from the server (`PREPARE`), once all have enrolled.

        Raises:
            RefusedError: if the site cannot charge a phase to its account of ε.
        """
        if self._tensors is not None:
            return
        data = self._data
        if with_factors:
            data = self._terms.add(self._stored, self._terms.usual or (1.0, 1.0))
        for reference in self._references():
            # Traced now for the charges, too.
            self._charges.of(reference)
            compute_on_device.lower(
                self._algorithm,
                self._form_of(reference),
                self._states.get("", None),
                data,
                self._key_for_warm_up(),
                problem=self._problem,
                reference=reference,
            ).compile()

    def require_exchanges(self, rounds: int) -> None:
        """Raise if `most_exchanges` forbids to answer all rounds of the run.

        Raises:
            RefusedError: if it does.
            ValueError: if the site was created without `run`.
        """
        if self._run is None:
            raise ValueError(
                "The site was created without run; give Site the name of the run."
            )
        phases = len(self._algorithm.phases(self._problem))
        first = len(self._algorithm.opening(self._problem)) or phases
        self._record_of(self._run).require_exchanges(first + (rounds - 1) * phases)

    def enrol(self) -> bytes:
        """Return the message with which the site enrols."""
        computation = Computation.of(*self._setting)
        return EnrolmentMessage(self.enrolment, computation).encode()

    def require_timeout(self, timeout: float) -> None:
        """Raise if `most_seconds` forbids the timeout of the run's exchanges.

        Raises:
            RefusedError: if it does.
        """
        require_timeout(self._rules, timeout)

    def require_epsilon(self, rounds: int) -> SiteEpsilon | None:
        """Return the ε by example of all rounds of the run; None without such noise.

        Raises:
            RefusedError: if `largest_epsilon` forbids it.
            ValueError: if the site was created without `run`.
        """
        if self._run is None:
            raise ValueError(
                "The site was created without run; give Site the name of the run."
            )
        return self._charges.require_run(
            self._account, rounds, self._record_of(self._run).last
        )

    def answer(self, message: bytes) -> bytes:
        """Carry out a task and return the answer, which is all that leaves the device.

        Raises:
            RefusedError: if the task is not valid, or the rules forbid it.
        """
        if message == PREPARE:
            if not self._is_prepared:
                self.warm_up(with_factors=True)
            self._is_prepared = True
            return PREPARE
        if is_secure(message):
            if self._secure is None:
                raise RefusedError(
                    "the server requests a secure sum, but this site was started "
                    "without its certificate; set secure_sums = true in [federation]"
                )
            return self._secure.answer(message)
        if self._rules.secure_sums:
            raise RefusedError(PLAIN)
        if _devices_of_noise(self._algorithm) > 1 and not self._rules.simulated_draws:
            raise RefusedError(LITTLE_NOISE)
        if self._secure is not None:
            raise RefusedError(NOT_SECURE)
        work = self._begin(message)
        upload, info = self._finish(work)
        return Answer.of(work.task.run, work.task.moment, upload, info).encode()

    def _secure_answers(
        self,
        identity: "Identity",
        roster: Sequence[str] | None,
        algorithm: FederatedAlgorithm,
    ) -> "SecureAnswers":
        # Imported here: other sites do not need the packages of the extra.
        from fedbilevel.federation.secure_site import SecureAnswers, Terms

        terms = Terms(identity, roster, self._rules, _devices_of_noise(algorithm))
        return SecureAnswers(
            terms,
            self._begin,
            lambda work: self._finish(work)[0],
            SumRecord(self._rules.most_second_sums, self._answers),
        )

    def _begin(self, message: bytes) -> "_Work":
        """Begin the work of a task, once the rules allow it.

        JAX computes in the background until `_finish` reads the numbers.
        """
        task = Task.decode(message)
        if self._run not in (None, task.run):
            raise RefusedError(
                f"the task is of run {task.run}, but the site answers {self._run} only"
            )
        if task.factors is not None and self._secure is not None:
            raise RefusedError(FACTORS_IN_SUMS)
        factors = self._terms.of_task(task.factors)
        downlink = unpack(task.arrays, self._form_of(task.reference))
        private = self._states.get(task.run, self._last(task))
        # SHA-256 takes twice as long: for 50 MB, a third of the site's overhead.
        digest = hashlib.blake2b(self._computation, digest_size=32)
        if self._states.stateful:
            # After a rollback the same message continues from another state.
            state = encode(pack(jax.tree.map(np.asarray, private)))
            digest.update(hashlib.blake2b(state).digest())
        digest.update(message)
        charge = self._charges.of(task.reference)
        self._record_of(task.run).admit(task.moment, digest.hexdigest(), charge)
        key = self._key(task, digest.digest())
        result = self._work(task.reference, downlink, private, key, factors)
        return _Work(task, digest.hexdigest(), result)

    def _finish(self, work: "_Work") -> tuple[Upload, Info]:
        """Return upload and metrics of a task, once its device state is saved."""
        upload, state, info = work.result
        # The next task names the state to continue from.
        self._states.put(work.task.run, work.task.moment, state)
        return upload, info

    def _key(self, task: Task, digest: bytes) -> Any:
        """Return the random key of the device's computation.

        The key follows from the salt, the task, the settings and the data. The same
        task gets the same answer, any other task draws other samples, and the server
        knows neither. Noise follows from the salt in rehearsals too.
        """
        if self._has_public_key:
            if task.key.shape != (KEY_WORDS,):
                raise RefusedError(
                    "the task's key has another shape than JAX's keys at the site"
                )
            key: Any = device_key(_host_key(task.key), task.moment, self._number)
            return self._public_key(key)
        return self._secret_key(hmac.new(self._salt, digest, hashlib.sha256).digest())

    def _key_for_warm_up(self) -> Any:
        if self._has_public_key:
            return self._public_key(HostKey.of(0))
        return self._secret_key(bytes(hashlib.sha256().digest_size))

    def _public_key(self, key: Any) -> Any:
        """Return a key that the server knows, for the library of the problem."""
        if self._tensors is not None:
            return key
        return jax.random.wrap_key_data(jnp.asarray(key.words))

    def _secret_key(self, code: bytes) -> Any:
        """Return the key of 32 bytes; tensors have keys of 8 bytes, and no noise."""
        if self._tensors is not None:
            return _host_key(np.frombuffer(code, np.uint32)[:KEY_WORDS])
        return secret_key(code)

    def _record_of(self, run: str) -> TaskRecord:
        if run not in self._records:
            directory = None if self._directory is None else self._directory / run
            self._records[run] = TaskRecord(
                self._rules, directory, self._answers, self._account
            )
        return self._records[run]

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
        key: Any,
        factors: Factors | None,
    ) -> DeviceResult:
        """Return upload, state and metrics of the device; `key` is of its library."""
        add_terms = partial(self._terms.add, factors=factors)
        if self._tensors is not None:
            return self._tensors.compute(reference, downlink, private, key, add_terms)
        result: DeviceResult = compute_on_device(
            self._algorithm,
            downlink,
            private,
            # Factors are arrays in the data: other factors compile nothing.
            add_terms(self._stored),
            key,
            problem=self._problem,
            reference=reference,
        )
        return result

    def _last(self, task: Task) -> Moment | None:
        """Return the last exchange in which this device's upload counted."""
        if not self._states.stateful:
            return None
        round_number, exchanges = task.counted
        return Moment(round_number, exchanges - 1) if exchanges else None

    def _form_of(self, reference: PhaseReference) -> PyTree:
        if reference not in self._forms:
            try:
                phase = reference.of(self._algorithm, self._problem)
            except IndexError:
                raise RefusedError(
                    "the algorithm has no phase with the task's index"
                ) from None
            self._forms[reference] = jax.eval_shape(phase.broadcast, self._server)
        return self._forms[reference]


def _host_key(words: UInt32[np.ndarray, "words"]) -> Any:
    return HostKey(words)


def _tensor_work(
    problem: BilevelProblem, algorithm: FederatedAlgorithm, examples: LocalExamples
) -> "TensorWork | None":
    """Return the work of a device whose problem is one of PyTorch; None for JAX.

    Transforms are functions of JAX: their algorithms call PyTorch from there.
    """
    if problem.view is None or transforms_of(algorithm):
        return None
    # Imported here: other sites do not need PyTorch.
    from fedbilevel.torch.device_work import TensorWork

    return TensorWork(problem, algorithm, examples)


def _devices_of_noise(algorithm: FederatedAlgorithm) -> int:
    """Return the number of devices whose noise adds up; 1 without `DeviceNoise`."""
    noise = noise_of(algorithm)
    return int(noise.devices) if isinstance(noise, DeviceNoise) else 1


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
) -> DeviceResult:
    """Return upload, state and metrics of one device after an exchange."""
    phase = reference.of(algorithm, problem)
    return run_device(phase, downlink, private, data, key)
