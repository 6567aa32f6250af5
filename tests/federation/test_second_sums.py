"""The rollback attack: a secure sum, and the same sum without one site.

The attacker is the server: it computes an exchange with all sites, resumes, and
computes it again at the same x and y, without the site that it attacks.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from fedbilevel.engines.protocol import Moment
from fedbilevel.federation import (
    REHEARSAL,
    Failure,
    NoQuorumError,
    RefusedError,
    Site,
    SiteRules,
    secure_site,
)
from fedbilevel.federation.exchange_counter import ExchangeCounter
from fedbilevel.federation.secure_sums.advertisement import (
    advertise,
    bundle,
    read_advertisement,
)
from fedbilevel.federation.secure_sums.agreement import KeyPairs
from fedbilevel.federation.secure_sums.context import threshold
from fedbilevel.federation.secure_sums.packet import PacketType, field, seal, unseal
from fedbilevel.federation.secure_sums.second_sums import most_permitting
from fedbilevel.federation.secure_sums.server import SecureServer
from fedbilevel.federation.secure_sums.site import SecureSite
from fedbilevel.federation.sum_record import SUMS, SumRecord
from fedbilevel.federation.survivor_log import SurvivorLog
from tests.federation.secure_exchange import ALL, AUTHORITY, context_of, names_of
from tests.federation.secure_federation import (
    NAMES,
    Dropouts,
    Relay,
    federate,
    sites,
)

VICTIM = "site-2"


class Attack:
    """A server that keeps all sums, and knows the uploads to compare them with.

    Args:
        directory: directory of the sites' records.
        permitting: sites that sign second sums.
    """

    def __init__(self, monkeypatch, directory, permitting):
        self.directory, self.permitting = directory, permitting
        self.totals: list[np.ndarray] = []
        self.uploads: list[np.ndarray] = []
        reveal, honest = SecureServer.collect_revealed, secure_site.vector_of

        def noted(server, replies):
            result = reveal(server, replies)
            self.totals.append(result.total.copy())
            return result

        def seen(upload, share):
            self.uploads.append(honest(upload, share))
            return self.uploads[-1]

        monkeypatch.setattr(SecureServer, "collect_revealed", noted)
        monkeypatch.setattr(secure_site, "vector_of", seen)

    def run(self, *gone):
        """Run the first exchange with restarted sites, of which some drop out."""
        among: dict[str, Site] = {}
        for most in (0, 1):
            rules = replace(REHEARSAL, most_second_sums=most)
            wanted = [n for n in NAMES if (n in self.permitting) == bool(most)]
            if wanted:
                built = sites(directory=self.directory, rules=rules)
                among |= {name: built[name] for name in wanted}
        among = {name: among[name] for name in NAMES}
        dropouts = Dropouts([dict.fromkeys(gone, "mask")])
        federate(Relay(among, dropouts), among, rounds=1)

    @property
    def own(self):
        """The upload of the attacked site in the first sum."""
        return self.uploads[NAMES.index(VICTIM)]


@pytest.mark.nightly
def test_sites_that_sign_second_sums_can_be_attacked(monkeypatch, tmp_path):
    """The attack as it was before the rule: exact to the last digit."""
    server = Attack(monkeypatch, tmp_path, permitting=NAMES)
    server.run()
    server.run(VICTIM)
    first, second = server.totals
    np.testing.assert_array_equal(first - second, server.own)
    assert np.any(server.own)


@pytest.mark.slow
def test_a_second_sum_without_a_site_is_refused_by_default(monkeypatch, tmp_path):
    assert SiteRules().most_second_sums == 0
    # Of five sites, two may sign second sums.
    server = Attack(monkeypatch, tmp_path, permitting=NAMES[3:])
    server.run()
    with pytest.raises(NoQuorumError) as caught:
        server.run(VICTIM)
    assert len(server.totals) == 1
    message = str(caught.value)
    assert "2 of 4 required sites answered the request confirm" in message
    assert "was summed before, over the sites site-1, site-2, site-3" in message
    # The run may continue with the same sites: the same sum reveals nothing new.
    server.run()
    np.testing.assert_array_equal(server.totals[0], server.totals[1])


@pytest.mark.slow
def test_a_server_repeats_sums_over_the_survivors_of_each_exchange(tmp_path):
    def states(schedule):
        among = sites(directory=tmp_path)
        log = SurvivorLog(tmp_path / "survivors.txt")
        result = federate(Relay(among, Dropouts(schedule)), among, survivors=log)
        return [each.counted for each in result.exchanges], result.states

    counted, first = states([{}, {VICTIM: "mask"}])
    again, second = states([{}, {}])
    assert again == counted == [list(NAMES), [n for n in NAMES if n != VICTIM]]
    np.testing.assert_array_equal(first, second)


@pytest.mark.nightly
def test_a_site_does_not_take_part_if_too_many_others_sign_second_sums(
    monkeypatch, tmp_path
):
    others = [name for name in NAMES if name != VICTIM]
    server = Attack(monkeypatch, tmp_path, permitting=others)
    server.run()
    server.run()
    # The sums are over the others, and the site has sent nothing but keys.
    assert len(server.uploads) == 2 * len(others)


def test_a_site_names_the_sites_that_sign_second_sums():
    context = context_of(4)
    among = {
        name: SecureSite(ALL[name], context, refuses_second_sums=name in NAMES[:2])
        for name in names_of(4)
    }
    roster = bundle(context, {name: site.advertise() for name, site in among.items()})
    # A site that signs second sums itself requires nothing of others.
    assert among["site-3"].share(roster)
    with pytest.raises(RefusedError) as caught:
        among["site-1"].share(roster)
    # As the submitter gets it.
    assert Failure.decode(caught.value.failure.encode()).reason == (
        "refused: 2 of the 4 sites of the exchange sign a second sum over other sites "
        "(site-3, site-4), but at most 1 of them may: the difference of two sums could "
        "be the upload of this site. Ask their operators to set most_second_sums = 0 "
        "in local/site_rules.toml"
    )


def test_the_rule_of_another_site_cannot_be_changed_on_the_way():
    context, name = context_of(3), "site-1"
    message = advertise(
        ALL[name], context, KeyPairs.new().public, refuses_second_sums=False
    )
    entries = unseal(message, PacketType.ADVERTISEMENT, context)
    entries["second_sums"] = field(b"refused")
    forged = seal(PacketType.ADVERTISEMENT, context, entries)
    with pytest.raises(RefusedError, match="the signature is not that of these keys"):
        read_advertisement(forged, name, context, AUTHORITY.root)


def all_sums(count, permitting):
    """Return each sum that a server can get: survivors and the sites that sign."""
    everyone = range(count)
    for size in range(2, count + 1):
        for roster in itertools.combinations(everyone, size):
            least = threshold(size)
            if len(permitting & set(roster)) > most_permitting(size, least):
                # Only sites that permit second sums participate.
                continue
            for signed in itertools.combinations(roster, least):
                rest = [site for site in roster if site not in signed]
                for more in range(len(rest) + 1):
                    for added in itertools.combinations(rest, more):
                        yield frozenset((*signed, *added)), frozenset(signed)


def shows_one(rows, permitting, count):
    """Return whether a combination of sums is the upload of one refusing site."""
    columns = [site for site in range(count) if site not in permitting]
    matrix = np.array([[float(site in row) for site in columns] for row in rows])
    rank = np.linalg.matrix_rank(matrix)
    units = np.eye(len(columns))
    return any(
        np.linalg.matrix_rank(np.vstack([matrix, unit])) == rank for unit in units
    )


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_no_sums_that_refusing_sites_sign_show_an_upload(count):
    """All rosters, survivors and signers; uploads of permitting sites are known."""
    for number in range(max(0, most_permitting(count, threshold(count))) + 1):
        permitting = set(range(number))
        sums = list(all_sums(count, permitting))
        for rows in itertools.combinations(sums, 2):
            one, other = (signed - permitting for _, signed in rows)
            if one & other:
                continue  # A site would have signed both.
            chosen = [survivors for survivors, _ in rows]
            assert not shows_one(chosen, permitting, count)


@pytest.mark.parametrize("count", [3, 4, 6, 9])
def test_one_more_permitting_site_would_be_enough_for_the_attack(count):
    least = threshold(count)
    permitting = set(range(most_permitting(count, least) + 1))
    victim = count - 1
    first = set(range(least))
    # The refusing sites that did not sign the first sum, without the attacked one.
    second = permitting | set(range(least, count - 1))
    second |= set(itertools.islice(permitting, least - len(second)))
    signed_twice = (first & second) - permitting
    assert len(second) >= least - 1
    assert not signed_twice
    rows = [set(range(count)), set(range(count)) - {victim}]
    assert shows_one(rows, permitting, count)


def test_a_record_outlives_restarts_runs_and_submitters(tmp_path):
    def record(most=0):
        return SumRecord(most, ExchangeCounter(tmp_path))

    everyone = {"a": 1, "b": 1, "c": 1}
    one, other = record(), record()
    one.admit("first", Moment(0, 0), "aa", everyone)
    # A job at the same time, also one of another submitter with a run of this name.
    for again in (other, record()):
        again.admit("first", Moment(0, 0), "aa", everyone)
        with pytest.raises(RefusedError, match="over the sites a, b, c, and"):
            again.admit("first", Moment(0, 0), "aa", {"a": 1, "b": 1})
    with pytest.raises(RefusedError, match="a sum over them with other weights"):
        record().admit("first", Moment(0, 0), "aa", {"a": 2, "b": 1, "c": 1})
    # Another task of the exchange, after a rollback, has other samples and noise.
    record().admit("first", Moment(0, 0), "bb", {"a": 1, "b": 1})
    assert len((tmp_path / SUMS).read_bytes().splitlines()) == 2


def test_the_refusal_of_a_sum_of_many_sites_has_its_cure():
    record = SumRecord(0, ExchangeCounter())
    everyone = {f"hospital-{number}": 1 for number in range(64)}
    record.admit("first", Moment(0, 0), "aa", everyone)
    del everyone["hospital-7"]
    with pytest.raises(RefusedError) as caught:
        record.admit("first", Moment(0, 0), "aa", everyone)
    reason = Failure.decode(caught.value.failure.encode()).reason
    assert reason.endswith("with the sites of the first sum, and without others")


def test_second_sums_are_counted_in_each_run(tmp_path):
    def admit(run, upload, *names):
        record = SumRecord(1, ExchangeCounter(tmp_path))
        record.admit(run, Moment(0, 0), upload, dict.fromkeys(names, 1))

    for run in ("first", "second"):
        admit(run, run, "a", "b", "c")
        admit(run, run, "a", "b")
        with pytest.raises(RefusedError, match="signs 1 second sums in a run"):
            admit(run, run, "a", "c")


def test_a_damaged_record_is_no_clean_slate(tmp_path):
    (tmp_path / SUMS).write_text("nonsense\n")
    with pytest.raises(RefusedError, match=r"sums.txt .* is damaged: 'nonsense'"):
        SumRecord(0, ExchangeCounter(tmp_path)).admit("a", Moment(0, 0), "aa", {"a": 1})
