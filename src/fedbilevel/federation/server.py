"""The server of a federation: an engine that reaches its devices over a transport."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedbilevel.algorithms.protocol import (
    FederatedAlgorithm,
    Private,
    Server,
)
from fedbilevel.data.weights import factors_of
from fedbilevel.engines.inputs import Inputs, PhaseProgram
from fedbilevel.engines.inspection import MOST_NAMED
from fedbilevel.engines.limits import Limits
from fedbilevel.engines.mean import WeightedMean, jit_conclude
from fedbilevel.engines.preparation import canonical
from fedbilevel.engines.protocol import (
    Job,
    Moment,
    Participants,
    PhaseReference,
    Report,
    RunState,
)
from fedbilevel.engines.whole_shares import whole_shares
from fedbilevel.federation.backoff import Absences
from fedbilevel.federation.collection import (
    Candidates,
    Collected,
    collect_sum,
    collect_uploads,
)
from fedbilevel.federation.enrolment import EnrolledDevices
from fedbilevel.federation.exchange_log import Exchange
from fedbilevel.federation.messages import LONGEST_NAME, Task, is_name
from fedbilevel.federation.release_log import ReleaseLog
from fedbilevel.federation.replies import ExchangeInputs, Form, ReplyCollector
from fedbilevel.federation.reply_window import ReplyWindow
from fedbilevel.federation.secret_noise import secret_normals
from fedbilevel.federation.site import compute_on_device
from fedbilevel.federation.survivor_log import SurvivorLog
from fedbilevel.federation.transport import Transport
from fedbilevel.federation.wire_format import pack
from fedbilevel.plurals import there_are
from fedbilevel.transforms.example_noise import ExampleNoise
from fedbilevel.transforms.noise import DeviceNoise
from fedbilevel.transforms.rules import LEVELS, check_rules
from fedbilevel.transforms.transformed import (
    fixed_point_of,
    noise_of,
    transforms_of,
)

if TYPE_CHECKING:
    from cryptography import x509

    from fedbilevel.federation.secure_exchange import SecureExchange

MAX_WAITS = 3
"""Maximum number of timeouts that an exchange waits: for the devices contacted first;
without a quorum, for the skipped devices, and for the devices that lost their state."""


class NoQuorumError(RuntimeError):
    """Fewer uploads than the quorum were accepted; the message lists the reasons."""


class Federation:
    """An engine that runs exchanges with devices over a transport.

    A reply enters the streaming mean only if shapes and types are right, all numbers
    are finite and the norm limit holds. The server sets the weights.

    Args:
        transport: connection to the devices.
        devices: enrolled devices.
        run: name of the run, of letters and digits; the same when it is resumed.
        timeout: seconds that an exchange waits for replies. Without a quorum it waits
            as long again for devices skipped at first, and once more for devices that
            restart from their first state.
        quorum: minimum number of accepted uploads. A device that has lost its state
            restarts from its first state in the next exchange, or in the same exchange
            if the quorum needs it.
        straggler_factor: multiple of the time in which half of the devices replied,
            after which an exchange with a quorum closes; None to wait for all devices
            until the timeout.
        note: function called with the record of every exchange.
        releases: count of the exchanges with noise of this run, for differential
            privacy; by default in memory, for runs that are never resumed.
        secure_sums: certificate of the sites' root authority (`load_root`), for
            exchanges in which the server learns only the sum of the uploads; None for
            plain exchanges. The algorithm needs `FixedPoint`, and the sites their
            certificates.
        survivors: survivors of the secure sums of this run; by default in memory.
        clock: function that returns the seconds of a monotonic clock.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedbilevel import BilevelProblem, FedBiO, LocalExamples, run
        >>> from fedbilevel.federation import REHEARSAL, Site
        >>> from fedbilevel.federation.in_process import InProcess
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> setting = BilevelProblem(loss, loss), FedBiO(0.1)
        >>> held = LocalExamples(np.ones(4, np.float32), np.ones(6, np.float32))
        >>> sites = {
        ...     name: Site(number, *setting, held, 3.0, 0.0, rules=REHEARSAL)
        ...     for number, name in enumerate(["a", "b"])
        ... }
        >>> enrolled = EnrolledDevices(
        ...     {name: site.enrolment for name, site in sites.items()}, form=held
        ... )
        >>> federation = Federation(InProcess(sites), enrolled, run="a", timeout=600.0)
        >>> *_, last = run(*setting, enrolled, 3.0, 0.0, rounds=2, engine=federation)
        >>> last.participants
        array([0, 1])
    """

    def __init__(
        self,
        transport: Transport,
        devices: EnrolledDevices,
        *,
        run: str,
        timeout: float,
        quorum: int = 1,
        straggler_factor: float | None = None,
        note: Callable[[Exchange], None] = lambda exchange: None,
        releases: ReleaseLog | None = None,
        secure_sums: "x509.Certificate | None" = None,
        survivors: SurvivorLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 1 <= quorum <= devices.device_count:
            raise ValueError(
                f"quorum is {quorum}, but {there_are(devices.device_count, 'device')}; "
                f"give an integer from 1 to {devices.device_count}."
            )
        if not is_name(run):
            raise ValueError(
                f"run is {run!r}, but a run name has 1 to {LONGEST_NAME} of the "
                "letters a to z, A to Z and of digits; give another name."
            )
        if not timeout > 0:
            raise ValueError(f"timeout is {timeout}; give a number of seconds above 0.")
        if straggler_factor is not None and not straggler_factor >= 1:
            raise ValueError(
                f"straggler_factor is {straggler_factor}; give a number of at least 1."
            )
        self._transport, self._devices = transport, devices
        self._run = run
        self._timeout, self._quorum, self._note = timeout, quorum, note
        self._straggler_factor, self._clock = straggler_factor, clock
        self._absences = Absences()
        self._releases = releases or ReleaseLog()
        self._root = secure_sums
        self._survivors = survivors or SurvivorLog()
        self._forms: dict[PhaseReference, Form] = {}

    key_is_secret = False
    """Sites receive the key, which noise does not use, and know if they participate."""

    @property
    def sees_uploads(self) -> bool:
        """True if the server reads single uploads, not only their sum."""
        return self._root is None

    @property
    def noised_means(self) -> int:
        """The number of exchanges with noise of the run, in all of its processes."""
        return self._releases.count

    def example_device(self, device_count: int) -> int:
        """Return 0: the data of every device are zeros of the right shapes here."""
        return 0

    def private_states(self, private: Private, device_count: int) -> PyTree:
        """Return the last exchange in which each device's upload counted: none so far.

        Device states stay at the devices. The server names the state to continue from
        by its round and the number of that round's exchanges until then.
        """
        if not jax.tree.leaves(private):
            return private
        return jnp.zeros((device_count, 2), jnp.int32)

    def begin(self, job: Job, state: RunState) -> tuple[Job, RunState]:
        """Return job and state unchanged."""
        return job, state

    def exchange(
        self,
        job: Job,
        reference: PhaseReference,
        moment: Moment,
        state: RunState,
        participants: Participants,
    ) -> tuple[RunState, Report]:
        """Return the state after the exchange, and its report."""
        began = self._clock()
        moment = Moment(int(moment[0]), int(moment[1]))
        weights = dict(
            zip(participants.devices.tolist(), participants.weights, strict=True)
        )
        phase = reference.of(job.algorithm, job.problem)
        inputs = ExchangeInputs(job, reference, phase, moment, state, weights)
        collected = self._collect(inputs)
        self._record(inputs, collected, self._clock() - began)
        if collected.refusal:
            raise NoQuorumError(self._no_quorum(inputs, collected))
        mean = collected.mean()
        server, dispersion = self._conclude(inputs, mean)
        counted = [device for device in inputs.chosen if device in collected.counted]
        latest = np.array([moment[0], moment[1] + 1], np.int32)
        # A device without its state would refuse every task.
        restart = np.array(sorted(set(collected.lost).difference(counted)), int)
        private = jax.tree.map(
            lambda last: last.at[np.array(counted)].set(latest).at[restart].set(0),
            state.private,
        )
        return RunState(server, private), Report(
            participants.devices,
            np.isin(participants.devices, list(collected.contacted.values())),
            (np.isin(participants.devices, counted),),
            mean.info,
            dispersion,
            collected.missing,
        )

    def _collect(self, inputs: ExchangeInputs) -> Collected:
        """Return the uploads of the participants, one by one or as a sum."""
        job, reference, moment = inputs.job, inputs.reference, inputs.moment
        if self._root is not None:
            names = [("secure_sums", "secure_sums"), *transforms_of(job.algorithm)]
            if factors_of(job.devices) is not None:
                names.append(LEVELS)
            check_rules(names)
        downlink = jax.tree.map(np.asarray, inputs.phase.broadcast(inputs.state.server))
        key = np.asarray(jax.random.key_data(job.key))
        task = Task(self._run, reference, moment, key, (0, 0), pack(downlink))
        messages_to = _messages(inputs, task)
        form = self._form_of(job, reference, inputs.state)
        if isinstance(noise_of(job.algorithm), ExampleNoise):
            # Sites answer with noise whether or not the exchange succeeds.
            self._releases.add(moment)
        if self._root is not None:
            digest = hashlib.blake2b(task.encode(), digest_size=32).hexdigest()
            survivors = self._survivors.of(digest)
            chosen = [
                device
                for device in inputs.chosen
                if survivors is None or self._devices.names[device] in survivors
            ]
            return collect_sum(
                self._secure_exchange(inputs, form, digest),
                self._candidates(chosen),
                messages_to,
                inputs.weights,
                largest_level_of(job.algorithm),
            )
        candidates = self._candidates(inputs.chosen)
        collector = ReplyCollector(
            inputs, self._run, form, candidates.contacted, downlink
        )
        return collect_uploads(
            collector,
            lambda messages: self._take_replies(collector, messages),
            candidates,
            messages_to,
            self._quorum,
            inputs.state.server,
        )

    def _candidates(self, chosen: Sequence[int]) -> Candidates:
        names = self._devices.names
        first = self._absences.without_skipped(chosen, at_least=self._quorum)
        return Candidates(
            {names[device]: device for device in first},
            {names[device]: device for device in chosen if device not in first},
        )

    def _record(
        self, inputs: ExchangeInputs, collected: Collected, seconds: float
    ) -> None:
        """Note absent devices, and the record of the exchange."""
        names, chosen = self._devices.names, inputs.chosen
        missing, contacted = collected.missing, collected.contacted
        self._absences.note(collected.heard, missing)
        self._note(
            Exchange(
                int(inputs.moment[0]),
                int(inputs.moment[1]),
                seconds=seconds,
                counted=[
                    names[device] for device in chosen if device in collected.counted
                ],
                excluded={names[device]: why for device, why in missing.items()},
                skipped=[
                    names[device] for device in chosen if names[device] not in contacted
                ],
                bytes_down=collected.bytes_down,
                bytes_up=collected.bytes_up,
            )
        )

    def _no_quorum(self, inputs: ExchangeInputs, collected: Collected) -> str:
        job, moment, names = inputs.job, inputs.moment, self._devices.names
        several = len(job.phases if moment[0] else job.opening) > 1
        where = f"Round {moment[0]}" + f", exchange {moment[1]}" * several
        missing = sorted(collected.missing.items())
        reasons = {names[device]: why for device, why in missing}
        return f"{where}: {collected.refusal}. {_reasons(reasons, job.limits)}"

    def _conclude(
        self, inputs: ExchangeInputs, mean: WeightedMean
    ) -> tuple[Server, PyTree]:
        """Return the next state of the server and the dispersion."""
        is_noised = inputs.phase.aggregation.release is not None
        if self._root is None:
            # A sum is counted before its masks are removed.
            self._count_release(inputs)
        job = inputs.job
        concluded: tuple[Server, PyTree] = jit_conclude(
            Inputs.of(job, inputs.state.server, inputs.moment),
            mean,
            np.max(list(inputs.weights.values())),
            # The key of the run is known to every site; noise must be secret.
            secret_normals(mean.upload) if is_noised else None,
            program=PhaseProgram(job.problem, inputs.reference),
        )
        return concluded

    def _count_release(self, inputs: ExchangeInputs) -> None:
        if inputs.phase.aggregation.release is not None:
            self._releases.add(inputs.moment)

    def _secure_exchange(
        self, inputs: ExchangeInputs, form: Form, task: str
    ) -> "SecureExchange":
        # Imported here: plain exchanges do not need the packages of the extra.
        from fedbilevel.federation.secure_exchange import (
            Before,
            Place,
            Schedule,
            SecureExchange,
        )

        assert self._root is not None, "called with secure sums only"
        noise = noise_of(inputs.job.algorithm)
        fewest = int(noise.devices) if isinstance(noise, DeviceNoise) else 1
        names = [self._devices.names[device] for device in inputs.chosen]
        weights = [inputs.weights[device] for device in inputs.chosen]
        shares = whole_shares(np, np.array(weights, np.float64))
        return SecureExchange(
            self._transport,
            self._root,
            Place(self._run, inputs.moment),
            dict(zip(names, shares.tolist(), strict=True)),
            form,
            Schedule(
                self._timeout,
                # Sites sign a repeated sum over all of its first survivors only.
                None if self._survivors.of(task) else self._straggler_factor,
                max(self._quorum, fewest),
                self._clock,
            ),
            Before(
                lambda names: self._survivors.add(inputs.moment, task, names),
                # A sum is a release even if the server stops now, or rejects it.
                lambda: self._count_release(inputs),
            ),
        )

    def _take_replies(
        self, collector: ReplyCollector, messages: Mapping[str, bytes]
    ) -> bool:
        """Collect replies; return whether the exchange closed before its timeout."""
        # Time counts from here, so that it does not include the server's compilation.
        window = ReplyWindow(self._timeout, self._straggler_factor, self._clock)
        for reply in self._transport.exchange(messages, window.left):
            before = len(collector.missing)
            collector.take(reply)
            if len(collector.missing) < before:
                window.accept()
            window.update(
                len(collector.awaited),
                self._quorum,
                # Uploads beyond the distance limit must not close the exchange early.
                is_enough=collector.near >= self._quorum,
            )
            if not collector.missing or window.left() <= 0:
                break
        return window.closed_early

    def _form_of(self, job: Job, reference: PhaseReference, state: RunState) -> Form:
        # Shapes are cached per phase: finding them traces the device's computation.
        if reference not in self._forms:
            self._forms[reference] = _form(job, reference, state)
        return self._forms[reference]


def largest_level_of(algorithm: FederatedAlgorithm) -> int:
    """Return the largest level of the fixed-point numbers of an algorithm.

    Example:
        >>> from fedbilevel import Clip, FedBiO, FixedPoint, with_transforms
        >>> largest_level_of(with_transforms(FedBiO(0.1), Clip(1.0), FixedPoint(8)))
        127
    """
    fixed = fixed_point_of(algorithm)
    assert fixed is not None, "its phases are summed"
    return fixed.largest_level


def _messages(
    inputs: ExchangeInputs, task: Task
) -> Callable[[Mapping[str, int], bool], Mapping[str, bytes]]:
    """Return a function from device numbers by name to the devices' messages.

    Its second argument is whether the devices restart from their first state. A
    message contains nothing about other devices. Stateless devices all get the
    same message if all have the same weight in both losses.
    """
    leaves = jax.tree.leaves(inputs.state.private)
    factors = factors_of(inputs.job.devices)
    same = task.encode() if not leaves and factors is None else None

    def messages_to(
        devices: Mapping[str, int], from_start: bool
    ) -> Mapping[str, bytes]:
        if same is not None:
            return dict.fromkeys(devices, same)
        numbers = list(devices.values())
        counted = np.zeros((len(numbers), 2), np.int32)
        if leaves and not from_start:
            counted = np.asarray(leaves[0])[numbers]
        messages = task.encode_for(
            [(int(last), int(count)) for last, count in counted],
            None if factors is None else list(map(tuple, factors[numbers])),
        )
        return dict(zip(devices, messages, strict=True))

    return messages_to


def _form(job: Job, reference: PhaseReference, state: RunState) -> Form:
    """Return shapes and types of the devices' uploads and metrics."""
    phase = reference.of(job.algorithm, job.problem)
    x, y = state.server.x, state.server.y
    _, private = canonical(job.algorithm.init(job.problem, x, y))
    downlink = jax.eval_shape(phase.broadcast, state.server)
    upload, _, info = compute_on_device.eval_shape(
        job.algorithm,
        downlink,
        private,
        job.form,
        job.key,
        problem=job.problem,
        reference=reference,
    )
    received = jax.eval_shape(phase.decode_upload, upload, downlink)
    return Form(upload, info, received)


def _reasons(reasons: Mapping[str, str], limits: Limits) -> str:
    """Return the reasons for rejected uploads, and what to do."""
    if not reasons:
        return "No other device was sampled; let more devices participate."
    bad_numbers = limits.single_violation
    named = [f'Site "{name}": {why}.' for name, why in reasons.items()][:MOST_NAMED]
    more = len(reasons) - MOST_NAMED
    cures = []
    if bad_numbers in reasons.values():
        raised = "raise the norm limit or " if limits.norm else ""
        cures = [f"{raised}lower the learning rate"]
    if set(reasons.values()) - {bad_numbers}:
        cures += ["check the other sites" if cures else "check these sites"]
    cure = "; ".join(cures)
    return " ".join(
        [*named, *[f"And {more} more."] * (more > 0), f"{cure[0].upper()}{cure[1:]}."]
    )
