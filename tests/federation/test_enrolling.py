"""A site that cannot participate ends a new run, but not a run that has begun."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from fedbilevel import LocalExamples
from fedbilevel.federation import (
    Computation,
    Enrolment,
    EnrolmentMessage,
    EnrolmentTerms,
    Failure,
    FailureCause,
    RefusedError,
    Reply,
    enrol,
)

SITES = "east", "north", "west"
HELD = LocalExamples(upper=np.ones((3, 2)), lower=np.ones((8, 2)))
OURS = Computation("JAX", "00ff", {"fedbilevel": "0.1", "jax": "0.10.1"})


def message(examples: LocalExamples = HELD, **other: Any) -> bytes:
    """Return the enrolment of a site whose computation differs in some fields."""
    return EnrolmentMessage(Enrolment.of(examples), OURS._replace(**other)).encode()


FITS = message()
OTHERS = message(HELD._replace(lower=np.ones((8, 5))))
CHANGED = message(digest="11aa")
NEWER = {"fedbilevel": "0.1", "jax": "0.11.1"}
REFUSAL = Failure(
    FailureCause.UNABLE, "could not begin: the algorithm draws batches of 1"
).encode()


class Told(NamedTuple):
    """A transport to sites with given answers."""

    replies: Mapping[str, bytes | str]

    def enrol(self, names: Sequence[str], left: Callable[[], float]) -> Iterator[Reply]:
        for name, output in self.replies.items():
            if isinstance(output, bytes):
                yield Reply(name, output)
            else:
                yield Reply(name, failure=Failure.decode(output))

    def exchange(
        self, messages: Mapping[str, bytes], left: Callable[[], float]
    ) -> Iterator[Reply]:
        raise AssertionError("nobody is asked for more")


def job(directory: Path, replies: Mapping[str, bytes | str], quorum: int = 2):
    """Enrol sites with given answers; return the devices and the absent sites."""
    return enrol(
        Told(replies),
        SITES,
        HELD,
        directory,
        computation=OURS,
        terms=EnrolmentTerms(9.0, at_least=quorum, quorum=quorum),
    )


@pytest.mark.parametrize(
    "bad",
    [REFUSAL, OTHERS, CHANGED, Enrolment.of(HELD).encode()],
    ids=["refuses", "other examples", "other programs", "older package"],
)
def test_a_run_does_not_begin_with_a_site_that_cannot_take_part(tmp_path, bad):
    with pytest.raises(ValueError, match="west"):
        job(tmp_path, {"east": FITS, "north": FITS, "west": bad})


@pytest.mark.parametrize(
    "bad",
    [REFUSAL, OTHERS, CHANGED],
    ids=["refuses", "other examples", "other programs"],
)
@pytest.mark.parametrize("first", [["east", "north"], SITES], ids=["new", "known"])
def test_in_a_later_job_the_site_is_excluded_and_named(tmp_path, bad, first):
    job(tmp_path, dict.fromkeys(first, FITS))
    devices, failures, _ = job(tmp_path, {"east": FITS, "north": FITS, "west": bad})
    assert devices.names == SITES
    if (bad, "west" in first) == (OTHERS, True):
        assert failures == {}  # Its first enrolment stays valid.
    else:
        assert "could not begin: " in failures["west"]
        assert len(failures) == 1


def test_a_run_that_too_many_refuse_ends_with_their_sentences(tmp_path):
    job(tmp_path, dict.fromkeys(SITES, FITS))
    with pytest.raises(ValueError, match=r"north could not begin: .*; west could not"):
        job(tmp_path, {"east": FITS, "north": REFUSAL, "west": REFUSAL})


def test_an_enrolment_that_is_too_long_is_refused(tmp_path):
    enrolment = Enrolment.of(HELD)._replace(upper={"a" * 10**5: "float64[2]"})
    long = EnrolmentMessage(enrolment, OURS)
    job(tmp_path, dict.fromkeys(SITES[:2], FITS))
    sent = {"east": FITS, "north": FITS, "west": long.encode()}
    _, failures, _ = job(tmp_path, sent)
    assert "the enrolment has 1" in failures["west"]
    assert len((tmp_path / "enrolment.json").read_text()) < 10**4


def test_who_is_away_is_named_and_one_that_was_killed_stops_nobody(tmp_path):
    killed = Failure(
        FailureCause.FAILED, "could not answer: the computation was killed"
    )
    job(tmp_path, dict.fromkeys(SITES, FITS))
    _, absent, _ = job(tmp_path, {"north": FITS, "west": killed.encode()})
    # West may be back in an exchange; east never answered.
    assert absent == {"east": "did not enrol in 9 seconds"}


@pytest.mark.parametrize(
    "cause", [FailureCause.LATE, FailureCause.NOT_AWAITED, FailureCause.UNREACHED]
)
def test_a_site_cannot_report_the_servers_causes(cause):
    reply = Failure.decode(Failure(cause, "so it claims").encode())
    assert reply == Failure(FailureCause.FAILED, "so it claims")


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ('["failed", "\\ud800"]', "\\ud800"),
        ('["failed", "' + "a" * 10**6 + '"]', "['failed', 'aaaa"),
        ("[" * 10**6, "[["),
        ('["refused", {"b": 1}]', "{'b': 1}"),
        ('["failed"]', "['failed']"),
        ('Site "west": gone', "Site 'west': gone"),
    ],
    ids=["half a character", "long", "deep", "no text", "one part", "quotes"],
)
def test_the_reason_of_a_failure_is_short_and_printable(sent, text):
    failure = Failure.decode(sent)
    assert failure.reason.startswith(text)
    assert len(failure.reason.encode()) <= 1200
    assert '"' not in failure.reason


def test_an_unexpected_reply_enrols_no_site(tmp_path):
    sent = {"stranger": FITS, "east": FITS, "north": FITS}
    with pytest.raises(RuntimeError, match="2 sites have enrolled, 3 are required"):
        job(tmp_path, sent, quorum=3)


@pytest.mark.parametrize(
    ("other", "cause"),
    [
        (
            {"digest": "11aa"},
            r"although the versions are equal \(fedbilevel 0.1, jax 0.10.1\): a file "
            "of fedbilevel, of a plug-in or of the problem was changed at one of the "
            "two. Install the same files at the site and at the server",
        ),
        (
            {"digest": "11aa", "versions": NEWER},
            r"versions: jax 0.11.1 \(server 0.10.1\). Install the server's versions",
        ),
        (
            {"losses": "PyTorch", "versions": {"fedbilevel": "0.2", "jax": "0.10.1"}},
            r"losses are those of PyTorch, .* fedbilevel 0.2 \(server 0.1\)",
        ),
    ],
    ids=["files", "versions", "PyTorch"],
)
def test_a_site_that_computes_something_else_is_refused_with_cause_and_cure(
    tmp_path, other, cause
):
    with pytest.raises(ValueError, match=f"west could not begin: .*{cause}"):
        job(tmp_path, {"east": FITS, "north": FITS, "west": message(**other)})


@pytest.mark.parametrize(
    ("other", "warning"),
    [
        ({"versions": NEWER}, "with other versions: jax 0.11.1 (server 0.10.1)"),
        ({"losses": "PyTorch", "digest": "11aa"}, "nobody has compared"),
    ],
    ids=["versions", "PyTorch"],
)
def test_a_site_whose_versions_differ_is_named_and_participates(
    tmp_path, other, warning
):
    sent = {"east": FITS, "north": FITS, "west": message(**other)}
    devices, absent, warnings = job(tmp_path, sent)
    assert (devices.names, absent) == (SITES, {})
    assert list(warnings) == ["west"]
    assert warning in warnings["west"]


@pytest.mark.parametrize(
    "computation",
    [
        None,
        {},
        {"losses": "TensorFlow", "digest": "00ff", "versions": {}},
        {"losses": [], "digest": "00ff", "versions": {}},
        {"losses": "JAX", "digest": 7, "versions": {}},
        {"losses": "JAX", "digest": "00ff", "versions": {"jax": "1" * 99}},
        {
            "losses": "JAX",
            "digest": "00ff",
            "versions": {str(n): "" for n in range(99)},
        },
    ],
)
def test_a_site_that_does_not_say_what_it_computes_is_not_enrolled(
    tmp_path, computation
):
    enrolment = json.loads(Enrolment.of(HELD).encode())
    bad = json.dumps({**enrolment, "computation": computation}).encode()
    job(tmp_path, dict.fromkeys(SITES, FITS))
    job(tmp_path, {"east": FITS, "north": FITS, "west": bad})
    with pytest.raises(RefusedError, match="does not say what the site computes"):
        EnrolmentMessage.decode(bad)
