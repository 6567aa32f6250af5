"""A job that times exchanges of this package and of a bare Collab program, alternating.

Both send one array each way and multiply it at the site. The bare program is a minimal
one: arrays in dictionaries, work in the site's process, no form, no digest, no norm, no
record; it excludes uploads that are not finite.
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
EXAMPLES = fb.LocalExamples(ROWS, ROWS)


class EchoServer(NamedTuple):
    """The state of the server."""

    x: Any
    y: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Echo:
    """An algorithm whose devices multiply x and return it."""

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


def make_site(number: int, size: int) -> Callable[[bytes], bytes]:
    """Return the function that answers messages, in the computation's process."""
    start = np.zeros(size, np.float32), 0.0
    site = Site(number, PROBLEM, Echo(), EXAMPLES, *start, rules=REHEARSAL)
    site.warm_up()
    return site.answer


@jax.jit
def bare_work(x: Any) -> Any:
    return FACTOR * x


class TimedSite:
    """A site that answers both programs."""

    def __init__(self) -> None:
        leave_messages_unprinted()
        self._workers: dict[int, Worker] = {}
        self._size = 0

    @collab.publish
    def begin(self, number: int, size: int) -> bool:
        self.close()
        self._size = size
        self._workers[size] = Worker(make_site, number, size)
        return True

    @collab.publish
    def answer(self, message: bytes) -> bytes | str:
        return self._workers[self._size].ask(message)

    @collab.publish
    def bare(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: np.asarray(bare_work(array)) for name, array in state.items()}

    @collab.publish
    def peak(self) -> int:
        """Return the peak bytes of the site's worker and its child."""
        worker = psutil.Process()
        processes = worker, *worker.children(recursive=True)
        return sum(_peak(process.pid) for process in processes)

    @collab.final
    def close(self) -> None:
        while self._workers:
            self._workers.popitem()[1].close()


class TimedServer:
    """A server that times both programs, or measures the memory of one."""

    def __init__(self, sizes: list[int], repeats: int, programs: list[str]) -> None:
        self.sizes, self.repeats, self.programs = sizes, repeats, programs

    @collab.main
    def time(self) -> None:
        timings = {}
        for size in self.sizes:
            names = sorted(proxy.name for proxy in collab.clients)
            for number, name in enumerate(names if "ours" in self.programs else []):
                list(collab.get_clients([name])(timeout=300).begin(number, size))
            makers = {"ours": ours, "bare": bare}
            programs = {key: makers[key](names, size) for key in self.programs}
            seconds: dict[str, list[float]] = {key: [] for key in programs}
            for repeat in range(-2, self.repeats):
                for name, program in programs.items():
                    began = time.perf_counter()
                    next(program)
                    if repeat >= 0:
                        seconds[name].append(time.perf_counter() - began)
            timings[size] = seconds
        result = {
            "seconds": timings,
            "server": _peak(os.getpid()),
            "site": max(peak for _, peak in collab.clients(timeout=300).peak()),
        }
        directory = Path(collab.workspace.get_run_dir(collab.fl_ctx.get_job_id()))
        (directory / RESULT).write_text(json.dumps(result))


def _peak(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (text for text in status.splitlines() if text.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def ours(names: list[str], size: int) -> Iterator[None]:
    """Yield after each exchange of this package."""
    devices = EnrolledDevices(dict.fromkeys(names, Enrolment.of(EXAMPLES)), EXAMPLES)
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
    for r in rounds:
        assert len(r.participants) == len(names)
        jax.block_until_ready(r.x)
        yield


def bare(names: list[str], size: int) -> Iterator[None]:
    """Yield after each exchange of the bare program."""
    state = {"x": np.ones(size, np.float32)}
    while True:
        replies = collab.clients(timeout=300).bare(state)
        finite = [
            reply
            for _, reply in replies
            if all(np.isfinite(reply[name]).all() for name in state)
        ]
        assert len(finite) == len(names)
        state = {
            name: sum(reply[name] for reply in finite) / len(finite) for name in state
        }
        yield
