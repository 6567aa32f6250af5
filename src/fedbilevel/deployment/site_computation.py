"""The computation of a site: the experiment's model with the site's examples."""

from math import isfinite
from pathlib import Path

from fedbilevel.deployment.job_files import read_job_experiment
from fedbilevel.deployment.local_code import UnknownCodeError
from fedbilevel.deployment.site_files import load_identity, read_site_files
from fedbilevel.experiments.federation import load_site, sites_of
from fedbilevel.federation.computation import Computation, EnrolmentMessage
from fedbilevel.federation.enrolment import Enrolment
from fedbilevel.federation.exchange_counter import ExchangeCounter
from fedbilevel.federation.site import Site
from fedbilevel.federation.transport import ENROL, Failure, FailureCause, RefusedError
from fedbilevel.federation.worker.child import Answer


def build_answer(
    site: str,
    directory: Path,
    configuration: Path,
    code: Path,
    kit: Path,
    answers: Path,
) -> Answer:
    """Return the function that answers messages; called in a site's worker process.

    Args:
        site: name of the site.
        directory: run directory of the site, which outlives jobs.
        configuration: directory of the job's configuration.
        code: directory of the job's code.
        kit: kit of the site, with its operator's rules.
        answers: directory of the counter of answered exchanges of all runs.

    Example:
        >>> import tempfile
        >>> kit = Path(tempfile.mkdtemp())
        >>> Failure.decode(build_answer("a", kit, kit, kit, kit, kit)(ENROL)).cause
        <FailureCause.UNABLE: 'unable'>
    """
    try:
        rules, salt = read_site_files(kit / "local")
        experiment = read_job_experiment(configuration, code, kit)
        secure = experiment.federation.secure_sums
        identity = load_identity(kit, site) if secure else None
    except (RefusedError, UnknownCodeError) as error:
        return _unable(error)
    model, examples = load_site(experiment, site)
    enrolment = Enrolment.of(examples)
    algorithm = experiment.federated_algorithm
    # The site enrols nevertheless: the server reports the shapes that do not fit.
    if enrolment.misfits(model.form):
        misfit = RefusedError(
            "the site's examples do not have the shapes that the model expects"
        ).failure
        computation = Computation.of(
            model.problem, algorithm, model.form, model.x, model.y
        )
        sent = EnrolmentMessage(enrolment, computation).encode()
        return lambda message: sent if message == ENROL else misfit.encode()
    try:
        device = Site(
            sites_of(experiment).index(site),
            model.problem,
            algorithm,
            examples,
            model.x,
            model.y,
            directory=directory.parent,
            form=model.form,
            rules=rules,
            salt=salt,
            run=directory.name,
            answers=ExchangeCounter(answers),
            identity=identity,
            roster=sites_of(experiment),
        )
        device.require_exchanges(experiment.rounds)
        device.require_timeout(experiment.federation.timeout)
        # Without the rule a site needs no library of privacy.
        if isfinite(rules.largest_epsilon):
            device.require_epsilon(experiment.rounds)
        device.warm_up()
    except RefusedError as error:
        return _unable(error)

    def answer(message: bytes) -> bytes | str:
        if message == ENROL:
            return device.enrol()
        try:
            return device.answer(message)
        except RefusedError as error:
            return error.failure.encode()

    return answer


def _unable(error: Exception) -> Answer:
    """Return the answers of a site that cannot participate."""
    failure = Failure(FailureCause.UNABLE, f"could not begin: {error}").encode()
    return lambda message: failure
