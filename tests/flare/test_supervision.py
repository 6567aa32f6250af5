"""The submitter's records of a run, and its timeout for the server."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedbilevel import Costs, FedBiO
from fedbilevel.deployment.job_files import prepare_for_job
from fedbilevel.deployment.server_report import ServerReport
from fedbilevel.experiments.run_directory.layout import SOLUTION
from fedbilevel.experiments.schema import Experiment, FederationSettings, Partition
from fedbilevel.flare import supervision as module
from fedbilevel.flare.administrator import Administrator
from fedbilevel.flare.supervision import FederationError, Supervision
from fedbilevel.tracking.records import Journal, Record, read_records
from tests.flare.scripted import Job, ScriptedServer

SITES = "east", "north", "west"


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
    directory: Path, jobs: list[Job], monkeypatch, rounds: int = 3, **settings
) -> tuple[ScriptedServer, list[str]]:
    """Run scripted jobs to the end; return the server and the messages."""
    monkeypatch.setattr(module, "POLL", 0.0)
    monkeypatch.setattr(module, "CONNECT_SECONDS", 0.1)
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
        for news in Supervision(experiment, "a1", directory, server).events():
            if news.rewound is not None:
                journal.rewind(news.rewound)
            for record in news.records:
                journal.write(record)
            if news.message is not None:
                output.append(news.message)
    return server, output


def test_the_solution_of_an_earlier_job_is_not_the_result(tmp_path, monkeypatch):
    stopped = Job(records(3.0, 2.0), files={SOLUTION: "after one round"})
    whole = records(3.0, 2.0, 1.0, 0.5)
    # All rounds are measured, but the solution is not downloaded.
    lost, last = Job(whole, files=None), Job(whole, files={SOLUTION: "after all"})
    server, _ = supervised(tmp_path, [stopped, lost, last], monkeypatch)
    assert server.submitted == 3
    assert (tmp_path / SOLUTION).read_text() == "after all"


def test_a_site_that_refuses_jobs_is_suspended_with_its_reason(tmp_path, monkeypatch):
    whole = records(3.0, 2.0, 1.0, 0.5)
    refused = {"west": "not authorized"}
    last = Job(whole, files={SOLUTION: "all"}, refusals=refused)
    server, output = supervised(tmp_path, [last], monkeypatch)
    assert server.submitted == 1
    (reply,) = [item for item in output if item.startswith("west: ")]
    assert reply.startswith("west: refused the job: not authorized; suspended for")


@pytest.mark.parametrize("answers", [0, 2])
def test_a_job_that_too_few_sites_take_ends_the_run_with_their_sentences(
    tmp_path, monkeypatch, answers
):
    refused = dict.fromkeys(["east", "west"], "not authorized")
    job = Job(refusals=refused, answers=answers, status="FINISHED:FAILED_TO_RUN")
    text = "quorum=2 sites accepted the job: east refused the job: not authorized; w"
    with pytest.raises(FederationError, match=text):
        supervised(tmp_path, [job], monkeypatch)


def test_a_site_that_did_not_answer_is_contacted_again(tmp_path, monkeypatch):
    silent = dict.fromkeys(["east", "west"], "no reply (deployment timeout)")
    first = Job(refusals=silent, answers=0, status="FINISHED:FAILED_TO_RUN")
    last = Job(records(3.0, 2.0, 1.0, 0.5), files={SOLUTION: "all"})
    server, _ = supervised(tmp_path, [first, last], monkeypatch)
    assert server.submitted == 2
