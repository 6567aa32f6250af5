"""Who cannot take part ends a run as it begins; later it is left out and named."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from fedbilevel import LocalExamples
from fedbilevel.federation import Enrolment, Reply
from fedbilevel.flare.enrolling import enrolled
from fedbilevel.flare.site_failures import failures_in
from fedbilevel.flare.transport import Calls

SITES = "east", "north", "west"
HELD = LocalExamples(upper=np.ones((3, 2)), lower=np.ones((8, 2)))
FITS = Enrolment.of(HELD).encode().encode()
OTHERS = Enrolment.of(HELD._replace(lower=np.ones((8, 5)))).encode().encode()
REFUSAL = "could not begin: the algorithm draws batches of 1"


def job(folder: Path, replies: Mapping[str, bytes | str], quorum: int = 2):
    """Enrol sites that answer so; return all, and who is left out of the job."""
    number = len(list(folder.glob("job-*")))
    calls = Calls(folder / f"job-{number}")
    calls._job.mkdir()

    def make(call, to, left):
        for name, said in replies.items():
            if isinstance(said, bytes):
                yield Reply(name, said)
            else:
                yield Reply(name, failure=said)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "make", make)
        patch.setattr(calls, "present", lambda: set(replies))
        devices = enrolled(SITES, HELD, folder, calls, 9.0, quorum, 0, quorum)
    return devices, failures_in(calls._job)


@pytest.mark.parametrize("bad", [REFUSAL, OTHERS], ids=["refuses", "other examples"])
def test_a_run_does_not_begin_with_a_site_that_cannot_take_part(tmp_path, bad):
    with pytest.raises(ValueError, match="west"):
        job(tmp_path, {"east": FITS, "north": FITS, "west": bad})


@pytest.mark.parametrize("bad", [REFUSAL, OTHERS], ids=["refuses", "other examples"])
@pytest.mark.parametrize("first", [["east", "north"], SITES], ids=["new", "known"])
def test_in_a_later_job_such_a_site_is_left_out_and_named(tmp_path, bad, first):
    job(tmp_path, dict.fromkeys(first, FITS))
    devices, failures = job(tmp_path, {"east": FITS, "north": FITS, "west": bad})
    assert devices.names == SITES
    if (bad, "west" in first) == (OTHERS, True):
        assert failures == {}  # what it told at first holds
    else:
        assert "could not begin: " in failures["west"]
        assert len(failures) == 1


def test_a_run_that_too_many_refuse_ends_with_their_sentences(tmp_path):
    job(tmp_path, dict.fromkeys(SITES, FITS))
    with pytest.raises(ValueError, match=r"north could not begin: .*; west could not"):
        job(tmp_path, {"east": FITS, "north": REFUSAL, "west": REFUSAL})


def test_an_enrolment_that_is_too_long_is_refused_before_it_is_kept(tmp_path):
    long = Enrolment.of(HELD)._replace(upper={"a" * 10**5: "float64[2]"})
    job(tmp_path, dict.fromkeys(SITES[:2], FITS))
    sent = {"east": FITS, "north": FITS, "west": long.encode().encode()}
    _, failures = job(tmp_path, sent)
    assert "it is no enrolment: it has 1" in failures["west"]
    assert len((tmp_path / "enrolment.json").read_text()) < 10**4
