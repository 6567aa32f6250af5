"""The server of a federation: an engine that reaches its devices over a transport."""

import time
from collections.abc import Callable, Mapping
from math import inf

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedbilevel.algorithms.protocol import Downlink, Private
from fedbilevel.engines.limits import Limits
from fedbilevel.engines.mean import jit_conclude
from fedbilevel.engines.preparation import canonical
from fedbilevel.engines.protocol import (
    Job,
    Moment,
    Participants,
    PhaseReference,
    Report,
    RunState,
)
from fedbilevel.engines.screening import MOST_NAMED
from fedbilevel.federation.backoff import Absences, closes_after
from fedbilevel.federation.enrolment import EnrolledDevices
from fedbilevel.federation.exchange_log import Exchange
from fedbilevel.federation.messages import LONGEST_NAME, Task, is_name
from fedbilevel.federation.release_log import ReleaseLog
from fedbilevel.federation.replies import Form, ReplyCollector
from fedbilevel.federation.secret_noise import secret_normals
from fedbilevel.federation.site import compute_on_device
from fedbilevel.federation.transport import Transport
from fedbilevel.federation.wire_format import pack
from fedbilevel.plurals import there_are

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
        releases: count of the noised means of this run, for differential privacy; by
            default in memory, for runs that are never resumed.

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
        self._straggler_factor = straggler_factor
        self._absences = Absences()
        self._releases = releases or ReleaseLog()
        self._forms: dict[PhaseReference, Form] = {}

    sample_is_public = True
    """Sites know whether they participate, so a sample does not amplify privacy."""
    sees_uploads = True
    """The server reads single uploads, not only their sum."""

    @property
    def noised_means(self) -> int:
        """The number of noised means of the run, in all of its processes."""
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
        began = time.monotonic()
        names = self._devices.names
        weights = dict(
            zip(participants.devices.tolist(), participants.weights, strict=True)
        )
        chosen = [device for device, weight in weights.items() if weight > 0]
        first = self._absences.without_skipped(chosen, at_least=self._quorum)
        contacted = {names[device]: device for device in first}
        moment = Moment(int(moment[0]), int(moment[1]))
        phase = reference.of(job.algorithm, job.problem)
        downlink = jax.tree.map(np.asarray, phase.broadcast(state.server))
        messages_to = self._messages(job, reference, moment, state, downlink)
        form = self._form_of(job, reference, state)
        collector = ReplyCollector(
            job, reference, form, self._run, moment, contacted, weights, downlink
        )
        bytes_down = 0

        def collect(devices: Mapping[str, int], from_start: bool = False) -> bool:
            nonlocal bytes_down
            messages = messages_to(devices, from_start)
            bytes_down += sum(map(len, messages.values()))
            return self._collect(collector, messages)

        closed = collect(contacted)
        spare = {
            names[device]: device for device in chosen if names[device] not in contacted
        }
        if collector.near < self._quorum and spare:
            # Skipped devices may be back, and without them this exchange fails.
            contacted |= spare
            collector.expect(spare)
            closed = collect(spare)
        lost = set(collector.lost)
        if collector.near < self._quorum and lost:
            # Without a restart of these devices, this exchange would fail every time.
            restarting = {names[device]: device for device in sorted(lost)}
            collector.expect(restarting)
            closed = collect(restarting, from_start=True)
        unheard = collector.close() if closed else []
        collector.settle()
        failures, accepted = collector.missing, set(collector.counted)
        missing = {device: why.reason for device, why in failures.items()}
        counted = [device for device in chosen if device in accepted]
        heard = [device for device in contacted.values() if device not in unheard]
        self._absences.note(heard, missing)
        self._note(
            Exchange(
                int(moment[0]),
                int(moment[1]),
                seconds=time.monotonic() - began,
                counted=[names[device] for device in counted],
                excluded={names[device]: why for device, why in missing.items()},
                skipped=[
                    names[device] for device in chosen if names[device] not in contacted
                ],
                bytes_down=bytes_down,
                bytes_up=collector.bytes_up,
            )
        )
        if len(counted) < self._quorum:
            several = len(job.phases if moment[0] else job.opening) > 1
            where = f"Round {moment[0]}" + f", exchange {moment[1]}" * several
            reasons = {names[device]: why for device, why in sorted(missing.items())}
            raise NoQuorumError(
                f"{where}: {len(counted)} of {self._quorum} required uploads were "
                f"accepted. {_reasons(reasons, job.limits)}"
            )
        mean = collector.mean(state.server)
        # The key of the run is known to every site; noise must be secret.
        releases = phase.release is not None
        if releases:
            self._releases.add(moment)
        server, dispersion = jit_conclude(
            job.algorithm,
            state.server,
            mean,
            job.key,
            Moment(*map(np.int32, moment)),
            np.max(participants.weights),
            secret_normals(mean.upload) if releases else None,
            problem=job.problem,
            reference=reference,
        )
        latest = np.array([moment[0], moment[1] + 1], np.int32)
        # A device without its state would refuse every task.
        restart = np.array(sorted(lost.difference(counted)), int)
        private = jax.tree.map(
            lambda last: last.at[np.array(counted)].set(latest).at[restart].set(0),
            state.private,
        )
        return RunState(server, private), Report(
            participants.devices,
            np.isin(participants.devices, list(contacted.values())),
            (np.isin(participants.devices, counted),),
            mean.info,
            dispersion,
            missing,
        )

    def _collect(
        self, collector: ReplyCollector, messages: Mapping[str, bytes]
    ) -> bool:
        """Collect replies; return whether the exchange closed before its timeout."""
        # Time counts from here, so that it does not include the server's compilation.
        sent = time.monotonic()
        took: list[float] = []
        closes = inf

        def left() -> float:
            return min(self._timeout, closes) - (time.monotonic() - sent)

        for reply in self._transport.exchange(messages, left):
            before = len(collector.missing)
            collector.take(reply)
            if len(collector.missing) < before:
                took.append(time.monotonic() - sent)
            # Uploads beyond the distance limit must not close the exchange early.
            if self._straggler_factor is not None and collector.near >= self._quorum:
                expected = len(took) + len(collector.awaited)
                closes = closes_after(
                    took, expected, self._quorum, self._straggler_factor
                )
            else:
                closes = inf
            if not collector.missing or left() <= 0:
                break
        return left() <= 0 and time.monotonic() - sent < self._timeout

    def _messages(
        self,
        job: Job,
        reference: PhaseReference,
        moment: Moment,
        state: RunState,
        downlink: Downlink,
    ) -> Callable[[Mapping[str, int], bool], Mapping[str, bytes]]:
        """Return a function from device numbers by name to the devices' messages.

        Its second argument is whether the devices restart from their first state. A
        message contains nothing about other devices. Stateless devices all get the
        same message.
        """
        key = np.asarray(jax.random.key_data(job.key))
        task = Task(self._run, reference, moment, key, (0, 0), pack(downlink))
        leaves = jax.tree.leaves(state.private)
        same = None if leaves else task.encode()

        def messages_to(
            devices: Mapping[str, int], from_start: bool
        ) -> Mapping[str, bytes]:
            if same is not None:
                return dict.fromkeys(devices, same)
            counted = np.asarray(leaves[0])[list(devices.values())]
            if from_start:
                counted = np.zeros_like(counted)
            messages = task.encode_for(
                [(int(last), int(count)) for last, count in counted]
            )
            return dict(zip(devices, messages, strict=True))

        return messages_to

    def _form_of(self, job: Job, reference: PhaseReference, state: RunState) -> Form:
        # Shapes are cached per phase: finding them traces the device's computation.
        if reference not in self._forms:
            self._forms[reference] = _form(job, reference, state)
        return self._forms[reference]


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
