"""An experiment seen from the server of a federation, and from a site."""

from fedbilevel.data.devices import LocalExamples
from fedbilevel.experiments.build import build_task
from fedbilevel.experiments.custom_problem import custom_examples, custom_model
from fedbilevel.experiments.schema import CustomProblem, Experiment
from fedbilevel.problems.task import Model

NORM_LIMIT = 1e6
DISTANCE_LIMIT = 10.0
"""Of uploads in a federation, where an experiment has none: sites are not trusted."""


def sites_of(experiment: Experiment) -> tuple[str, ...]:
    """Return the names of the sites, in the order of device numbers.

    Raises:
        ValueError: if they do not fit the experiment's devices.

    Example:
        >>> from fedbilevel import FedBiO
        >>> sites_of(Experiment(FedBiO(0.1)))[:2]
        ('site-1', 'site-2')
    """
    named = experiment.federation.sites
    if isinstance(experiment.problem, CustomProblem):
        if named is None:
            raise ValueError(
                "federation.sites is missing: name the sites, for each of which "
                "examples(site) of the problem's file is called."
            )
        return _checked(experiment, named)
    count = experiment.partition.devices
    if experiment.partition.natural or experiment.brings_data:
        count = build_task(experiment).devices.device_count
    if named is not None and len(named) != count:
        raise ValueError(
            f"federation.sites names {len(named)} sites, but the examples are dealt "
            f"to {count} devices; let both be as many."
        )
    named = named or tuple(f"site-{number + 1}" for number in range(count))
    return _checked(experiment, named)


def _checked(experiment: Experiment, named: tuple[str, ...]) -> tuple[str, ...]:
    if experiment.federation.quorum > len(named):
        raise ValueError(
            f"federation.quorum is {experiment.federation.quorum}, but there are "
            f"{len(named)} sites; give at most that."
        )
    if experiment.weight_by_size and experiment.size_limit is None:
        raise ValueError(
            "weight_by_size lets a site claim how much it counts; give size_limit, the "
            "most examples that any site counts for."
        )
    return named


def model_of(experiment: Experiment) -> Model:
    """Return what the server knows.

    Example:
        >>> from fedbilevel import FedBiO
        >>> sorted(model_of(Experiment(FedBiO(0.1))).metrics)
        ['accuracy']
    """
    if isinstance(experiment.problem, CustomProblem):
        return custom_model(experiment.problem.file)
    return Model.of(build_task(experiment))


def load_site(experiment: Experiment, site: str) -> tuple[Model, LocalExamples]:
    """Return what a site knows, and what it holds.

    For a problem of your own its file says so; a ready-made one is dealt to sites as it
    would be to the devices of a simulation.

    Example:
        >>> from fedbilevel import FedBiO
        >>> _, held = load_site(Experiment(FedBiO(0.1)), "site-1")
        >>> len(held.lower.labels)
        143
    """
    if isinstance(experiment.problem, CustomProblem):
        file = experiment.problem.file
        return custom_model(file), custom_examples(file, site)
    task = build_task(experiment)
    return Model.of(task), task.devices.local(sites_of(experiment).index(site))
