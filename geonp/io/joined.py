"""Several files of measurements as one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from geonp.errors import InputError
from geonp.io.frames import as_frame
from geonp.io.tables import read_points


def read_all(paths: Sequence[Path]) -> pd.DataFrame | xr.Dataset:
    """Read tables, one below the other; of Datasets, all cells.

    Raises InputError as :func:`geonp.io.tables.read_points`, and for files that differ in their columns, units or CRS.
    """
    tables = [read_points(path) for path in paths]
    if len(tables) == 1:
        return tables[0]
    parts = [as_frame(table, crossed=True) for table in tables]
    frames, attrs, systems = zip(*parts, strict=True)
    for path, frame, about, crs in zip(paths, frames, attrs, systems, strict=True):
        _require_same(path, paths[0], "columns", sorted(map(str, frame)), sorted(map(str, frames[0])))
        _require_same(path, paths[0], "units", _units(about), _units(attrs[0]))
        _require_same(path, paths[0], "CRS", crs, systems[0])
    whole: pd.DataFrame = pd.concat(frames, ignore_index=True)
    if systems[0] is not None or not attrs[0]:
        whole.attrs["crs"] = systems[0]
        return whole
    ds = xr.Dataset.from_dataframe(whole.rename_axis("row"))
    for name in ds.data_vars:
        ds[name].attrs = dict(attrs[0].get(str(name), {}))
    return ds.drop_vars("row")


def _units(attrs: Any) -> dict[str, str]:
    return {name: str(about["units"]) for name, about in attrs.items() if "units" in about}


def _require_same(path: Path, first: Path, what: str, got: Any, expected: Any) -> None:
    if got != expected:
        raise InputError(f"{path} has other {what} than {first}: got {got}, expected {expected}; open them separately")
