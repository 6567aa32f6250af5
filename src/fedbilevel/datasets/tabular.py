"""Any table as a data set: a CSV or Parquet file, a data frame, or arrays by name."""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, overload

import numpy as np
from jaxtyping import Int32

from fedbilevel.datasets.encoding import numbers_of
from fedbilevel.datasets.groups import MISSING, groups_of, texts_of
from fedbilevel.datasets.site_table import site_table
from fedbilevel.datasets.table import DataSet, GroupedDataSet
from fedbilevel.extras import needs
from fedbilevel.nearest import nearest

Columns: TypeAlias = Mapping[str, Any]

_SUFFIXES = (".csv", ".parquet")
_MOST_CLASSES = 100


@overload
def tabular(
    table: Path | str | Any,
    *,
    label: str = "label",
    by: None = None,
    features: Sequence[str] | None = None,
) -> DataSet: ...


@overload
def tabular(
    table: Path | str | Any,
    *,
    label: str = "label",
    by: str,
    features: Sequence[str] | None = None,
) -> GroupedDataSet: ...


def tabular(
    table: Path | str | Any,
    *,
    label: str = "label",
    by: str | None = None,
    features: Sequence[str] | None = None,
) -> DataSet | GroupedDataSet:
    r"""Return a table as a data set, with the values of a column as groups.

    Features are 0 or 1: numbers are encoded by the quintiles of the training rows,
    other values one by one, and missing values (empty, NA, NaN) as one more value. A
    fifth of the rows of each group, rounded down and drawn with a fixed seed, are for
    test.

    Args:
        table: path of a CSV file with a header or of a Parquet file; or columns by
            name: a data frame of pandas, a `Dataset` of the library `datasets`, or a
            dictionary of arrays.
        label: column with the class of each row; classes are numbered in the order of
            their values.
        by: column whose values are the groups, such as "state" or "hospital"; None for
            a data set without groups.
        features: columns used as features; None for all columns except `label` and
            `by`.

    Returns:
        The set: a `GroupedDataSet` with `by`, otherwise a `DataSet`.

    Raises:
        FileNotFoundError: the file does not exist.
        ImportError: the file is Parquet, and pyarrow is not installed.
        ValueError: a column is missing, a row has no label or no group, or the label is
            a measurement.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "patients.csv"
        >>> rows = [f"{age},{'yes' if age > 40 else 'no'},Ulm" for age in range(30, 50)]
        >>> _ = file.write_text("\n".join(["age,died,city", *rows]))
        >>> data = tabular(file, label="died", by="city")
        >>> data.group_names, data.train.features.shape, data.classes
        (('Ulm',), (16, 5), 2)
    """
    name = str(table) if isinstance(table, Path | str) else "The table"
    columns = _columns_of(table)
    chosen = [column for column in columns if column not in (label, by)]
    for column in (label, *([by] if by else ()), *(features or ())):
        if column not in columns:
            raise ValueError(
                f"{name} has no column {column!r}; {nearest(column, columns)}"
            )
    if label in (features or ()):
        raise ValueError(
            f"{name}: features has the label {label!r}. Remove it from features."
        )
    if by == label:
        raise ValueError(
            f"{name}: by and label are both {label!r}, so each site would have one "
            "class. Choose another column for one of them."
        )
    if features is not None and not features:
        raise ValueError(f"{name}: features is empty. Pass at least one column.")
    labels, classes = _classes(name, label, columns[label])
    inputs = {column: columns[column] for column in features or chosen}
    if by is not None:
        return site_table(inputs, labels, columns[by], classes, by)
    sites = ["all"] * len(labels)
    return DataSet(*site_table(inputs, labels, sites, classes)[:3])


def _columns_of(table: Path | str | Any) -> Columns:
    if not isinstance(table, Path | str):
        names = getattr(table, "column_names", None) or list(table)
        return {str(name): _listed(table[name]) for name in names}
    path = Path(table)
    if path.suffix not in _SUFFIXES:
        raise ValueError(
            f"{path} ends in {path.suffix!r}, expected .csv or .parquet. Convert the "
            "file, or pass its columns as a data frame."
        )
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist. Correct the path.")
    return _read_csv(path) if path.suffix == ".csv" else _read_parquet(path)


def _listed(column: Any) -> Any:
    return column if hasattr(column, "tolist") else list(column)


def _read_csv(path: Path) -> Columns:
    with path.open(newline="", encoding="utf-8-sig") as lines:
        reader = csv.reader(lines)
        header = next(reader, [])
        rows: list[list[str]] = []
        for row in filter(None, reader):
            if len(row) != len(header):
                raise ValueError(
                    f"{path}, line {reader.line_num}: the row has {len(row)} values, "
                    f"but the header has {len(header)}. Correct the line."
                )
            rows.append(row)
    repeated = [name for name, times in Counter(header).items() if times > 1]
    if repeated:
        raise ValueError(
            f"{path} has several columns {repeated[0]!r}. Rename all but one of them."
        )
    if not rows:
        raise ValueError(f"{path} has no rows after its header. Use another file.")
    return dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))


def _read_parquet(path: Path) -> Columns:
    with needs("Parquet files", "pyarrow", "'fedbilevel[partition]'"):
        from pyarrow.parquet import read_table
    table = read_table(path)
    return {name: table.column(name).to_pylist() for name in table.column_names}


def _classes(
    name: str, label: str, values: Any
) -> tuple[Int32[np.ndarray, "rows"], int]:
    texts = texts_of(values)
    missing = sum(text in MISSING for text in texts)
    if missing:
        raise ValueError(
            f"{name}: column {label!r} has no value in {missing} of {len(texts)} rows. "
            "Remove the rows without a label."
        )
    labels, classes = groups_of(texts, label)
    is_measured = len(classes) > _MOST_CLASSES and numbers_of(values) is not None
    if is_measured or len(classes) < 2:
        raise ValueError(
            f"{name}: column {label!r} has {len(classes)} different values, expected 2 "
            f"to {_MOST_CLASSES} classes. Choose another label, or divide its values "
            "into classes."
        )
    return labels, len(classes)
