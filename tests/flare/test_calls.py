"""Calls end by the server's clock, even those of dead and slow sites.

The same with real processes: `tests/federation/test_bad_sites.py`.
"""

import importlib.util
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fedbilevel.federation import Reply
from fedbilevel.flare import transport
from fedbilevel.flare.site_failures import (
    FAILURES,
    failures_in,
    late_sites,
    note_failure,
)
from fedbilevel.flare.transport import BUSY, DRIPS, MOST_CALLS, Calls
from tests.waiting import HANG, until


class Results:
    """The results of a group: an answer once it is available."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer
        self.failures: dict[str, Exception] = {}

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        yield "", self._answer()


class Facade:
    """A replacement for Collab: each site answers by a function."""

    is_aborted = False

    def __init__(self, sites: dict[str, Callable[[], Any]]) -> None:
        self.clients = [SimpleNamespace(name=name) for name in sites]
        self._sites = sites

    def get_clients(self, names: list[str]) -> Callable[..., Any]:
        (name,) = names
        return lambda **options: SimpleNamespace(
            answer=lambda message: Results(self._sites[name])
        )


@pytest.fixture
def free() -> Iterator[threading.Event]:
    """An event that hanging answers wait for, set at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def exchanged(calls: Calls, to: list[str], seconds: float) -> dict[str, Any]:
    ends = time.monotonic() + seconds
    messages = dict.fromkeys(to, b"")
    replies = transport.Collab(calls, needed=0).exchange(
        messages, lambda: ends - time.monotonic()
    )
    return {item.device: content(item) for item in replies}


def content(reply: Reply) -> bytes | str | None:
    return reply.message if reply.failure is None else reply.failure.reason


def exchanged_until(calls: Calls, to: list[str], site: str) -> dict[str, Any]:
    """Return replies; time is up as soon as a site has answered."""
    result: dict[str, Any] = {}

    def left() -> float:
        return 0.0 if site in result else HANG

    messages = dict.fromkeys(to, b"")
    for reply in transport.Collab(calls, needed=0).exchange(messages, left):
        result[reply.device] = content(reply)
    return result


def test_a_site_that_dies_is_not_waited_for(tmp_path, monkeypatch, free):
    sites = {"east": lambda: b"here", "west": free.wait}
    monkeypatch.setattr(transport, "collab", Facade(sites))
    calls = Calls(tmp_path)
    note = threading.Timer(0.2, note_failure, (tmp_path, "west", "its worker ended"))
    note.start()
    began = time.monotonic()
    assert exchanged(calls, ["east", "west"], seconds=600.0) == {
        "east": b"here",
        "west": "its worker ended",
    }
    # The site is not called again in this job.
    assert exchanged(calls, ["west"], 600.0) == {"west": "its worker ended"}
    assert time.monotonic() - began < 300.0
    assert calls.open_calls("west") == 1


def test_a_site_that_never_ends_its_answers_holds_few_threads(
    tmp_path, monkeypatch, free
):
    sites = {"east": lambda: b"here", "west": free.wait}
    monkeypatch.setattr(transport, "collab", Facade(sites))
    calls = Calls(tmp_path)
    threads = threading.active_count()
    for number in range(20):
        result = exchanged_until(calls, ["east", "west"], "east")
        assert result["east"] == b"here"
        assert result.get("west") == (BUSY.reason if number >= MOST_CALLS else None)
    assert calls.open_calls("west") == MOST_CALLS
    assert threading.active_count() - threads <= MOST_CALLS + 1


def test_a_site_that_drips_is_dropped_for_the_rest_of_the_job(
    tmp_path, monkeypatch, free
):
    monkeypatch.setattr(transport, "collab", Facade({"west": free.wait}))
    monkeypatch.setattr(transport, "GRACE", 0.0)
    monkeypatch.setattr(transport, "DRIPPING", 0.1)
    calls = Calls(tmp_path)
    assert exchanged(calls, ["west"], 0.05) == {}
    time.sleep(0.2)
    assert exchanged(calls, ["west"], 600.0) == {"west": DRIPS}
    assert failures_in(tmp_path) == {"west": DRIPS}
    assert calls.any_is_open
    free.set()
    until(lambda: not calls.any_is_open, pause=0.01)


def test_a_site_that_is_back_in_time_is_called_again(tmp_path, monkeypatch):
    answers = iter([b"first", b"second"])
    monkeypatch.setattr(transport, "collab", Facade({"west": lambda: next(answers)}))
    calls = Calls(tmp_path)
    assert exchanged(calls, ["west"], 600.0) == {"west": b"first"}
    assert exchanged(calls, ["west", "east"], 600.0) == {
        "east": "was not connected when the job began",
        "west": b"second",
    }


def test_an_answer_that_cannot_be_unpacked_is_its_sites_failure(tmp_path, monkeypatch):
    def unpack() -> Any:
        raise TypeError("no such class")

    monkeypatch.setattr(transport, "collab", Facade({"west": unpack}))
    calls = Calls(tmp_path)
    began = time.monotonic()
    result = exchanged(calls, ["west"], 600.0)
    assert result == {"west": "could not be reached: no such class"}
    assert time.monotonic() - began < 300.0
    until(lambda: not calls.any_is_open, pause=0.01)


def test_the_first_reason_of_a_failure_stays(tmp_path):
    note_failure(tmp_path, "west", "its worker process ended")
    note_failure(tmp_path, "west", "something else")
    note_failure(tmp_path, "east", DRIPS)
    assert failures_in(tmp_path) == {"west": "its worker process ended", "east": DRIPS}


def test_other_ends_of_a_job_name_nobody():
    assert late_sites("failed to set up clients ['west']") == ["west"]
    assert late_sites("exception occurred: ['west']") == []


def test_processes_that_note_failures_at_once_lose_none(tmp_path):
    # The server's process and the job's share no lock, so each imports its own module.
    modules = [_anew("fedbilevel.flare.site_failures") for _ in range(4)]

    def note(number: int) -> None:
        for count in range(50):
            modules[number].note_failure(tmp_path, f"site-{number}-{count}", DRIPS)

    threads = [threading.Thread(target=note, args=(n,)) for n in range(len(modules))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failures_in(tmp_path)) == 200


def _anew(name: str) -> Any:
    """Return a new instance of a module, as in another process."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_line_that_is_being_written_hides_no_other(tmp_path):
    note_failure(tmp_path, "west", "its worker ended")
    with (tmp_path / FAILURES).open("a") as file:
        file.write('["east", "its wor')
    assert failures_in(tmp_path) == {"west": "its worker ended"}
