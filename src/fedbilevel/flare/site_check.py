"""A check of a site before the first job: whether the site could participate."""

from pathlib import Path
from tempfile import TemporaryDirectory

from fedbilevel.deployment.local_code import digest_of, find_reviewed
from fedbilevel.deployment.site_files import load_identity, read_site_files
from fedbilevel.experiments.federation import load_site, sites_of
from fedbilevel.experiments.files.read import read_experiment
from fedbilevel.experiments.schema import CustomProblem
from fedbilevel.federation.enrolment import EnrolledDevices, Enrolment
from fedbilevel.federation.exchange_counter import ExchangeCounter
from fedbilevel.federation.site import Site
from fedbilevel.federation.transport import RefusedError
from fedbilevel.flare.kits import require_kit
from fedbilevel.flare.run_directory import RUNS


def check_site(kit: Path, file: Path, site: str) -> str:
    """Run a site's enrolment with its data, and send nothing.

    Args:
        kit: Startup kit of the site, prepared.
        file: Experiment file that will be submitted, next to its problem file, which is
            executed here.
        site: Name of the site.

    Returns:
        A sentence with the site's numbers of examples.

    Raises:
        ValueError: If the site would refuse to participate, or cannot load its data.

    Example:
        >>> from tempfile import mkdtemp
        >>> from fedbilevel.flare.provisioning import provision_kits
        >>> directory = Path(mkdtemp())
        >>> kit = provision_kits(directory, ["site-1"]).sites["site-1"]
        >>> _ = (directory / "digits.toml").write_text('''
        ... rounds = 10
        ... [algorithm]
        ... name = "auto"
        ... [partition]
        ... devices = 1
        ... ''')
        >>> check_site(kit, directory / "digits.toml", "site-1")
        'site-1 can participate with 287 upper and 1150 lower examples'
    """
    require_kit(kit)
    experiment = read_experiment(file)
    names = sites_of(experiment)
    if site not in names:
        raise ValueError(
            f"{site} is not a site of {file}, whose sites are {', '.join(names)}; give "
            "one of these names."
        )
    if experiment.federation.local_code and isinstance(
        experiment.problem, CustomProblem
    ):
        problem = experiment.problem.file
        find_reviewed(kit, problem.name, digest_of(problem))
    secure = experiment.federation.secure_sums
    model, examples = load_site(experiment, site)
    enrolment = Enrolment.of(examples)
    EnrolledDevices({site: enrolment}, model.form)
    try:
        rules, salt = read_site_files(kit / "local")
        with TemporaryDirectory() as directory:
            device = Site(
                names.index(site),
                model.problem,
                experiment.federated_algorithm,
                examples,
                model.x,
                model.y,
                directory=Path(directory),
                rules=rules,
                salt=salt,
                run="check",
                answers=ExchangeCounter(kit / RUNS),
                identity=load_identity(kit, site) if secure else None,
                roster=names,
            )
            device.require_exchanges(experiment.rounds)
    except RefusedError as error:
        raise ValueError(f"{site} would refuse: {error}.") from None
    return (
        f"{site} can participate with {enrolment.upper_size} upper and "
        f"{enrolment.lower_size} lower examples"
    )
