"""The parts of an experiment on the server and on the sites of a federation."""

import re
from collections.abc import Sequence

from fedbilevel.data.devices import LocalExamples
from fedbilevel.data.weights import given_names
from fedbilevel.experiments.build import build_task
from fedbilevel.experiments.custom_problem import custom_examples, custom_model
from fedbilevel.experiments.schema import CustomProblem, Experiment
from fedbilevel.plurals import count_noun, there_are
from fedbilevel.problems.task import Model

NORM_LIMIT = 1e6
DISTANCE_LIMIT = 10.0
"""Default limits of uploads in a federation, because sites are not trusted."""
SITE_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")
"""Names that NVIDIA FLARE accepts for a site; a certificate has room for 64 letters."""
RESERVED = {"server", "localhost"}
"""Names of NVIDIA FLARE's server."""


def sites_of(experiment: Experiment) -> tuple[str, ...]:
    """Return the names of the sites, in the order of device numbers.

    By default these are the names of the devices if NVIDIA FLARE accepts all of them as
    names of sites, such as the states of a data set; otherwise site-1, site-2 and so
    on.

    Raises:
        ValueError: if the sites do not match the devices of the experiment.

    Example:
        >>> from fedbilevel import FedBiO
        >>> sites_of(Experiment(FedBiO(0.1)))[:2]
        ('site-1', 'site-2')
    """
    sites = experiment.federation.sites
    if isinstance(experiment.problem, CustomProblem):
        if sites is None:
            raise ValueError(
                "federation.sites is missing, and a custom problem requires it; give "
                "the names of the sites, for each of which examples(site) of "
                f"{experiment.problem.file} is called."
            )
        return _check_sites(experiment, sites)
    count, names = experiment.partition.devices, None
    if experiment.partition.has_sites or experiment.brings_data:
        devices = build_task(experiment).devices
        count, names = devices.device_count, names_for_sites(given_names(devices))
    if sites is not None and len(sites) != count:
        raise ValueError(
            f"federation.sites has {count_noun(len(sites), 'name')}, but the examples "
            f"are split over {count_noun(count, 'device')}; make the two numbers equal."
        )
    sites = sites or names or tuple(f"site-{number + 1}" for number in range(count))
    return _check_sites(experiment, sites)


def names_for_sites(names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return names of devices if they are also valid names of sites; None otherwise.

    A site's name is also that of its certificate and of its kit's directory.

    Example:
        >>> names_for_sites(("Maine", "New-York"))
        ('Maine', 'New-York')
        >>> names_for_sites(("Maine", "New York")) is None
        True
    """
    if names is None or not all(map(SITE_NAME.fullmatch, names)):
        return None
    distinct = {name.lower() for name in names} - RESERVED
    return tuple(names) if len(distinct) == len(names) else None


def _check_sites(experiment: Experiment, sites: tuple[str, ...]) -> tuple[str, ...]:
    if experiment.federation.quorum > len(sites):
        raise ValueError(
            f"federation.quorum is {experiment.federation.quorum}, but "
            f"{there_are(len(sites), 'site')}; give at most {len(sites)}."
        )
    if experiment.weight_by_size and experiment.size_limit is None:
        raise ValueError(
            "weight_by_size is true and size_limit is missing: a site could report any "
            "size; give size_limit, the largest number of examples that counts."
        )
    return sites


def model_of(experiment: Experiment) -> Model:
    """Return the model of the server: problem, starting point and metrics.

    Example:
        >>> from fedbilevel import FedBiO
        >>> sorted(model_of(Experiment(FedBiO(0.1))).metrics)
        ['accuracy']
    """
    if isinstance(experiment.problem, CustomProblem):
        return custom_model(experiment.problem.file)
    return Model.of(build_task(experiment))


def load_site(experiment: Experiment, site: str) -> tuple[Model, LocalExamples]:
    """Return the model and the examples of a site.

    The file of a custom problem defines both. The examples of a ready-made problem are
    split over sites as over the devices of a simulation.

    Example:
        >>> from fedbilevel import FedBiO
        >>> _, examples = load_site(Experiment(FedBiO(0.1)), "site-1")
        >>> len(examples.lower.labels)
        143
    """
    if isinstance(experiment.problem, CustomProblem):
        file = experiment.problem.file
        return custom_model(file), custom_examples(file, site)
    task = build_task(experiment)
    return Model.of(task), task.devices.local(sites_of(experiment).index(site))
