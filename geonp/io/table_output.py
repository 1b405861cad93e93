"""Tables out: CSV and Parquet."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import xarray as xr

from geonp.errors import InputError, OutputError, from_extra
from geonp.io.location import check_writable, written
from geonp.io.sources import PARQUET_FILES

_ENDINGS = "(_standard_error|_tail|_fill_flag|_(quantile|exceedance|sample)_.*)?"


def check_table(path: Path, *, overwrite: bool = False) -> None:
    """Check that a table can be written to `path`, before work starts.

    Raises OutputError for an unknown extension, an output that exists (unless `overwrite`), and a folder that does not
    exist or is not writable. Raises MissingExtraError for Parquet without pyarrow.
    """
    if path.suffix.lower() not in {".csv", *PARQUET_FILES}:
        expected = " or ".join([".csv", PARQUET_FILES[0]])
        raise OutputError(f"Unknown format of a table: got {str(path)!r}, expected a name that ends in {expected}.")
    if path.suffix.lower() in PARQUET_FILES:
        with from_extra("parquet"):
            import pyarrow  # noqa: F401
    if path.is_dir() or (path.exists() and not overwrite):
        raise OutputError(f"The output exists: {str(path)!r}. Choose another name, or pass overwrite (--overwrite).")
    check_writable(path.parent, "Expected an existing, writable folder.")


def check_columns(places: pd.DataFrame, names: Iterable[str], time: str | None = None) -> None:
    """Refuse a table of places with a column that is called as a result of the variables `names`, or as the `time`."""
    results = results_of(names)
    if taken := [name for name in map(str, places) if results.fullmatch(name) or name == time]:
        raise InputError(
            f"the table of places has columns with the names of results: {', '.join(taken)}. Rename or remove them"
            + ("; each place is predicted at all times, or those that are asked for." if time in taken else ".")
        )


def results_of(names: Iterable[str]) -> re.Pattern[str]:
    """Pattern of the names of results of variables."""
    return re.compile(f"({'|'.join(map(re.escape, names))}){_ENDINGS}")


def write_table(table: pd.DataFrame, path: Path, *, overwrite: bool = False) -> None:
    """Write a table to `path`, which appears complete or not at all; its extension chooses the format.

    Raises OutputError if writing fails, or a file has appeared there since :func:`check_table`, unless `overwrite`.
    """
    with written(path, "table", overwrite=overwrite) as temporary:
        if path.suffix.lower() in PARQUET_FILES:
            table.to_parquet(temporary, index=False)
        else:
            table.to_csv(temporary, index=False)


def with_results(places: pd.DataFrame, result: xr.Dataset, time: str | None = None) -> pd.DataFrame:
    """The rows of `places` with the variables of their interpolation, whose dimension is ``point``, as columns.

    With the dimension `time`, these rows are there for each time, which is the first column. Other dimensions, such as
    quantiles, become columns of their own: ``temperature_quantile_0.1``.
    """
    times = [{}] if time is None else [{time: k} for k in range(result.sizes[time])]
    parts = []
    for at in times:
        columns = {} if time is None else {time: result[time].values[at[time]]}
        columns |= {str(name): column for name, column in places.items()}
        for name, variable in result.isel(at).data_vars.items():
            more = [dim for dim in variable.dims if dim != "point"]
            for index in itertools.product(*(range(variable.sizes[dim]) for dim in more)):
                one = variable.isel(dict(zip(more, index, strict=True)))
                columns["_".join([str(name), *(f"{one[dim].item():g}" for dim in more)])] = one.values
        parts.append(pd.DataFrame(columns, index=places.index))
    return pd.concat(parts, ignore_index=True)
