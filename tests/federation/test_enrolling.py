"""A site that cannot participate ends a new run, but not a run that has begun."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from fedbilevel import LocalExamples
from fedbilevel.federation import Enrolment, Failure, FailureCause, Reply, enrol

SITES = "east", "north", "west"
HELD = LocalExamples(upper=np.ones((3, 2)), lower=np.ones((8, 2)))
FITS = Enrolment.of(HELD).encode()
OTHERS = Enrolment.of(HELD._replace(lower=np.ones((8, 5)))).encode()
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
        seconds=9.0,
        at_least=quorum,
        quorum=quorum,
    )


@pytest.mark.parametrize("bad", [REFUSAL, OTHERS], ids=["refuses", "other examples"])
def test_a_run_does_not_begin_with_a_site_that_cannot_take_part(tmp_path, bad):
    with pytest.raises(ValueError, match="west"):
        job(tmp_path, {"east": FITS, "north": FITS, "west": bad})


@pytest.mark.parametrize("bad", [REFUSAL, OTHERS], ids=["refuses", "other examples"])
@pytest.mark.parametrize("first", [["east", "north"], SITES], ids=["new", "known"])
def test_in_a_later_job_the_site_is_excluded_and_named(tmp_path, bad, first):
    job(tmp_path, dict.fromkeys(first, FITS))
    devices, failures = job(tmp_path, {"east": FITS, "north": FITS, "west": bad})
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
    long = Enrolment.of(HELD)._replace(upper={"a" * 10**5: "float64[2]"})
    job(tmp_path, dict.fromkeys(SITES[:2], FITS))
    sent = {"east": FITS, "north": FITS, "west": long.encode()}
    _, failures = job(tmp_path, sent)
    assert "the enrolment has 1" in failures["west"]
    assert len((tmp_path / "enrolment.json").read_text()) < 10**4


def test_who_is_away_is_named_and_one_that_was_killed_stops_nobody(tmp_path):
    killed = Failure(
        FailureCause.FAILED, "could not answer: the computation was killed"
    )
    job(tmp_path, dict.fromkeys(SITES, FITS))
    _, absent = job(tmp_path, {"north": FITS, "west": killed.encode()})
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
