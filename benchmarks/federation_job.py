"""A job that times exchanges: this package's and a bare Collab program's, in turns.

Both move one array each way and multiply it at the site. The bare program is what one
would write by hand: arrays in dictionaries, work in the site's own process, no form, no
digest, no norm, no record; it leaves out uploads that are not finite.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import psutil
from nvflare.collab import collab

import fedbilevel as fb
from fedbilevel.engines.limits import Limits
from fedbilevel.federation import (
    REHEARSAL,
    EnrolledDevices,
    Enrolment,
    Federation,
    Site,
)
from fedbilevel.federation.worker.worker import Worker
from fedbilevel.flare.collab_site import leave_messages_unprinted
from fedbilevel.flare.transport import Calls, Collab

RESULT = "timed.json"
FACTOR = 0.999
ROWS = np.zeros(1, np.float32)
HELD = fb.LocalExamples(ROWS, ROWS)


class EchoServer(NamedTuple):
    """The state of the server."""

    x: Any
    y: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Echo:
    """Sends x to devices, which multiply it and send it back."""

    factor: float = FACTOR

    def init(self, problem: Any, x: Any, y: Any) -> tuple[EchoServer, Any]:
        return EchoServer(x, y), ()

    def opening(self, problem: Any) -> tuple[fb.Phase, ...]:
        return ()

    def phases(self, problem: Any) -> tuple[fb.Phase, ...]:
        return (
            fb.Phase(
                name="multiply",
                steps=1,
                broadcast=lambda server: server.x,
                start=lambda downlink, private, data, key: downlink,
                step=lambda carry, data, key: self.factor * carry,
                finish=lambda carry, downlink, key: (fb.Upload((carry,)), (), {}),
                server=lambda server, mean, key: server._replace(x=mean.update[0]),
            ),
        )


def loss(x: Any, y: Any, batch: Any) -> Any:
    return y**2 + 0 * jnp.sum(x)


PROBLEM = fb.BilevelProblem(loss, loss)


def made(number: int, size: int) -> Callable[[bytes], bytes]:
    """Return what answers at a site, in the computation's process."""
    start = np.zeros(size, np.float32), 0.0
    site = Site(number, PROBLEM, Echo(), HELD, *start, rules=REHEARSAL)
    site.warm_up()
    return site.answer


@jax.jit
def bare_work(x: Any) -> Any:
    return FACTOR * x


class TimedSite:
    """Answers both programs."""

    def __init__(self) -> None:
        leave_messages_unprinted()
        self._workers: dict[int, Worker] = {}
        self._size = 0

    @collab.publish
    def begin(self, number: int, size: int) -> bool:
        self.close()
        self._size = size
        self._workers[size] = Worker(made, number, size)
        return True

    @collab.publish
    def answer(self, message: bytes) -> bytes | str:
        return self._workers[self._size].ask(message)

    @collab.publish
    def bare(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: np.asarray(bare_work(one)) for name, one in state.items()}

    @collab.publish
    def peak(self) -> int:
        """Return the most bytes that the site's worker and its child have held."""
        here = psutil.Process()
        return sum(_peak(one.pid) for one in (here, *here.children(recursive=True)))

    @collab.final
    def close(self) -> None:
        while self._workers:
            self._workers.popitem()[1].close()


class TimedServer:
    """Times both programs, or holds one to its memory."""

    def __init__(self, sizes: list[int], repeats: int, programs: list[str]) -> None:
        self.sizes, self.repeats, self.programs = sizes, repeats, programs

    @collab.main
    def time(self) -> None:
        found = {}
        for size in self.sizes:
            names = sorted(proxy.name for proxy in collab.clients)
            for number, name in enumerate(names if "ours" in self.programs else []):
                list(collab.get_clients([name])(timeout=300).begin(number, size))
            makers = {"ours": ours, "bare": bare}
            programs = {one: makers[one](names, size) for one in self.programs}
            seconds: dict[str, list[float]] = {one: [] for one in programs}
            for repeat in range(-2, self.repeats):
                for name, program in programs.items():
                    began = time.perf_counter()
                    next(program)
                    if repeat >= 0:
                        seconds[name].append(time.perf_counter() - began)
            found[size] = seconds
        told = {
            "seconds": found,
            "server": _peak(os.getpid()),
            "site": max(peak for _, peak in collab.clients(timeout=300).peak()),
        }
        directory = Path(collab.workspace.get_run_dir(collab.fl_ctx.get_job_id()))
        (directory / RESULT).write_text(json.dumps(told))


def _peak(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (one for one in status.splitlines() if one.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def ours(names: list[str], size: int) -> Iterator[None]:
    """Yield after each exchange of this package."""
    devices = EnrolledDevices(dict.fromkeys(names, Enrolment.of(HELD)), HELD)
    calls = Calls(Path(collab.workspace.get_run_dir(collab.fl_ctx.get_job_id())))
    engine = Federation(Collab(calls, needed=0), devices, run="timed", timeout=300.0)
    x = np.ones(size, np.float32)
    rounds = fb.run(
        PROBLEM,
        Echo(),
        devices,
        x,
        0.0,
        rounds=10**6,
        engine=engine,
        limits=Limits(norm=1e9),
    )
    for done in rounds:
        assert len(done.participants) == len(names)
        jax.block_until_ready(done.x)
        yield


def bare(names: list[str], size: int) -> Iterator[None]:
    """Yield after each exchange of the program by hand."""
    state = {"x": np.ones(size, np.float32)}
    while True:
        replies = collab.clients(timeout=300).bare(state)
        good = [
            reply
            for _, reply in replies
            if all(np.isfinite(reply[name]).all() for name in state)
        ]
        assert len(good) == len(names)
        state = {name: sum(one[name] for one in good) / len(good) for name in state}
        yield
