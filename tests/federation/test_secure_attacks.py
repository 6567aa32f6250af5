"""A dishonest server of a secure sum: sites refuse, and say why."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from fedbilevel.federation.secure_sums import advertisement
from fedbilevel.federation.secure_sums.agreement import KeyPairs, PublicKeys
from fedbilevel.federation.secure_sums.context import Context
from fedbilevel.federation.secure_sums.packet import PacketType, unseal
from fedbilevel.federation.secure_sums.secret import SEED
from fedbilevel.federation.secure_sums.server import SecureSumError
from fedbilevel.federation.secure_sums.shares import ENCRYPTED, combine
from fedbilevel.federation.secure_sums.site import SecureSite
from fedbilevel.federation.secure_sums.survivors import (
    encode_confirmations,
    encode_survivors,
)
from fedbilevel.federation.transport import RefusedError
from tests.federation.authority import Authority
from tests.federation.secure_exchange import (
    ALL,
    Exchange,
    context_of,
    plain_sum,
    vectors_of,
)
from tests.federation.secure_messages import REPLIES, TYPES, changed, entry_of

advertise = partial(advertisement.advertise, refuses_second_sums=True)
CONTEXT = context_of(4)
FIRST, SECOND, THIRD, FOURTH = CONTEXT.roster
Before = Callable[[str], Exchange]


@pytest.fixture
def before() -> Before:
    """Return an exchange of 4 sites whose next request is this one."""
    return lambda step: Exchange(CONTEXT, vectors_of(4, size=6)).until(step)


def with_entries(exchange: Exchange, step: str, **entries: bytes | None) -> bytes:
    """Return the next message to the first site, changed; `_` stands for `-`."""
    names = {name.replace("_", "-"): entry for name, entry in entries.items()}
    return changed(exchange.requests[FIRST], TYPES[step], CONTEXT, names)


def refusal(exchange: Exchange, step: str, message: bytes, name: str = FIRST) -> str:
    """Return the sentence with which a site refuses, and check that nothing changed."""
    count = len(exchange.sites[name]._answers)
    with pytest.raises(RefusedError) as caught:
        exchange.ask(step, name, message)
    assert len(exchange.sites[name]._answers) == count
    return str(caught.value)


@pytest.mark.parametrize("step", TYPES)
def test_a_repeated_request_gets_the_same_bytes_and_another_one_a_refusal(before, step):
    exchange = before(step)
    message = exchange.requests[FIRST]
    reply = exchange.ask(step, FIRST, message)
    assert exchange.ask(step, FIRST, message) == reply
    sentence = refusal(exchange, step, with_entries(exchange, step, site_3=None))
    assert f"already answered another {step} request" in sentence
    assert "start a new exchange" in sentence


def test_a_second_vector_is_refused(before):
    exchange = before("mask")
    site, message = exchange.sites[FIRST], exchange.requests[FIRST]
    vector = exchange.vectors[FIRST]
    reply = site.mask(message, vector)
    assert site.mask(message, vector.copy()) == reply
    for _ in range(2):
        with pytest.raises(RefusedError, match="already answered another mask request"):
            site.mask(message, vector + np.uint32(1))
    # The caller may reuse the memory of its vector.
    vector[:] = 0
    with pytest.raises(RefusedError, match="already answered another mask request"):
        site.mask(message, vector)


@pytest.mark.parametrize("step", ["share", "mask", "confirm", "unmask"])
def test_a_request_out_of_order_is_refused(before, step):
    message = before(step).requests[FIRST]
    site = Exchange(CONTEXT, vectors_of(4, size=6))
    assert f"{step} came before advertise" in refusal(site, step, message)


@pytest.mark.parametrize("key", ["encryption", "mask"])
def test_a_replaced_public_key_is_refused(before, key):
    exchange = before("share")
    attacker = KeyPairs.new().public.mask
    forged = changed(
        entry_of(exchange.requests[FIRST], PacketType.ROSTER, CONTEXT, SECOND),
        PacketType.ADVERTISEMENT,
        CONTEXT,
        {key: attacker},
    )
    sentence = refusal(
        exchange, "share", with_entries(exchange, "share", site_2=forged)
    )
    assert "the keys of site 'site-2'" in sentence.replace('"', "'")
    assert "keys were replaced on the way: check who operates the server" in sentence


@pytest.mark.parametrize(
    ("signature", "reason"), [(None, "does not have the entries"), (b"", "signature")]
)
def test_a_missing_signature_is_refused(before, signature, reason):
    exchange = before("share")
    forged = changed(
        entry_of(exchange.requests[FIRST], PacketType.ROSTER, CONTEXT, SECOND),
        PacketType.ADVERTISEMENT,
        CONTEXT,
        {"signature": signature},
    )
    message = with_entries(exchange, "share", site_2=forged)
    assert reason in refusal(exchange, "share", message)


def test_a_certificate_of_a_foreign_authority_is_refused(before):
    exchange = before("share")
    # The foreign authority has the same name, but another key.
    foreign = Authority().identity(SECOND)
    forged = advertise(foreign, CONTEXT, KeyPairs.new().public)
    message = with_entries(exchange, "share", site_2=forged)
    sentence = refusal(exchange, "share", message)
    assert "was not issued by the root authority 'project'" in sentence
    assert "the same rootCA.pem" in sentence


def test_keys_that_another_site_signed_are_refused(before):
    exchange = before("share")
    forged = advertise(ALL[THIRD], CONTEXT, KeyPairs.new().public)
    message = with_entries(exchange, "share", site_2=forged)
    sentence = refusal(exchange, "share", message)
    assert "it was issued to 'site-3', not to 'site-2'" in sentence


def test_keys_of_another_exchange_are_refused(before):
    exchange = before("share")
    forged = advertise(ALL[SECOND], context_of(4, 1), KeyPairs.new().public)
    message = with_entries(exchange, "share", site_2=forged)
    sentence = refusal(exchange, "share", message)
    assert "never reuse messages of another exchange" in sentence
    # The fields beside the signature are of this exchange, the signature is not.
    renamed = changed(
        entry_of(exchange.requests[FIRST], PacketType.ROSTER, CONTEXT, SECOND),
        PacketType.ADVERTISEMENT,
        CONTEXT,
        {
            name: entry_of(forged, PacketType.ADVERTISEMENT, context_of(4, 1), name)
            for name in ("encryption", "mask", "signature")
        },
    )
    message = with_entries(exchange, "share", site_2=renamed)
    assert "signature is not that" in refusal(exchange, "share", message)


def test_another_roster_is_refused(before):
    exchange = before("share")
    larger = Context("a1", 3, 0, (*CONTEXT.roster, "site-5"))
    site = SecureSite(ALL[FIRST], larger)
    site.advertise()
    with pytest.raises(RefusedError, match="give every site the same roster"):
        site.share(exchange.requests[FIRST])


def test_a_stranger_among_the_keys_is_refused(before):
    exchange = before("share")
    stranger = advertise(ALL["site-9"], CONTEXT, KeyPairs.new().public)
    message = with_entries(exchange, "share", site_9=stranger)
    sentence = refusal(exchange, "share", message)
    assert '"site-9", which is not in the roster' in sentence


def test_withheld_keys_are_refused(before):
    exchange = before("share")
    message = with_entries(exchange, "share", site_2=None, site_3=None)
    sentence = refusal(exchange, "share", message)
    assert "the keys of 2 sites, but 3 of 4 are required" in sentence
    assert "start a new exchange" in sentence


def test_other_keys_of_the_site_itself_are_refused(before):
    exchange = before("share")
    other = advertise(ALL[FIRST], CONTEXT, KeyPairs.new().public)
    for entry in (None, other):
        message = with_entries(exchange, "share", site_1=entry)
        sentence = refusal(exchange, "share", message)
        assert 'the keys of this site, "site-1", unchanged' in sentence


def test_a_key_that_occurs_twice_is_refused(before):
    exchange = before("share")
    public = exchange.sites[THIRD]._public
    once = KeyPairs.new().public.mask
    for keys in (public, PublicKeys(once, once), PublicKeys(once, public.encryption)):
        forged = advertise(ALL[SECOND], CONTEXT, keys)
        message = with_entries(exchange, "share", site_2=forged)
        assert "sent the same key" in refusal(exchange, "share", message)


def test_a_key_without_common_secret_is_refused(before):
    exchange = before("share")
    forged = advertise(
        ALL[SECOND], CONTEXT, KeyPairs.new().public._replace(mask=bytes(32))
    )
    message = with_entries(exchange, "share", site_2=forged)
    assert "not a usable X25519 key" in refusal(exchange, "share", message)


def test_sites_that_were_shown_different_keys_cannot_read_each_others_shares(before):
    exchange = before("share")
    fewer = with_entries(exchange, "share", site_4=None)
    exchange.requests = {**exchange.requests, SECOND: fewer}
    exchange.answer("share")
    # The server completes the reply of the second site, which it cannot encrypt.
    exchange.replies[SECOND] = changed(
        exchange.replies[SECOND],
        PacketType.SHARES,
        CONTEXT,
        {":site-4": bytes(ENCRYPTED)},
    )
    exchange.collect("share")
    for name in (FIRST, THIRD, FOURTH):
        sentence = refusal(exchange, "mask", exchange.requests[name], name)
        assert 'the shares of site "site-2" cannot be decrypted' in sentence
        assert "showed the sites different keys" in sentence


def test_changed_and_exchanged_shares_are_refused(before):
    exchange = before("mask")
    message = exchange.requests[FIRST]
    two, three = (
        entry_of(message, PacketType.DELIVERY, CONTEXT, name)
        for name in (SECOND, THIRD)
    )
    # Those that site 1 sent to site 2, sent back as those of site 2.
    back = entry_of(exchange.requests[SECOND], PacketType.DELIVERY, CONTEXT, FIRST)
    flipped = bytes([two[0] ^ 1]) + two[1:]
    for forged in (three, back, flipped, two[:-1], b""):
        message = with_entries(exchange, "mask", site_2=forged)
        assert "cannot be decrypted" in refusal(exchange, "mask", message)


def test_too_few_shares_are_refused(before):
    exchange = before("mask")
    message = with_entries(exchange, "mask", site_2=None, site_3=None)
    sentence = refusal(exchange, "mask", message)
    assert "2 sites have shared their secrets, but 3 of 4 are required" in sentence


def test_shares_of_a_site_without_keys_are_refused(before):
    exchange = before("mask")
    for name in ("site_1", "site_9"):
        message = with_entries(exchange, "mask", **{name: bytes(ENCRYPTED)})
        assert "whose keys it did not send" in refusal(exchange, "mask", message)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ((SECOND, THIRD, FOURTH), 'lists this site, "site-1", as dropped'),
        ((FIRST, SECOND), "lists 2 survivors, but 3 of 4 sites are required"),
        ((FIRST, SECOND, THIRD, "site-9"), '"site-9" as a survivor'),
    ],
)
def test_a_wrong_list_of_survivors_is_not_signed(before, names, reason):
    sentence = refusal(before("confirm"), "confirm", encode_survivors(CONTEXT, names))
    assert reason in sentence
    assert "start a new exchange" in sentence


def test_different_lists_of_survivors_reveal_nothing(before):
    exchange = before("confirm")
    three = encode_survivors(CONTEXT, (FIRST, SECOND, THIRD))
    exchange.requests = {**exchange.requests, FIRST: three, SECOND: three}
    exchange.answer("confirm")
    signatures = {
        name: entry_of(reply, PacketType.CONFIRMATION, CONTEXT, "signature")
        for name, reply in exchange.replies.items()
    }
    # The honest server leaves out the two signatures of another list.
    with pytest.raises(SecureSumError, match="2 of 3 required"):
        exchange.collect("confirm")
    for name in (FIRST, THIRD):
        message = encode_confirmations(
            CONTEXT, {each: signatures[each] for each in (FIRST, SECOND, THIRD)}
        )
        sentence = refusal(exchange, "unmask", message, name)
        assert "the server may have shown different lists" in sentence


def test_different_lists_of_sharing_sites_reveal_nothing(before):
    exchange = before("mask")
    fewer = with_entries(exchange, "mask", site_4=None)
    exchange.requests = {**exchange.requests, FIRST: fewer}
    exchange.answer("mask")
    exchange.collect("mask")
    survivors = encode_survivors(CONTEXT, (FIRST, SECOND, THIRD))
    exchange.requests = dict.fromkeys((FIRST, SECOND, THIRD), survivors)
    exchange.answer("confirm")
    signatures = {
        name: entry_of(reply, PacketType.CONFIRMATION, CONTEXT, "signature")
        for name, reply in exchange.replies.items()
    }
    message = encode_confirmations(CONTEXT, signatures)
    assert "different lists" in refusal(exchange, "unmask", message, FIRST)
    assert "different lists" in refusal(exchange, "unmask", message, SECOND)


def test_missing_and_wrong_signatures_of_survivors_are_refused(before):
    exchange = before("unmask")
    message = with_entries(exchange, "unmask", site_2=None, site_3=None)
    sentence = refusal(exchange, "unmask", message)
    assert "2 sites have signed the list of survivors, but 3 of 4" in sentence
    message = with_entries(exchange, "unmask", site_2=b"no signature")
    assert "the signature of site" in refusal(exchange, "unmask", message)
    message = with_entries(exchange, "unmask", site_9=b"no signature")
    assert "is not on it" in refusal(exchange, "unmask", message)


def test_a_site_never_reveals_both_shares_of_a_site():
    drop = {"mask": [FOURTH]}
    exchange = Exchange(CONTEXT, vectors_of(4, size=6), drop=drop).until("unmask")
    expected = {name: site._shares for name, site in exchange.sites.items()}
    exchange.answer("unmask")
    for name, reply in exchange.replies.items():
        revealed = unseal(reply, PacketType.REVEALED, CONTEXT)
        shares = expected[name]
        assert set(revealed) == set(CONTEXT.roster)
        for peer, content in revealed.items():
            share = shares[peer].mask_seed if peer == FOURTH else shares[peer].seed
            assert content.tobytes() == share.content
    # Now the server asks for the other shares, as if site 2 had dropped out too.
    exchange.requests = dict.fromkeys((FIRST, THIRD), b"")
    other = encode_survivors(CONTEXT, (FIRST, THIRD, FOURTH))
    for name in (FIRST, THIRD):
        assert "already answered another confirm" in refusal(
            exchange, "confirm", other, name
        )
        assert "already answered another unmask" in refusal(
            exchange, "unmask", encode_confirmations(CONTEXT, {}), name
        )
        assert exchange.sites[name]._shares == {}


def test_fewer_shares_than_the_threshold_do_not_give_a_secret(before):
    exchange = before("unmask")
    seed = exchange.sites[SECOND]._seed
    shares = {
        CONTEXT.position(name): site._shares[SECOND].seed
        for name, site in exchange.sites.items()
    }
    assert combine({k: shares[k] for k in (1, 2, 4)}) == seed
    assert combine({k: shares[k] for k in (1, 2)}) != seed


@pytest.mark.parametrize("step", Exchange.STEPS)
def test_a_reply_that_is_not_valid_drops_its_site(before, step):
    exchange = before(step)
    exchange.answer(step)
    *before_last, last = exchange.replies[SECOND]
    # Another byte in any case: masks are random.
    exchange.replies[SECOND] = bytes([*before_last, last ^ 1])
    result = exchange.collect(step)
    if step != "unmask":
        following = Exchange.STEPS[Exchange.STEPS.index(step) + 1]
        result = exchange.finish(following)
    assert set(exchange.server.failures) == {SECOND}
    assert "damaged in transit" in exchange.server.failures[SECOND]
    np.testing.assert_array_equal(
        result.total, plain_sum(exchange.vectors, result.survivors)
    )


def test_a_vector_of_another_length_drops_its_site(before):
    exchange = before("mask")
    exchange.vectors[SECOND] = np.ones(7, np.uint32)
    result = exchange.finish("mask")
    assert result.survivors == (FIRST, THIRD, FOURTH)
    assert "has 28 bytes, expected 24" in exchange.server.failures[SECOND]


@pytest.mark.parametrize("name", [SECOND, FOURTH])
def test_a_wrong_share_is_left_out_or_the_sum_refused(name):
    vectors = vectors_of(4, size=6)
    for drop, ends in (({}, True), ({"unmask": [FIRST]}, False)):
        exchange = Exchange(CONTEXT, vectors, drop=drop).until("unmask")
        exchange.answer("unmask")
        exchange.replies[name] = changed(
            exchange.replies[name], REPLIES["unmask"], CONTEXT, {THIRD: bytes(SEED)}
        )
        if ends:
            result = exchange.collect("unmask")
            np.testing.assert_array_equal(result.total, plain_sum(vectors, vectors))
        else:
            with pytest.raises(SecureSumError, match=r'"site-3" do not give its secre'):
                exchange.collect("unmask")
