"""The rules and the salt of a site's kit, and the site's refusal without them."""

import json
import re
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from fedbilevel import FedBiO
from fedbilevel.deployment.job_files import prepare_for_job
from fedbilevel.deployment.site_computation import build_answer
from fedbilevel.deployment.site_files import (
    SALT,
    read_site_files,
    write_site_files,
)
from fedbilevel.experiments.files.write import write_experiment
from fedbilevel.experiments.run_directory.layout import EXPERIMENT
from fedbilevel.experiments.schema import Experiment
from fedbilevel.federation import REHEARSAL, Failure, RefusedError, SiteRules
from fedbilevel.federation.exchange_counter import COUNT
from fedbilevel.federation.task_record import ANSWERED
from fedbilevel.federation.transport import ENROL
from fedbilevel.flare.kit_settings import CLASSES, prepare
from fedbilevel.flare.kits import review
from fedbilevel.flare.run_directory import RUNS
from fedbilevel.flare.site_check import check_site
from tests.flare.kits import site_kit

RULES = "site_rules.toml"


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """Return a site's kit after nvflare provision."""
    return site_kit(tmp_path / "site-1")


def test_a_real_site_gets_the_safe_rules_and_a_salt_of_its_own(kit):
    prepare(kit)
    rules, salt = read_site_files(kit / "local")
    assert rules == SiteRules()
    assert not rules.simulated_draws
    assert stat.S_IMODE((kit / "local" / SALT).stat().st_mode) == 0o600
    prepare(kit)
    assert read_site_files(kit / "local") == (rules, salt)
    (kit / "local" / SALT).unlink()
    prepare(kit)
    assert read_site_files(kit / "local")[1] != salt


def test_a_site_allows_our_classes_and_what_its_operator_adds(kit):
    allowed = {"class_allow_list": ["loads.Tables"], "class_list_enforcement_mode": ""}
    (kit / "local" / "resources.json.default").write_text(json.dumps(allowed))
    prepare(kit)
    file = kit / "local" / "resources.json"
    written = json.loads(file.read_text())
    assert written["class_allow_list"] == list(CLASSES)
    assert written["class_list_enforcement_mode"] == "enforce"
    written["class_allow_list"].append("loads.Tables")
    file.write_text(json.dumps(written))
    prepare(kit)
    allowed = json.loads(file.read_text())["class_allow_list"]
    assert allowed == [*CLASSES, "loads.Tables"]


def test_an_operator_edits_the_rules(kit):
    prepare(kit)
    file = kit / "local" / RULES
    file.write_text(file.read_text().replace("= 128", "= 256"))
    prepare(kit)
    rules, _ = read_site_files(kit / "local")
    assert rules == SiteRules(smallest_batch=256, fewest_examples=256)


def test_rules_survive_the_file(tmp_path):
    write_site_files(tmp_path, REHEARSAL)
    assert read_site_files(tmp_path)[0] == REHEARSAL


def test_a_number_may_be_written_without_decimals(kit):
    prepare(kit)
    (kit / "local" / RULES).write_text("smallest_example_noise = 2")
    assert read_site_files(kit / "local")[0] == SiteRules(smallest_example_noise=2.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("smallest_batch = ", "is not TOML"),
        ("smalest_batch = 1", "'smalest_batch', which is not a rule"),
        ("smallest_batch = 0", "smallest_batch is 0; give an integer"),
        ("smallest_batch = 1.0", "smallest_batch is 1.0; give an integer"),
        ("smallest_batch = true", "smallest_batch is True; give an integer"),
        ("simulated_draws = 1", "simulated_draws is 1; give true or false"),
        ("most_rollbacks = -1", "at least 0"),
        ("most_second_sums = -1", "most_second_sums is -1; give an integer of at"),
        ("largest_epsilon = 0", "largest_epsilon is 0 .* above 0"),
        ("largest_epsilon = nan", "largest_epsilon is nan; give a number"),
        ("delta = 1", "delta is 1; give .* below 1"),
        ("largest_epsilon = 1\nsimulated_draws = true", "the server knows the noise"),
        (
            "smallest_example_noise = -1",
            "smallest_example_noise is -1.0; give a number of at least 0",
        ),
        (
            "smallest_example_noise = nan",
            "smallest_example_noise is nan; give a number of at least 0",
        ),
        (
            "smallest_example_noise = true",
            "smallest_example_noise is True; give a number",
        ),
        (
            "smallest_example_noise = 1\nsimulated_draws = true",
            "the server knows the noise",
        ),
    ],
)
def test_mistakes_in_the_rules_are_refused(kit, text, message):
    prepare(kit)
    (kit / "local" / RULES).write_text(text)
    with pytest.raises(RefusedError, match=message):
        read_site_files(kit / "local")


def test_a_salt_that_others_can_read_or_that_is_short_is_refused(kit):
    prepare(kit)
    salt = kit / "local" / SALT
    salt.chmod(0o640)
    with pytest.raises(RefusedError, match="can be read by other users"):
        read_site_files(kit / "local")
    salt.chmod(0o600)
    salt.write_text("abcd")
    with pytest.raises(RefusedError, match="does not contain 32 bytes"):
        read_site_files(kit / "local")


def enrolment(kit: Path, experiment: Experiment, run: str = "first") -> bytes | str:
    """Return the reason or the enrolment of a kit's site."""
    job = kit / "job"
    job.mkdir(exist_ok=True)
    write_experiment(prepare_for_job(experiment), job / EXPERIMENT)
    home = kit / RUNS / "owner" / run
    reply = build_answer("site-1", home, job, job, kit, kit / RUNS)(ENROL)
    return Failure.decode(reply).reason if isinstance(reply, str) else reply


SMALL = Experiment(FedBiO(0.1))


@pytest.mark.slow
def test_a_site_refuses_to_enrol_and_names_the_setting(kit):
    assert "no local/site_rules.toml; ask its operator" in str(enrolment(kit, SMALL))
    prepare(kit)
    assert "could not begin: the site has 37 upper examples" in str(
        enrolment(kit, SMALL)
    )
    lenient = replace(SiteRules(), fewest_examples=37)
    (kit / "local" / RULES).unlink()
    prepare(kit, lenient)
    assert enrolment(kit, SMALL) == (
        "could not begin: the algorithm draws batches of 1, but the site's rules "
        "require at least 128. Set batch_size (and initial_batch_size, if there is "
        "one) of [algorithm] to 128 or more, or ask the site's operator to lower "
        "smallest_batch in local/site_rules.toml"
    )
    large = Experiment(FedBiO(0.1, batch_size=128))
    assert json.loads(enrolment(kit, large))["lower_size"] == 143


@pytest.mark.slow
def test_a_run_that_the_site_could_not_answer_to_its_end_is_refused_at_once(kit):
    rules = replace(REHEARSAL, most_exchanges=100)
    prepare(kit, rules)
    runs = kit / RUNS
    runs.mkdir()
    (runs / COUNT).write_text("other 0 0\n" * 60)
    assert enrolment(kit, replace(SMALL, rounds=60)) == (
        "could not begin: the run has 60 more exchanges, but the site answers 40 more "
        "(most_exchanges = 100 in its local/site_rules.toml, for all runs together). "
        "Set fewer rounds, or ask its operator to raise most_exchanges"
    )
    # Repeated tasks of this run do not count again.
    home = runs / "owner" / "begun"
    home.mkdir(parents=True)
    (home / ANSWERED).write_text("".join(f"{n} 0 aa\n" for n in range(20)))
    assert json.loads(enrolment(kit, replace(SMALL, rounds=60), "begun"))


@pytest.mark.slow
def test_an_operator_checks_a_site_before_the_first_job(kit, tmp_path):
    prepare(kit)
    file = tmp_path / "digits.toml"
    file.write_text('rounds = 30\n[algorithm]\nname = "FedBiO"\nlearning_rate = 0.1\n')
    with pytest.raises(ValueError, match="site-1 would refuse: the site has 37 "):
        check_site(kit, file, "site-1")
    with pytest.raises(
        ValueError, match=r"site-9 is not a site of .* sites are site-1"
    ):
        check_site(kit, file, "site-9")
    (kit / "local" / RULES).unlink()
    prepare(kit, REHEARSAL)
    message = "site-1 can participate with 37 upper and 143 lower examples"
    assert check_site(kit, file, "site-1") == message
    assert not (kit / RUNS / COUNT).exists()


@pytest.mark.slow
def test_the_check_of_a_site_prints_its_epsilon(kit, tmp_path):
    rules = SiteRules(fewest_examples=37, most_exchanges=3000, largest_epsilon=1.0)
    prepare(kit, rules)
    file = tmp_path / "digits.toml"

    def check(rounds):
        file.write_text(
            f"rounds = {rounds}\n"
            '[algorithm]\nname = "FedBiO"\nlearning_rate = 0.1\nbatch_size = 4\n'
            "[transforms]\nexample_clip = 1.0\nexample_noise = 4.0\n"
        )
        return check_site(kit, file, "site-1")

    assert re.fullmatch(
        "site-1 can participate with 37 upper and 143 lower examples; the run spends "
        r"ε = (\d\.\d+) by example at δ = 1e-05 there, earlier runs have spent 0, and "
        r"both together \1 \(largest_epsilon = 1\)",
        check(3),
    )
    with pytest.raises(
        ValueError, match=r"refuse: the run would spend ε = .* allow 1 "
    ):
        check(3000)


@pytest.mark.parametrize("lacks", ["resources.json", "authorization.json"])
def test_another_folder_is_no_kit_and_stays_as_it_was(kit, lacks):
    (kit / "local" / f"{lacks}.default").unlink()
    before = sorted(kit.rglob("*"))
    problem = kit.parent / "problem.py"
    problem.write_text("")
    for act in (prepare, lambda kit: review(kit, problem)):
        with pytest.raises(ValueError, match=f"local/{lacks}.default is missing. Give"):
            act(kit)
    assert sorted(kit.rglob("*")) == before


@pytest.mark.slow
def test_a_rehearsal_answers_what_a_simulation_would(kit):
    prepare(kit, REHEARSAL)
    assert json.loads(enrolment(kit, SMALL))["lower_size"] == 143
