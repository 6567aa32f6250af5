"""A restarted federation continues as if it had never stopped."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fedbilevel import Checkpoints, Round, Run
from fedbilevel.engines.checkpoints.digests import verified_notes
from fedbilevel.engines.protocol import Moment
from fedbilevel.federation import (
    Exchange,
    Federation,
    RefusedError,
    Reply,
    Site,
)
from fedbilevel.federation.device_state import MAX_STATES, DeviceStates
from tests.algorithms.table import at_night
from tests.engines.federation import START
from tests.federation import full_disk
from tests.federation.alike import (
    NAMES,
    PRESENT,
    PROBLEM,
    WEIGHTS,
    ByHand,
    algorithm,
    held,
    sites,
)
from tests.federation.no_enrolment import NoEnrolment
from tests.federation.sites import enrolled, federation
from tests.waiting import HANG

ROUNDS = 6
PRIVATE = "FedBiO, private lower level"
AMONG = [PRIVATE, "two exchanges, private state", *at_night("LocalBSGM")]
EVERYONE = tuple(NAMES.index(name) for name in PRESENT)


def arguments(
    name: str, directory: Path, rounds: int = ROUNDS, **settings: Any
) -> dict[str, Any]:
    """Return a run of a new server and new sites, with the files on disk only."""
    among = sites(name, directory / "kept")
    return {
        "problem": PROBLEM,
        "algorithm": algorithm(name),
        "devices": enrolled(among),
        "x": START[0],
        "y": START[1],
        "rounds": rounds,
        "weights": WEIGHTS,
        "engine": federation(among, run="durable", **settings),
    }


def checkpoints(directory: Path) -> Checkpoints:
    return Checkpoints(directory / "checkpoints", every=2)


def started(name: str, directory: Path, **settings: Any) -> Iterator[Round]:
    return Run(**arguments(name, directory, **settings)).start(checkpoints(directory))


def resumed(name: str, directory: Path, **settings: Any) -> Iterator[Round]:
    return Run(**arguments(name, directory, **settings)).resume(checkpoints(directory))


def by_hand(name: str, missing: Collection[int] = ()) -> Any:
    """Return the server's state after all rounds, with device 2 missing in some."""
    expected = ByHand(name)
    for number in range(ROUNDS):
        counted = [item for item in EVERYONE if number not in missing or item != 2]
        for place in range(len(expected.plan(number))):
            expected.exchange(number, place, counted)
    return expected.server


def assert_close(result: Any, wanted: Any) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-10),
        result,
        wanted,
    )


def leave(name: str, directory: Path, stop: int) -> None:
    for result in started(name, directory):
        if result.number + 1 == stop:
            return


@pytest.mark.slow
@pytest.mark.parametrize("name", AMONG)
@pytest.mark.parametrize("stop", [3, *at_night(2)])
def test_everything_is_restarted_and_ends_in_the_same_state(name, stop, tmp_path):
    leave(name, tmp_path, stop)
    again = list(resumed(name, tmp_path))
    assert [result.number for result in again] == list(range(stop, ROUNDS))
    assert_close(again[-1].server, by_hand(name))


@pytest.mark.nightly
@pytest.mark.parametrize("name", AMONG)
def test_the_server_goes_back_behind_what_devices_have_done(name, tmp_path):
    *_, last = started(name, tmp_path, rounds=5)
    assert last.number == 4
    for newer in ("round_5", "round_4"):
        shutil.rmtree(tmp_path / "checkpoints" / newer)
    again = list(resumed(name, tmp_path))
    assert [result.number for result in again] == [2, 3, 4, 5]
    assert_close(again[-1].server, by_hand(name))


def lose(file: Path) -> None:
    shutil.rmtree(file.parent)


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def obstruct(file: Path) -> None:
    """Make all later writes of states fail."""
    for number in range(3, ROUNDS):
        (file.with_name(f"after-{number}-0") / "something").mkdir(parents=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("happens", "text"),
    [
        (lose, "the device state after round 2, exchange 0 is lost; the device"),
        (damage, "the device state after round 2, exchange 0 is damaged; the"),
    ],
)
def test_a_site_that_has_lost_its_state_says_so_once_and_begins_afresh(
    happens, text, tmp_path
):
    leave(PRIVATE, tmp_path, 3)
    happens(tmp_path / "kept" / "site-2" / "durable" / "after-2-0")
    records: list[Exchange] = []
    list(resumed(PRIVATE, tmp_path, note=records.append))
    first, *later = records
    assert text in first.excluded["site-2"]
    assert str(tmp_path) not in first.excluded["site-2"]
    assert later
    assert all(list(record.counted) == PRESENT for record in later)


@pytest.mark.slow
def test_a_site_without_which_there_is_no_quorum_begins_afresh_at_once(tmp_path):
    leave(PRIVATE, tmp_path, 3)
    lose(tmp_path / "kept" / "site-2" / "durable" / "after-2-0")
    records: list[Exchange] = []
    *_, last = resumed(PRIVATE, tmp_path, quorum=len(PRESENT), note=records.append)
    assert all(list(record.counted) == PRESENT for record in records)
    expected = ByHand(PRIVATE)
    for number in range(ROUNDS):
        if number == 3:
            expected.lose(2)
        for place in range(len(expected.plan(number))):
            expected.exchange(number, place, EVERYONE)
    assert_close(last.server, expected.server)


@pytest.mark.slow
def test_a_site_that_cannot_write_its_state_is_excluded(tmp_path):
    text = "the device state cannot be written: "
    leave(PRIVATE, tmp_path, 3)
    obstruct(tmp_path / "kept" / "site-2" / "durable" / "after-2-0")
    records: list[Exchange] = []
    *_, last = resumed(PRIVATE, tmp_path, note=records.append)
    for record in records:
        others = [name for name in PRESENT if name != "site-2"]
        assert list(record.counted) == others
        # It is contacted less and less often.
        if "site-2" not in record.skipped:
            assert text in record.excluded["site-2"]
            assert str(tmp_path) not in record.excluded["site-2"]
    assert_close(last.server, by_hand(PRIVATE, missing=range(3, ROUNDS)))


@pytest.mark.slow
@pytest.mark.parametrize("on_disk", [True, False])
def test_a_device_keeps_a_limited_number_of_states(on_disk, tmp_path):
    first = {"y": np.zeros(2)}
    states = DeviceStates(first, tmp_path if on_disk else None)
    # Forward, back to a checkpoint and forward again, and from the start.
    numbers = [*range(150), *range(100, 300), *range(290, 310), *range(80)]
    for number in numbers:
        states.put("a", Moment(number, 1), {"y": np.full(2, float(number))})
        assert len(list(tmp_path.glob("a/*"))) <= MAX_STATES
        assert len(states._states) <= MAX_STATES
    again = DeviceStates(first, tmp_path) if on_disk else states
    for number in range(80 - MAX_STATES, 80):
        assert again.get("a", Moment(number, 1))["y"][0] == number
    for run_name, after in (
        ("a", Moment(80 - MAX_STATES - 1, 1)),
        ("a", Moment(79, 0)),
        ("b", Moment(79, 1)),
    ):
        with pytest.raises(RefusedError, match="is lost"):
            again.get(run_name, after)
    assert again.get("b", None) is first


class Overtaken(NoEnrolment):
    """A transport that swaps pairs of tasks for site-2."""

    def __init__(self, among: dict[str, Site]) -> None:
        self._among = among
        self._held: bytes | None = None

    def exchange(
        self, messages: Mapping[str, bytes], left: Callable[[], float]
    ) -> Iterator[Reply]:
        held, self._held = self._held, None
        for name, message in messages.items():
            if name == "site-2" and held is None:
                self._held = message
                continue
            answer = self._among[name].answer(message)
            if name == "site-2" and held is not None:
                yield Reply(name, self._among[name].answer(held))
            yield Reply(name, answer)


@pytest.mark.slow
def test_a_task_that_was_overtaken_by_the_next_spoils_nothing(tmp_path):
    value = arguments(PRIVATE, tmp_path)
    among = sites(PRIVATE, tmp_path / "kept")
    engine = Federation(Overtaken(among), enrolled(among), run="late", timeout=HANG)
    *_, last = Run(**{**value, "engine": engine})
    # After the third miss it is skipped once.
    assert_close(last.server, by_hand(PRIVATE, missing=[0, 2, 4, 5]))


@pytest.mark.slow
def test_what_devices_keep_and_send_holds_no_example(tmp_path):
    list(started(PRIVATE, tmp_path))
    files = [path for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    # A state after each round, the task record, the counter, and its lock.
    assert len(files) == len(PRESENT) * (ROUNDS + 3)
    numbers = {
        float(number).hex()
        for examples in held()
        for leaf in jax.tree.leaves(examples)
        for number in np.ravel(leaf)
    }
    for path in files:
        content = path.read_bytes()
        for first in range(8):
            whole = content[first : first + (len(content) - first) // 8 * 8]
            result = {float(item).hex() for item in np.frombuffer(whole)}
            assert not result & numbers


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 70 kB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=70k", "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("only an administrator may mount a file system")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


def ends(directory: Path, states: Path, last: int = 0) -> list[str]:
    """Run a process that writes there; return its output."""
    command = [sys.executable, "-m", "tests.federation.full_disk"]
    result = subprocess.run(
        [*command, str(directory), str(states), str(last)],
        capture_output=True,
        text=True,
        timeout=HANG,
        cwd=Path(__file__).parents[2],
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.splitlines()


def check_remaining_files(
    directory: Path, states: Path, output: str, cause: str
) -> None:
    whole = [path for path in directory.glob("round_*") if "tmp" not in path.name]
    newest = max(int(path.name.removeprefix("round_")) for path in whole)
    assert output == (
        f"ended: A checkpoint could not be written to {directory}: {cause}. Correct "
        "this and call resume, which continues from the newest complete checkpoint, "
        f"of {newest} rounds."
    )
    for path in whole:
        verified_notes(path)
    # Another directory has enough space.
    other = states.with_name("other")
    for path in whole:
        shutil.copytree(path, other / path.name)
    whole_run = Run(**full_disk.arguments(states))
    rest = list(whole_run.resume(full_disk.checkpoints(other)))
    assert [result.number for result in rest] == list(range(newest, full_disk.ROUNDS))
    expected = ByHand(full_disk.NAME)
    for number in range(full_disk.ROUNDS):
        expected.exchange(number, 0, EVERYONE)
    assert_close(rest[-1].server, expected.server)


@pytest.mark.process
def test_a_full_disk_ends_a_run_in_a_sentence_and_spares_what_was_written(
    small_disk, tmp_path
):
    directory, states = small_disk / "run", tmp_path / "kept"
    *_, output = ends(directory, states)
    check_remaining_files(directory, states, output, "No space left on device")


@pytest.mark.nightly
@pytest.mark.process
def test_a_file_that_may_not_grow_ends_a_run_in_a_sentence(tmp_path):
    directory, states = tmp_path / "run", tmp_path / "kept"
    # The checkpoint of 4 rounds is written after that of 2.
    *_, output = ends(directory, states, last=5)
    check_remaining_files(directory, states, output, "File too large")
