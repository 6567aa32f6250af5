"""A federation with secure sums: the numbers of plain integers, or a clear refusal.

`test_secure_algorithms` compares all algorithms, `test_secure_federation_schedules` has
200 schedules of dropouts, and `test_flare_secure` runs on NVIDIA FLARE.
"""

import zlib
from dataclasses import replace

import numpy as np
import pytest

from fedbilevel import (
    AdaptiveClip,
    Clip,
    DeviceNoise,
    ExampleNoise,
    FixedPoint,
    Limits,
    run,
    with_transforms,
)
from fedbilevel.data.devices import InMemoryDevices
from fedbilevel.federation import (
    REHEARSAL,
    InProcess,
    NoQuorumError,
    RefusedError,
    secure_site,
)
from fedbilevel.federation.release_log import ReleaseLog
from fedbilevel.federation.secure_messages import SecureMessage
from fedbilevel.federation.secure_sums.server import SecureSumError
from fedbilevel.federation.wire_format import CHECKSUM
from fedbilevel.privacy import GaussianRelease, UnknownSampling
from tests.algorithms.table import at_night
from tests.federation.secure_federation import (
    ALGORITHM,
    CLIP,
    COUNT,
    NAMES,
    PROBLEM,
    START,
    STATEFUL,
    WEIGHTS,
    Dropouts,
    Relay,
    check_schedule,
    federate,
    held,
    plain_run,
    request_of,
    secure_run,
    sites,
)

pytestmark = pytest.mark.slow
NOISED, REPEATABLE = (
    with_transforms(STATEFUL, Clip(CLIP), noise, FixedPoint())
    for noise in (DeviceNoise(2.0, COUNT), DeviceNoise(2.0, COUNT, from_seed=True))
)


@pytest.mark.parametrize(
    "algorithm",
    [
        ALGORITHM,
        *at_night(with_transforms(STATEFUL, AdaptiveClip(), FixedPoint(12))),
    ],
)
def test_a_secure_federation_equals_a_plain_one_to_the_bit(algorithm):
    secure, plain = secure_run(algorithm), plain_run(algorithm)
    for one, other in zip(secure.states, plain.states, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(secure.states[0], secure.states[-1])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("algorithm", "weights"),
    [pytest.param(ALGORITHM, WEIGHTS, marks=pytest.mark.nightly), (REPEATABLE, None)],
)
def test_a_simulation_has_the_same_levels(algorithm, weights):
    """The second one has the noise of devices, which plain federations refuse."""
    devices = InMemoryDevices([held(number) for number in range(COUNT)])
    results = run(PROBLEM, algorithm, devices, *START, rounds=2, weights=weights)
    expected = [np.concatenate([each.x, each.y]) for each in results]
    rounds = secure_run(algorithm, weights=weights).rounds
    actual = [np.concatenate([each.x, each.y]) for each in rounds]
    # Local steps are compiled for five devices at once in a simulation. A level that
    # differs by one would differ by 1e-6.
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "step", ["mask", "unmask", *at_night("advertise", "share", "confirm")]
)
def test_one_of_five_sites_may_drop_out_of_any_request(step):
    among = sites()
    result = federate(Relay(among, Dropouts([{"site-2": step}, {}])), among)
    first, second = result.exchanges
    survives = step in ("confirm", "unmask")
    assert ("site-2" in first.counted) == survives
    assert ("site-2" in first.excluded) != survives
    assert second.counted == list(NAMES)


@pytest.mark.nightly
def test_schedules_of_dropouts_end_in_the_right_sum_or_a_refusal():
    # The first has one dropout a round, and the second two in its last round.
    assert [check_schedule(seed, rounds=2) for seed in (6, 1)] == [True, False]


def test_too_few_survivors_for_the_noise_end_before_any_mask_is_removed():
    among = sites(NOISED)
    requests: list[str] = []
    dropouts = Dropouts([{"site-2": "mask"}])

    def change(name, request, messages):
        requests.append(request)
        return dropouts(name, request, messages)

    with pytest.raises(NoQuorumError) as caught:
        federate(Relay(among, change), among, NOISED, weights=None)
    assert "4 of 5 required sites answered the request mask" in str(caught.value)
    assert '"site-2"' in str(caught.value)
    assert {"confirm", "unmask"}.isdisjoint(requests)


@pytest.mark.parametrize(("step", "count"), [("confirm", 0), ("unmask", 1)])
def test_a_sum_is_counted_before_its_masks_can_be_removed(step, count):
    """Nothing is spent before the request unmask, and all of ε after it."""
    among, log = sites(NOISED), ReleaseLog()
    dropouts = Dropouts([{"site-1": step, "site-2": step}])
    with pytest.raises(NoQuorumError, match=f"answered the request {step}"):
        federate(Relay(among, dropouts), among, NOISED, weights=None, releases=log)
    assert log.count == count


def test_a_site_does_not_sign_a_sum_with_too_little_noise():
    """The server pretends that fewer devices are enough."""
    fewer = with_transforms(STATEFUL, Clip(CLIP), DeviceNoise(2.0, 4), FixedPoint())
    among = sites(NOISED)
    transport = Relay(among, Dropouts([{"site-2": "mask"}]))
    with pytest.raises(NoQuorumError, match="DeviceNoise adds the noise of 5"):
        federate(transport, among, fewer, weights=None)


def test_a_site_does_not_add_its_noise_to_a_sum_of_unequal_shares():
    """The server hides a site behind the noise of few others."""
    weighted = with_transforms(STATEFUL, Clip(CLIP), FixedPoint())
    among = sites(NOISED)
    with pytest.raises(NoQuorumError, match="DeviceNoise needs equal shares"):
        federate(InProcess(among), among, weighted, weights=WEIGHTS)


def test_a_site_refuses_a_sum_of_unequal_shares():
    """The sum modulo the share of the others shows the levels of one site."""
    among = sites(rules=replace(REHEARSAL, simulated_draws=False))
    with pytest.raises(NoQuorumError, match="unequal weights can show single uploads"):
        federate(InProcess(among), among, weights=WEIGHTS)


def test_a_site_with_a_part_of_the_noise_refuses_plain_tasks():
    rules = replace(REHEARSAL, simulated_draws=False)
    among = sites(NOISED, rules=rules)
    with pytest.raises(NoQuorumError, match="only a part of that of DeviceNoise"):
        federate(InProcess(among), among, secure=False, weights=None)


@pytest.mark.nightly
def test_a_sum_that_the_server_rejects_counts_as_a_release(monkeypatch, tmp_path):
    honest = secure_site.vector_of
    log = ReleaseLog(tmp_path / "releases.txt")
    with pytest.raises(NoQuorumError, match="request mask"):
        federate(
            Relay(among := sites(NOISED), Dropouts([{"site-2": "mask"}])),
            among,
            NOISED,
            weights=None,
            releases=log,
        )
    assert log.count == 0
    monkeypatch.setattr(
        secure_site, "vector_of", lambda upload, share: honest(upload, share) + share
    )
    with pytest.raises(SecureSumError, match="units of weight, expected"):
        secure_run(NOISED, weights=None, releases=log)
    assert log.count == 1
    monkeypatch.undo()
    secure_run(NOISED, weights=None, rounds=3, releases=log)
    assert log.count == 4


@pytest.mark.nightly
def test_the_difference_of_two_sums_has_the_noise_of_one_device():
    """A repeated exchange whose survivors lack a site shows the upload of the site."""

    def first_sum(*gone):
        fewer = with_transforms(
            STATEFUL, Clip(CLIP), DeviceNoise(2.0, COUNT - 1), FixedPoint()
        )
        among = sites(fewer)
        transport = Relay(among, Dropouts([dict.fromkeys(gone, "mask")]))
        rounds = federate(transport, among, fewer, rounds=1, weights=None).rounds
        spending = rounds[-1].spending
        kept = COUNT - len(gone)
        return kept * (np.asarray(rounds[-1].x) - START[0]), spending

    everybody, spending = first_sum()
    others, _ = first_sum("site-2")
    alone = CLIP * 2.0 / (COUNT - 1) ** 0.5
    # The clipped update and its noise: far less than the noise of a sum, 2 · CLIP.
    assert np.linalg.norm(everybody - others) < CLIP + 3 * alone
    (ledger,) = spending.ledgers
    assert ledger.repeated == {
        GaussianRelease(2.0 / (COUNT - 1) ** 0.5, UnknownSampling()): 1
    }


def test_a_plain_federation_still_refuses_the_noise_of_devices():
    with pytest.raises(ValueError, match="server of this federation sees each"):
        plain_run(NOISED, weights=None)


def test_another_downlink_for_one_site_gives_no_sum():
    """Model inconsistency: the others would upload nothing."""

    def change(name, request, messages):
        if request != "advertise" or name != "site-1":
            return messages[name]
        message = SecureMessage.decode(messages[name])
        # The last bytes before the field counted are those of the downlink.
        task = bytearray(message.task)
        task[-17] ^= 1
        return message._replace(task=resealed(bytes(task))).encode()

    among = sites()
    with pytest.raises(NoQuorumError, match="keys of site 'site-1'"):
        federate(Relay(among, change), among, quorum=COUNT)


def resealed(message: bytes) -> bytes:
    """Return a message of the wire format with the right checksum."""
    body = message[CHECKSUM.size :]
    return CHECKSUM.pack(zlib.crc32(body)) + body


def swapped(name, request, messages):
    """Return the shares for another site."""
    if request != "mask":
        return messages[name]
    return messages[NAMES[(NAMES.index(name) + 1) % COUNT]]


def withheld(name, request, messages):
    """Send the keys of the first request again, in place of the survivors."""
    return None if request == "share" and name != "site-1" else messages[name]


class Replayed:
    """Send the requests of the first round in the second."""

    def __init__(self) -> None:
        self.earlier: dict[tuple[str, str], bytes] = {}

    def __call__(self, name, request, messages):
        return self.earlier.setdefault((name, request), messages[name])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (swapped, "site-1.*whose keys|cannot be decrypted|did not send before"),
        (withheld, "did not answer the request share"),
        (Replayed(), "Round 1: 0 of 4 required sites answered the request advertise"),
    ],
    ids=["swaps shares", "withholds keys", "replays"],
)
def test_a_server_that_deviates_gets_no_sum(change, reason):
    among = sites()
    with pytest.raises(NoQuorumError, match=reason) as caught:
        federate(Relay(among, change), among)
    # Cause, place and cure.
    assert str(caught.value).startswith("Round ")
    assert "Site " in str(caught.value)
    assert "heck" in str(caught.value)


def test_a_vector_beyond_the_bounds_ends_the_run(monkeypatch):
    honest = secure_site.vector_of
    monkeypatch.setattr(
        secure_site, "vector_of", lambda upload, share: honest(upload, share) + share
    )
    with pytest.raises(SecureSumError, match=r"units of weight, expected .* Check"):
        secure_run()


def test_an_update_that_is_not_finite_is_refused_by_its_site(monkeypatch):
    honest = secure_site.vector_of

    def poisoned(upload, share):
        numbers = upload._replace(update=(np.array([-(2**31)], np.int32),))
        return honest(numbers if share == shares[0] else upload, share)

    shares = [round(WEIGHTS[2] / WEIGHTS.sum() * 2**15)]
    monkeypatch.setattr(secure_site, "vector_of", poisoned)
    first, _ = secure_run().exchanges
    assert first.excluded == {
        "site-3": "refused: the upload is not finite; lower the learning rate"
    }


def test_algorithms_and_limits_without_sums_are_refused():
    with pytest.raises(ValueError, match=r"secure_sums: needs .* FixedPoint"):
        secure_run(STATEFUL)
    with pytest.raises(ValueError, match=r"norm=5\): excludes FixedPoint"):
        secure_run(limits=Limits(norm=5.0))
    with pytest.raises(ValueError, match=r"distance=5\): excludes FixedPoint"):
        secure_run(limits=Limits(distance=5.0))


def test_an_exchange_that_is_refused_counts_no_noise():
    releases = ReleaseLog()
    algorithm = with_transforms(STATEFUL, ExampleNoise(1.0, 1.0))
    with pytest.raises(ValueError, match="secure sums are sums of integers"):
        secure_run(algorithm, releases=releases)
    assert releases.count == 0


def test_sites_enforce_their_rules():
    rules = replace(REHEARSAL, secure_sums=True)
    with pytest.raises(RefusedError, match="allows secure sums only"):
        sites(secure=False, rules=rules)
    among = sites(rules=rules)
    with pytest.raises(NoQuorumError, match="allows secure sums only"):
        federate(InProcess(among), among, secure=False)
    # A server cannot leave out the sums of a job, also where no rule requires them.
    among = sites()
    with pytest.raises(NoQuorumError, match="but the job has secure sums"):
        federate(InProcess(among), among, secure=False)
    with pytest.raises(NoQuorumError, match="started without its certificate"):
        federate(InProcess(plain := sites(secure=False)), plain)
    rules = replace(REHEARSAL, smallest_roster=6)
    with pytest.raises(NoQuorumError, match=r"has 5 sites, .* requires 6"):
        federate(InProcess(few := sites(rules=rules)), few)
    with pytest.raises(NoQuorumError, match="more than half"):
        secure_run(weights=np.array([9.0, 1.0, 1.0, 1.0, 1.0]), quorum=COUNT)


@pytest.mark.nightly
def test_a_restarted_site_continues_from_its_saved_state(tmp_path):
    """Site 2 is restarted between two requests; its state and the sums stay right."""
    among = sites(directory=tmp_path)

    def change(name, request, messages):
        if (name, request) == ("site-2", "confirm"):
            among["site-2"] = sites(directory=tmp_path)["site-2"]
        return messages[name]

    class Restarted(Relay):
        def exchange(self, messages, left):
            self._inner = InProcess(among)
            yield from super().exchange(messages, left)

    result = federate(Restarted(among, change), among, rounds=3)
    # The restarted process has no keys, but its masked vector had arrived.
    assert [each.counted for each in result.exchanges] == [list(NAMES)] * 3
    for one, other in zip(result.states, plain_run(rounds=3).states, strict=True):
        np.testing.assert_array_equal(one, other)


def test_sites_do_their_work_once(monkeypatch):
    among = sites()
    counts = dict.fromkeys(NAMES, 0)
    for name, site in among.items():
        work = site._work

        def counted(*arguments, name=name, work=work):
            counts[name] += 1
            return work(*arguments)

        monkeypatch.setattr(site, "_work", counted)
    requests: list[str] = []

    def noted(name, request, messages):
        requests.append(request)
        return messages[name]

    federate(Relay(among, noted), among)
    assert counts == dict.fromkeys(NAMES, 2)
    assert len(requests) == 2 * 5 * COUNT
    assert request_of(SecureMessage(2, bytes(16)).encode()) == "mask"
