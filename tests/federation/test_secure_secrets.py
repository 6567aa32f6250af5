"""Masked vectors of a secure sum look random, and its secrets are in no text."""

import copy
import logging
import pickle
import random

import numpy as np
import pytest
from scipy import stats

from fedbilevel.federation.secure_sums import masks
from fedbilevel.federation.secure_sums.agreement import KeyPairs
from fedbilevel.federation.secure_sums.packet import PacketType
from fedbilevel.federation.secure_sums.secret import Secret, random_secret
from tests.federation.secure_exchange import Exchange, context_of
from tests.federation.secure_messages import entry_of

CONTEXT = context_of(3)
SIZE = 2**15


@pytest.fixture
def fixed_keys(monkeypatch):
    """Make all keys and seeds the same in each run."""
    draw = random.Random(8)
    monkeypatch.setattr("secrets.token_bytes", draw.randbytes)


def masked_vectors(
    change: str | None = None, vector: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Return the uploads of three sites with one vector, by default zeros."""
    if vector is None:
        vector = np.zeros(SIZE, np.uint32)
    vectors = dict.fromkeys(CONTEXT.roster, vector)
    exchange = Exchange(CONTEXT, vectors)
    if change is not None:
        site = exchange.sites[change]
        site._keys = KeyPairs.new()
        site._public = site._keys.public
    exchange.until("mask").answer("mask")
    return {
        name: np.frombuffer(
            entry_of(reply, PacketType.MASKED, CONTEXT, "vector"), "<u4"
        )
        for name, reply in exchange.replies.items()
    }


def p_value(words: np.ndarray) -> float:
    counts = np.bincount(words.view(np.uint8), minlength=256)
    return float(stats.chisquare(counts).pvalue)


def test_masked_vectors_and_their_partial_sums_are_uniform(fixed_keys):
    one, two, three = masked_vectors().values()
    for words in (one, two, three, one + two, one - two, two + three):
        assert p_value(words) > 1e-6
        # Every byte of a word, and neighbouring words.
        for part in range(4):
            assert p_value(words.view(np.uint8)[part::4].copy()) > 1e-6
        assert p_value(words[1:] - words[:-1]) > 1e-6


def test_masked_vectors_do_not_correlate_with_the_vector(fixed_keys):
    """A vector of small levels, as fixed-point numbers are, with a strong trend."""
    levels = np.linspace(-3000, 3000, SIZE).astype(np.int32)
    one, two, three = masked_vectors(vector=levels.view(np.uint32)).values()
    for words in (one, two, three, one - two, two + three):
        assert p_value(words) > 1e-6
        for part in (*words.view(np.uint8).reshape(-1, 4).T, words.view(np.int32)):
            correlation = np.corrcoef(part.astype(float), levels)[0, 1]
            # Five standard errors of the correlation of independent numbers.
            assert abs(correlation) < 5 / np.sqrt(SIZE)
    total = (one + two + three).view(np.int32)
    # Only the self-masks are left in the sum of all.
    assert abs(np.corrcoef(total, levels)[0, 1]) < 5 / np.sqrt(SIZE)


def test_the_test_of_uniformity_rejects_a_vector_with_few_equal_bytes():
    words = np.random.default_rng(0).integers(0, 2**32, SIZE, np.uint32)
    assert p_value(words) > 1e-6
    words[: SIZE // 20] = 0
    assert p_value(words) < 1e-6


def test_an_upload_changes_entirely_if_the_key_of_another_site_changes(monkeypatch):
    uploads = []
    for change in (None, "site-3"):
        draw = random.Random(8)
        monkeypatch.setattr("secrets.token_bytes", draw.randbytes)
        uploads.append(masked_vectors(change)["site-1"])
    before, after = uploads
    # Of 32,768 random words, 8e-6 are equal on average.
    assert not np.any(before == after)
    assert p_value(before - after) > 1e-6


def test_the_same_keys_give_the_same_upload(monkeypatch):
    uploads = []
    for _ in range(2):
        draw = random.Random(8)
        monkeypatch.setattr("secrets.token_bytes", draw.randbytes)
        uploads.append(masked_vectors()["site-1"])
    first, second = uploads
    np.testing.assert_array_equal(first, second)


def test_the_mask_is_the_key_stream_of_rfc_8439():
    # RFC 8439, appendix A.1, test vector 1: key, nonce and counter are zero.
    expected = bytes.fromhex(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    total = np.zeros(16, np.uint32)
    masks.add_mask(total, Secret(bytes(32)))
    assert total.astype("<u4").tobytes() == expected


def secrets_of(exchange: Exchange) -> list[bytes]:
    secrets = []
    for site in exchange.sites.values():
        assert site._keys is not None
        assert site._seed is not None
        secrets += [*site._keys, site._seed]
        secrets += [share for pair in site._shares.values() for share in pair]
    return [secret.content for secret in secrets]


def test_no_secret_is_in_a_text_or_a_log(caplog):
    caplog.set_level(logging.DEBUG)
    vectors = dict.fromkeys(CONTEXT.roster, np.zeros(4, np.uint32))
    exchange = Exchange(CONTEXT, vectors)
    texts = []
    for step in Exchange.STEPS:
        secrets = secrets_of(exchange)
        exchange.answer(step)
        exchange.collect(step)
        objects = [*exchange.sites.values(), exchange.server]
        held = [value for each in objects for value in vars(each).values()]
        # Answers and messages are bytes for the server, which no text should show.
        held = [value for value in held if not isinstance(value, bytes | list)]
        texts += [repr(each) for each in (*objects, *held)]
        texts += [str(each) for each in objects]
    text = "".join([*texts, caplog.text])
    assert len(secrets) == 3 * (3 + 2 * 3)
    for secret in secrets:
        assert secret.hex() not in text
        assert repr(secret)[2:-1] not in text
        assert str(int.from_bytes(secret)) not in text
    assert "PRIVATE" not in text


def test_secrets_cannot_be_pickled_or_copied():
    exchange = Exchange(CONTEXT, dict.fromkeys(CONTEXT.roster, np.zeros(4, np.uint32)))
    for each in (random_secret(), exchange.sites["site-1"]):
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(each)
        with pytest.raises(TypeError, match="pickle"):
            copy.deepcopy(each)


def test_secrets_are_dropped_after_the_last_request():
    vectors = dict.fromkeys(CONTEXT.roster, np.zeros(4, np.uint32))
    exchange = Exchange(CONTEXT, vectors)
    exchange.finish()
    for site in exchange.sites.values():
        assert (site._keys, site._seed, site._shares) == (None, None, {})
        assert site._vector is None
