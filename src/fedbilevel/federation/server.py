"""The server of a federation: an engine whose devices are elsewhere."""

import time
from collections.abc import Callable, Mapping
from math import inf

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedbilevel.algorithms.protocol import Downlink, Private
from fedbilevel.engines.limits import Limits
from fedbilevel.engines.mean import concluded
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
from fedbilevel.federation.replies import Form, ReplyCollector
from fedbilevel.federation.site import compute_on_device
from fedbilevel.federation.transport import Transport
from fedbilevel.federation.wire_format import packed

ASKINGS = 3
"""How often an exchange waits for replies at most: for those who are asked first; and
if it lacks a quorum, for those who had missed some exchanges, and for those who have
lost what they kept and begin afresh."""


class NoQuorumError(RuntimeError):
    """Too few devices answered an exchange; the message says what became of the rest.

    Example:
        >>> str(NoQuorumError("round 3: 1 of 4 devices answered"))
        'round 3: 1 of 4 devices answered'
    """


class Federation:
    """Carries out exchanges with devices that a transport reaches.

    Every reply is held to its form, to finite numbers and to the norm limit before it
    touches the mean, which is taken as replies arrive. Weights are the server's.

    Args:
        transport: reaches the devices.
        devices: who is enrolled.
        run: the name of the run, of letters and digits; the same when it is resumed.
        timeout: seconds that an exchange waits for replies; as many again if it lacks a
            quorum and devices are left that were not asked, since they had missed some,
            and again if devices have to begin afresh.
        quorum: how many uploads an exchange needs at least. Devices that have lost
            their private state begin afresh in the next exchange, or in the same one if
            it lacks a quorum without them.
        straggler_factor: how many times as long as half of the devices took the others are
            waited for, once these and a quorum have answered; none to wait for all
            until the timeout.
        note: is told of every exchange.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedbilevel import BilevelProblem, FedBiO, LocalExamples, run
        >>> from fedbilevel.federation import REHEARSAL, Site
        >>> from fedbilevel.federation.in_process import InProcess
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> what = BilevelProblem(loss, loss), FedBiO(0.1)
        >>> held = LocalExamples(np.ones(4, np.float32), np.ones(6, np.float32))
        >>> sites = {
        ...     name: Site(number, *what, held, 3.0, 0.0, rules=REHEARSAL)
        ...     for number, name in enumerate(["a", "b"])
        ... }
        >>> enrolled = EnrolledDevices(
        ...     {name: site.enrolment for name, site in sites.items()}, form=held
        ... )
        >>> federation = Federation(InProcess(sites), enrolled, run="a", timeout=600.0)
        >>> *_, last = run(*what, enrolled, 3.0, 0.0, rounds=2, engine=federation)
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
    ) -> None:
        if not 1 <= quorum <= devices.device_count:
            raise ValueError(
                f"quorum is {quorum}, but {devices.device_count} devices are enrolled; "
                "give a number between."
            )
        if not is_name(run):
            raise ValueError(
                f"a run cannot be called {run!r}; give 1 to {LONGEST_NAME} of the "
                "letters a to z, A to Z and of digits."
            )
        if not timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, but it is {timeout}.")
        if straggler_factor is not None and not straggler_factor >= 1:
            raise ValueError(
                f"straggler_factor must be at least 1, but it is {straggler_factor}."
            )
        self._transport, self._devices = transport, devices
        self._run = run
        self._timeout, self._quorum, self._note = timeout, quorum, note
        self._straggler_factor = straggler_factor
        self._absences = Absences()
        self._forms: dict[PhaseReference, Form] = {}

    def example_device(self, device_count: int) -> int:
        """Return the first: its data are zeros of the right form."""
        return 0

    def private_states(self, private: Private, device_count: int) -> PyTree:
        """Return the last exchange that each device has counted in: none so far.

        What a device keeps stays with it; the server says which state to go on from:
        by its round, and how many of the round's exchanges were over then.
        """
        if not jax.tree.leaves(private):
            return private
        return jnp.zeros((device_count, 2), jnp.int32)

    def begin(self, job: Job, state: RunState) -> tuple[Job, RunState]:
        """Return both as they are."""
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
        to_ask = self._absences.without_skipped(chosen, at_least=self._quorum)
        asked = {names[device]: device for device in to_ask}
        moment = Moment(int(moment[0]), int(moment[1]))
        phase = reference.of(job.algorithm, job.problem)
        downlink = jax.tree.map(np.asarray, phase.broadcast(state.server))
        messages_to = self._messages(job, reference, moment, state, downlink)
        form = self._form_of(job, reference, state)
        gathering = ReplyCollector(
            job, reference, form, self._run, moment, asked, weights, downlink
        )
        bytes_down = 0

        def gather(devices: Mapping[str, int], afresh: bool = False) -> bool:
            nonlocal bytes_down
            messages = messages_to(devices, afresh)
            bytes_down += sum(map(len, messages.values()))
            return self._gather(gathering, messages)

        closed = gather(asked)
        spare = {names[one]: one for one in chosen if names[one] not in asked}
        if gathering.near < self._quorum and spare:
            # Who missed several exchanges may be back, and without them this one fails.
            asked |= spare
            gathering.expect(spare)
            closed = gather(spare)
        lost = set(gathering.lost)
        if gathering.near < self._quorum and lost:
            # Otherwise this exchange would fail, and whoever tries it again.
            again = {names[device]: device for device in sorted(lost)}
            gathering.expect(again)
            closed = gather(again, afresh=True)
        unheard = gathering.close() if closed else []
        gathering.settle()
        failures, accepted = gathering.missing, set(gathering.counted)
        missing = {device: why.reason for device, why in failures.items()}
        counted = [device for device in chosen if device in accepted]
        heard = [device for device in asked.values() if device not in unheard]
        self._absences.note(heard, missing)
        self._note(
            Exchange(
                int(moment[0]),
                int(moment[1]),
                seconds=time.monotonic() - began,
                counted=[names[device] for device in counted],
                excluded={names[device]: why for device, why in missing.items()},
                skipped=[names[one] for one in chosen if names[one] not in asked],
                bytes_down=bytes_down,
                bytes_up=gathering.bytes_up,
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
        mean = gathering.mean.value
        server, dispersion = concluded(
            job.algorithm,
            state.server,
            mean,
            job.key,
            Moment(*map(np.int32, moment)),
            problem=job.problem,
            reference=reference,
        )
        now = np.array([moment[0], moment[1] + 1], np.int32)
        # A device without a state to go on from would refuse for ever.
        afresh = np.array(sorted(lost.difference(counted)), int)
        private = jax.tree.map(
            lambda last: last.at[np.array(counted)].set(now).at[afresh].set(0),
            state.private,
        )
        return RunState(server, private), Report(
            participants.devices,
            np.isin(participants.devices, list(asked.values())),
            (np.isin(participants.devices, counted),),
            mean.info,
            dispersion,
            missing,
        )

    def _gather(self, gathering: ReplyCollector, messages: Mapping[str, bytes]) -> bool:
        """Take replies; return whether it ended early, as enough had answered."""
        # From here: what the server must find out and compile first is not their delay.
        sent = time.monotonic()
        took: list[float] = []
        closes = inf

        def left() -> float:
            return min(self._timeout, closes) - (time.monotonic() - sent)

        for reply in self._transport.exchange(messages, left):
            before = len(gathering.missing)
            gathering.take(reply)
            if len(gathering.missing) < before:
                took.append(time.monotonic() - sent)
            # Not early by uploads that go too far and will not count.
            if self._straggler_factor is not None and gathering.near >= self._quorum:
                expected = len(took) + len(gathering.awaited)
                closes = closes_after(
                    took, expected, self._quorum, self._straggler_factor
                )
            else:
                closes = inf
            if not gathering.missing or left() <= 0:
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
        """Return what makes messages to devices, given their numbers by name.

        It is also given whether they begin afresh, and do not go on from what they
        kept. Of the others' history a device learns nothing. Where devices keep nothing
        all get one and the same message.
        """
        key = np.asarray(jax.random.key_data(job.key))
        task = Task(self._run, reference, moment, key, (0, 0), packed(downlink))
        leaves = jax.tree.leaves(state.private)
        same = None if leaves else task.encode()

        def messages_to(
            devices: Mapping[str, int], afresh: bool
        ) -> Mapping[str, bytes]:
            if same is not None:
                return dict.fromkeys(devices, same)
            counted = np.asarray(leaves[0])[list(devices.values())]
            if afresh:
                counted = np.zeros_like(counted)
            messages = task.encode_for([(int(one), int(two)) for one, two in counted])
            return dict(zip(devices, messages, strict=True))

        return messages_to

    def _form_of(self, job: Job, reference: PhaseReference, state: RunState) -> Form:
        # A phase always sends the same; finding out what traces all of its work.
        if reference not in self._forms:
            self._forms[reference] = _form(job, reference, state)
        return self._forms[reference]


def _form(job: Job, reference: PhaseReference, state: RunState) -> Form:
    """Return shapes and types of what devices send."""
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
    received = jax.eval_shape(phase.received, upload, downlink)
    return Form(upload, info, received)


def _reasons(reasons: Mapping[str, str], limits: Limits) -> str:
    """Return why sites' uploads were not accepted, and what to do about it."""
    if not reasons:
        return "No more devices were chosen: let more of them participate."
    bad_numbers = limits.broken_alone
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
