"""A check of a site before the first job: whether the site could participate."""

from importlib.util import find_spec
from math import isfinite
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
        A sentence with the site's numbers of examples. If the experiment has noise by
        example, also the ε that it spends at this site.

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
                form=model.form,
                rules=rules,
                salt=salt,
                run="check",
                answers=ExchangeCounter(kit / RUNS),
                identity=load_identity(kit, site) if secure else None,
                roster=names,
            )
            device.require_exchanges(experiment.rounds)
            device.require_timeout(experiment.federation.timeout)
            epsilon = None
            # Without the rule a site needs no library of privacy.
            if isfinite(rules.largest_epsilon) or find_spec("dp_accounting"):
                epsilon = device.require_epsilon(experiment.rounds)
    except RefusedError as error:
        raise ValueError(f"{site} would refuse: {error}.") from None
    answer = (
        f"{site} can participate with {enrolment.upper_size} upper and "
        f"{enrolment.lower_size} lower examples"
    )
    if epsilon is None:
        return answer
    return (
        f"{answer}; the run spends ε = {epsilon.run:.4g} by example at δ = "
        f"{epsilon.delta:g} there, earlier runs have spent {epsilon.earlier:.4g}, and "
        f"both together {epsilon.together:.4g} (largest_epsilon = "
        f"{rules.largest_epsilon:g})"
    )
