"""What answers the server at a site: an experiment's model, the site's own examples."""

from pathlib import Path

from fedbilevel.deployment.job_files import arrived
from fedbilevel.deployment.local_code import UnknownCodeError
from fedbilevel.deployment.site_files import read_site_files
from fedbilevel.experiments.federation import load_site, sites_of
from fedbilevel.federation.enrolment import Enrolment
from fedbilevel.federation.exchange_counter import ExchangeCounter
from fedbilevel.federation.site import Site
from fedbilevel.federation.transport import ENROL, Cause, Failure, RefusedError
from fedbilevel.federation.worker.child import Answer


def answering(
    site: str, home: Path, configuration: Path, code: Path, kit: Path, answers: Path
) -> Answer:
    """Return what answers messages at a site; called in the computation's process.

    Args:
        site: its name.
        home: what the site keeps of the run beyond a job.
        configuration: the directory of the job's configuration.
        code: the directory of the job's code.
        kit: the site's, with the rules that its operator has set.
        answers: the directory in which all runs of the kit count what they answered.

    Example:
        >>> import tempfile
        >>> kit = Path(tempfile.mkdtemp())
        >>> Failure.decode(answering("a", kit, kit, kit, kit, kit)(ENROL)).cause
        <Cause.UNABLE: 'unable'>
    """
    try:
        rules, salt = read_site_files(kit / "local")
        experiment = arrived(configuration, code, kit)
    except (RefusedError, UnknownCodeError) as error:
        return _unable(error)
    model, examples = load_site(experiment, site)
    enrolment = Enrolment.of(examples)
    # What does not fit cannot be computed; the server says so of what is told of it.
    if enrolment[:2] != Enrolment.of(model.form)[:2]:
        misfit = RefusedError("the site's examples do not fit the model").failure
        return lambda message: (
            enrolment.encode() if message == ENROL else misfit.encode()
        )
    try:
        device = Site(
            sites_of(experiment).index(site),
            model.problem,
            experiment.federated_algorithm,
            examples,
            model.x,
            model.y,
            directory=home.parent,
            rules=rules,
            salt=salt,
            run=home.name,
            answers=ExchangeCounter(answers),
        )
        device.require_left(experiment.rounds)
    except RefusedError as error:
        return _unable(error)
    device.warm_up()

    def answer(message: bytes) -> bytes | str:
        if message == ENROL:
            return enrolment.encode()
        try:
            return device.answer(message)
        except RefusedError as error:
            return error.failure.encode()

    return answer


def _unable(error: Exception) -> Answer:
    """Return what a site answers that cannot take part; the words are the job's own."""
    failure = Failure(Cause.UNABLE, f"could not begin: {error}").encode()
    return lambda message: failure
