"""The submitter's records of a run, and its timeout for the server.

The same with real processes: `test_flare_attacks`.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedbilevel import Costs, FedBiO
from fedbilevel.deployment.job_files import prepare_for_job
from fedbilevel.deployment.server_report import ServerReport
from fedbilevel.experiments.run_directory.layout import EXCHANGES, SOLUTION
from fedbilevel.experiments.schema import Experiment, FederationSettings, Partition
from fedbilevel.federation import Exchange
from fedbilevel.flare.administrator import Administrator
from fedbilevel.flare.collab_server import NOTICES
from fedbilevel.flare.job_state import ABORTED, Abort
from fedbilevel.flare.supervision import FederationError, Supervision
from fedbilevel.tracking.records import Journal, Record, read_records
from tests.flare.scripted import Job, ScriptedServer

SITES = "east", "north", "west"
DAY = 86_400.0


class Clock:
    """A clock that passes only while the supervision sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def supervision(tmp_path: Path) -> Supervision:
    """An administrator whose server is unreachable."""
    file = tmp_path / "kit" / "startup" / "fed_admin.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"admin": {"username": "lead@north.org"}}))
    experiment = Experiment(
        FedBiO(0.1), federation=FederationSettings(connection_timeout=2.0)
    )
    directory = tmp_path / "run"
    directory.mkdir()
    return Supervision(experiment, "a1", directory, Administrator(tmp_path / "kit"))


def records(*losses: float) -> list[Record]:
    return [Record(n, 0.1, Costs(), {"loss": item}) for n, item in enumerate(losses)]


def written(directory: Path, result: list[Record]) -> None:
    with Journal(directory, first=0) as journal:
        for item in result:
            journal.write(item)


def test_a_server_that_never_answers_ends_the_command(supervision):
    with pytest.raises(FederationError, match="Start the server, and give the same"):
        for _ in supervision.events():
            pass


@pytest.mark.parametrize(
    "here",
    [[], [9.0], [3.0, 2.0, 7.0, 8.0], [3.0, 2.0, 1.0, 0.5], [3.0, 2.0, 1.0, 0.5, 0.1]],
)
def test_records_at_the_end_are_the_servers_whatever_was_here(
    supervision, tmp_path, here
):
    directory = tmp_path / "run"
    written(directory, records(*here))
    true = records(3.0, 2.0, 1.0, 0.5)
    with Journal(directory, first=100) as journal:
        for news in supervision._replace_records(true):
            if news.rewound is not None:
                journal.rewind(news.rewound)
            for record in news.records:
                journal.write(record)
    assert list(read_records(directory)) == true


def test_a_job_reports_no_void_record_of_an_earlier_job(tmp_path):
    written(tmp_path, records(3.0, 2.0, 1.0))
    reports = ServerReport(tmp_path, set, dict)
    assert reports.answer({"after": -1})["records"] == []
    reports.begin(first=1)
    result = reports.answer({"after": 0})
    assert [Record.parse(line).rounds for line in result["records"]] == [1, 2]
    assert result["first"] == 1


def test_all_deadlines_travel_with_a_job():
    request = FederationSettings(
        timeout=1.0,
        enrolment_timeout=2.0,
        evaluation_timeout=3.0,
        connection_timeout=4.0,
        kit=Path("kit"),
    )
    result = prepare_for_job(Experiment(FedBiO(0.1), federation=request)).federation
    assert replace(result, sites=None, kit=request.kit) == request
    assert result.kit is None


def test_the_first_record_is_reported_again_after_a_restart(supervision, tmp_path):
    written(tmp_path / "run", records(3.0))
    assert supervision._rewind(-1).rewound == -1
    assert supervision._measured == -1


def supervised(
    directory: Path,
    jobs: list[Job],
    rounds: int = 3,
    clock: Clock | None = None,
    **settings,
) -> tuple[ScriptedServer, list[str]]:
    """Run scripted jobs to the end; return the server and the messages."""
    clock = clock or Clock()
    request = FederationSettings(sites=SITES, **{"quorum": 2, **settings})
    experiment = Experiment(
        FedBiO(0.1),
        partition=Partition(devices=len(SITES)),
        rounds=rounds,
        federation=request,
    )
    server = ScriptedServer(SITES, jobs)
    output: list[str] = []
    with Journal(directory, first=0) as journal:
        events = Supervision(
            experiment, "a1", directory, server, clock, clock.sleep
        ).events()
        for news in events:
            if news.rewound is not None:
                journal.rewind(news.rewound)
            for record in news.records:
                journal.write(record)
            output += map(str, news.exclusions)
            if news.message is not None:
                output.append(news.message)
    return server, output


def test_the_solution_of_an_earlier_job_is_not_the_result(tmp_path):
    stopped = Job(records(3.0, 2.0), files={SOLUTION: "after one round"})
    whole = records(3.0, 2.0, 1.0, 0.5)
    # All rounds are measured, but the solution is not downloaded.
    lost, last = Job(whole, files=None), Job(whole, files={SOLUTION: "after all"})
    server, _ = supervised(tmp_path, [stopped, lost, last])
    assert server.submitted == 3
    assert (tmp_path / SOLUTION).read_text() == "after all"


def test_a_site_that_refuses_jobs_is_suspended_with_its_reason(tmp_path):
    whole = records(3.0, 2.0, 1.0, 0.5)
    refused = {"west": "not authorized"}
    last = Job(whole, files={SOLUTION: "all"}, refusals=refused)
    server, output = supervised(tmp_path, [last])
    assert server.submitted == 1
    (reply,) = [item for item in output if item.startswith("west: ")]
    assert reply.startswith("west: refused the job: not authorized; suspended for")


def test_a_warning_about_a_site_is_printed_once(tmp_path):
    warnings = {"west": "computes the same as the server, with other versions"}
    whole = records(3.0, 2.0, 1.0, 0.5)
    last = Job(whole, files={SOLUTION: "all"}, warnings=warnings, answers=5)
    _, output = supervised(tmp_path, [last])
    assert output.count(f"west: {warnings['west']}") == 1


@pytest.mark.parametrize("answers", [0, 2])
def test_a_job_that_too_few_sites_take_ends_the_run_with_their_sentences(
    tmp_path, answers
):
    refused = dict.fromkeys(["east", "west"], "not authorized")
    job = Job(refusals=refused, answers=answers, status="FINISHED:FAILED_TO_RUN")
    text = "quorum=2 sites accepted the job: east refused the job: not authorized; w"
    with pytest.raises(FederationError, match=text):
        supervised(tmp_path, [job])


def test_a_site_that_did_not_answer_is_contacted_again(tmp_path):
    silent = dict.fromkeys(["east", "west"], "no reply (deployment timeout)")
    first = Job(refusals=silent, answers=0, status="FINISHED:FAILED_TO_RUN")
    last = Job(records(3.0, 2.0, 1.0, 0.5), files={SOLUTION: "all"})
    server, _ = supervised(tmp_path, [first, last])
    assert server.submitted == 2


ABORT = Abort("admin@university.org", "2026-11-19 16:20:31 UTC")


def test_an_abort_of_an_administrator_ends_the_run(tmp_path):
    job = Job(records(3.0, 2.0), status=ABORTED, abort=ABORT)
    text = "admin@university.org aborted job 1 at 2026-11-19 16:20:31 UTC, by the clock"
    with pytest.raises(FederationError, match=text):
        supervised(tmp_path, [job])
    # The records until then are kept, and the next command submits another job.
    assert [record.rounds for record in read_records(tmp_path)] == [0, 1]
    last = Job(records(3.0, 2.0, 1.0, 0.5), files={SOLUTION: "all"})
    server, _ = supervised(tmp_path, [last])
    assert server.submitted == 1


@pytest.mark.parametrize("status", ["FINISHED:EXECUTION_EXCEPTION", ABORTED])
def test_a_job_that_a_site_ended_is_followed_by_another(tmp_path, status):
    """NVIDIA FLARE reports an abort for some failures of a site, too."""
    crashed = Job(records(3.0, 2.0), status=status)
    last = Job(records(3.0, 2.0, 1.0, 0.5), files={SOLUTION: "all"})
    server, output = supervised(tmp_path, [crashed, last])
    assert server.submitted == 2
    assert any(f"({status}); resuming from the last" in line for line in output)


AWAY = "was not connected when the job began"


def test_an_exclusion_between_two_requests_is_reported_once(tmp_path):
    exchanges = [
        Exchange(0, 0, 0.1, ["east", "north"], {"west": AWAY}, [], 9, 9),
        Exchange(1, 0, 0.1, ["east", "north"], {}, ["west"], 9, 9),
    ]
    whole = records(3.0, 2.0, 1.0, 0.5)
    last = Job(whole, files={SOLUTION: "all"}, exchanges=exchanges, answers=5)
    _, output = supervised(tmp_path, [last])
    assert output.count(f"Round 0: west is excluded: {AWAY}") == 1


def test_a_site_that_drops_out_again_is_reported_again(tmp_path):
    away = {"west": AWAY}
    exchanges = [
        Exchange(0, 0, 0.1, ["east", "north"], away, [], 9, 9),
        Exchange(1, 0, 0.1, ["east", "north"], away, [], 9, 9),
        Exchange(2, 0, 0.1, list(SITES), {}, [], 9, 9),
        Exchange(3, 0, 0.1, ["east", "north"], away, [], 9, 9),
    ]
    whole = records(3.0, 2.0, 1.0, 0.5)
    last = Job(whole, files={SOLUTION: "all"}, exchanges=exchanges, answers=5)
    _, output = supervised(tmp_path, [last])
    reported = [line for line in output if "west is excluded" in line]
    assert [line.split(":")[0] for line in reported] == ["Round 0", "Round 3"]


def test_what_the_algorithm_reports_at_the_server_reaches_the_submitter(tmp_path):
    text = "The lower problem has not been solved."
    files = {SOLUTION: "all", NOTICES: f"{text}\n"}
    _, output = supervised(tmp_path, [Job(records(3.0, 2.0, 1.0, 0.5), files=files)])
    assert output.count(f"the run: {text}") == 1


def test_exclusions_after_the_last_request_are_read_from_the_results(tmp_path):
    line = Exchange(2, 0, 0.1, ["east", "north"], {"west": AWAY}, [], 9, 9).line
    whole = records(3.0, 2.0, 1.0, 0.5)
    files = {SOLUTION: "all", EXCHANGES: f"{line}\n{line}\n{line[:20]}"}
    _, output = supervised(tmp_path, [Job(whole, files=files)])
    assert output.count(f"Round 2: west is excluded: {AWAY}") == 1


def test_only_a_first_job_requires_all_sites(tmp_path):
    counted = [Exchange(0, 0, 0.1, SITES, {}, [], 9, 9)]
    crashed = Job(exchanges=counted, status="FINISHED:EXECUTION_EXCEPTION")
    last = Job(records(3.0, 2.0, 1.0, 0.5), files={SOLUTION: "all"})
    server, _ = supervised(tmp_path, [crashed, last])
    assert server.required == [list(SITES), []]


def test_an_hour_without_a_change_takes_150_requests(tmp_path):
    """Each request is a line of the server's audit.log; there were 8,640 an hour."""
    counted = [Exchange(0, 0, 0.1, SITES, {}, [], 9, 9)]
    quiet = Job(records(3.0), answers=150, exchanges=counted)
    clock = Clock()
    with pytest.raises(FederationError, match="1 job in a row made no progress"):
        supervised(tmp_path, [quiet], clock=clock, attempts=1, timeout=3600.0)
    assert clock.now > 3600.0


@pytest.mark.parametrize("begun", [False, True])
def test_ctrl_c_in_a_long_pause_is_noticed_within_seconds(tmp_path, begun):
    counted = [Exchange(0, 0, 0.1, SITES, {}, [], 9, 9)]
    server = ScriptedServer(SITES, [Job(records(3.0), answers=500, exchanges=counted)])
    experiment = Experiment(
        FedBiO(0.1),
        partition=Partition(devices=len(SITES)),
        rounds=3,
        federation=FederationSettings(sites=SITES, timeout=3600.0),
    )
    clock = Clock()
    run = Supervision(experiment, "a1", tmp_path, server, clock, clock.sleep)
    interrupted = 1000.0 if begun else 0.0
    for _ in run.events():
        if clock.now >= interrupted and not server.is_to_stop:
            run.stop()
            interrupted = min(interrupted, clock.now) or clock.now
        if server.is_to_stop:
            break
    assert server.is_to_stop
    assert clock.now - interrupted <= 2.0


def test_a_site_that_keeps_a_job_from_beginning_is_named_then_suspended(tmp_path):
    waiting = Job(obstacle="missing required site west", answers=0)
    last = Job(records(3.0, 2.0, 1.0, 0.5), files={SOLUTION: "all"})
    clock = Clock()
    server, output = supervised(tmp_path, [waiting, last], clock=clock)
    notice = "The job has not begun yet; NVIDIA FLARE reports: missing required site "
    assert output.count(f"{notice}west.") == 1
    assert any(line.startswith("west: could not be given the job") for line in output)
    assert server.required == [list(SITES), ["east", "north"]]
    assert server.aborted == ["1", "1"]
    assert 900.0 < clock.now < 1000.0
