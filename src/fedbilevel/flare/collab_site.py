"""What runs at a site: it answers the server, and computes in a process of its own."""

from pathlib import Path

from nvflare.collab import collab

from fedbilevel.federation.worker.child import Answer
from fedbilevel.federation.worker.worker import Worker, WorkerError
from fedbilevel.flare.gc_control import Garbage
from fedbilevel.flare.message_limits import too_small
from fedbilevel.flare.run_directory import RUNS, home_of

ENROL = b"enrol"
BROKEN = "could not begin"
"""Words by which the server knows a site that another try would not help."""
SERVER = "server"
"""What Collab calls the server of a job."""


class CollabSite:
    """The Collab object of a site.

    Args:
        run_name: the name of the run.
        seconds: after which a computation is held for hung, and ended.

    Example:
        >>> CollabSite("a1", seconds=600.0).run_name
        'a1'
    """

    def __init__(self, run_name: str, seconds: float) -> None:
        self.run_name, self.seconds = run_name, seconds
        self._worker: Worker | None = None
        self._garbage: Garbage | None = None

    @collab.publish
    def enrol(self, needed: int) -> bytes | str:
        """Return what the site tells of its data; text says why it cannot.

        Args:
            needed: bytes of the largest message that the site must take.
        """
        reason = too_small(needed)
        return self._ask(ENROL) if reason is None else f"{BROKEN}: {reason}"

    @collab.publish
    def answer(self, message: bytes) -> bytes | str:
        """Carry out a task; return what leaves the site, or in words why nothing."""
        return self._ask(message)

    @collab.final
    def close(self) -> None:
        """End the computation's process."""
        if self._worker is not None:
            self._worker.close()

    def _ask(self, message: bytes) -> bytes | str:
        # All of a job's sites could call: each other's data are none of their business.
        if collab.caller != SERVER:
            return "refused: only the server may ask"
        if self._worker is None:
            workspace, job = collab.workspace, collab.fl_ctx.get_job_id()
            self._worker = Worker(
                made,
                collab.site_name,
                home_of(self.run_name, workspace, job),
                Path(workspace.get_app_config_dir(job)),
                Path(workspace.get_app_custom_dir(job)),
                Path(workspace.get_root_dir()),
            )
        if self._garbage is None:
            self._garbage = Garbage()
        self._garbage.collect()
        try:
            return self._worker.ask(message, self.seconds)
        except WorkerError as error:
            if self._worker.is_closed:
                # Nothing of the site's own, but the end of the job.
                raise
            # What an exception says may be about data, and stays in the console: the
            # software's logs may be sent to the server.
            return f"could not answer: {error.summary}; its console says more"


def made(site: str, home: Path, configuration: Path, code: Path, kit: Path) -> Answer:
    """Return what answers messages at a site; called in the computation's process.

    Args:
        site: its name.
        home: what the site keeps of the run beyond a job.
        configuration: the folder of the job's configuration.
        code: the folder of the job's code.
        kit: the site's, with the rules that its operator has set.

    Example:
        >>> made.__name__
        'made'
    """
    # Here, as the process that waits for answers needs none of it.
    from fedbilevel.experiments.federating import known_at, sites_of
    from fedbilevel.federation.answer_count import AnswerCount
    from fedbilevel.federation.enrolment import Enrolment
    from fedbilevel.federation.site import Site
    from fedbilevel.federation.wire_format import RefusedError
    from fedbilevel.flare.job_files import arrived
    from fedbilevel.flare.reviewed import UnreviewedError
    from fedbilevel.flare.site_files import read_site_files

    try:
        rules, salt = read_site_files(kit / "local")
        experiment = arrived(configuration, code, kit)
    except RefusedError as error:
        return _refusing(error)
    except UnreviewedError as error:
        # Another try would not help; and these words are the job's own.
        refusal = f"could not begin: {error}"
        return lambda message: refusal
    model, examples = known_at(experiment, site)
    enrolment = Enrolment.of(examples)
    # What does not fit cannot be computed; the server says so of what is told of it.
    if enrolment[:2] != Enrolment.of(model.form)[:2]:
        return lambda message: (
            enrolment.encode().encode()
            if message == ENROL
            else "refused: the site's examples do not fit the model"
        )
    try:
        device = Site(
            sites_of(experiment).index(site),
            model.problem,
            experiment.federated_algorithm,
            examples,
            model.x,
            model.y,
            folder=home.parent,
            rules=rules,
            salt=salt,
            run=home.name,
            answers=AnswerCount(kit / RUNS),
        )
        device.require_left(experiment.rounds)
    except RefusedError as error:
        return _refusing(error)
    device.warm_up()

    def answer(message: bytes) -> bytes | str:
        if message == ENROL:
            return enrolment.encode().encode()
        try:
            return device.answer(message)
        except RefusedError as error:
            return f"refused: {error}"

    return answer


def _refusing(error: Exception) -> Answer:
    """Return what a site answers whose rules forbid to take part."""
    reason = f"{BROKEN}: {error}"
    return lambda message: reason
