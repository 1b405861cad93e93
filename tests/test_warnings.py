"""A warning points at the user's line, whatever lies between it and the place that warns."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from click.testing import CliRunner

import geonp
from geonp.cli import app

MESSAGE = "views: integers without a declared nodata value pass through as they are"


def dataset() -> xr.Dataset:
    values = np.add.outer(np.sin(np.arange(24.0)), np.arange(20.0)).astype("f4")
    values[5:9, 6:11] = np.nan
    dims, coords = ("y", "x"), {"y": np.arange(24.0), "x": np.arange(20.0)}
    return xr.Dataset({"a": (dims, values), "views": (dims, np.ones((24, 20), "i2"))}, coords)


def line_of(call: Callable[[], object], message: str = MESSAGE) -> tuple[str, int]:
    """File and line that the only warning of a call names."""
    with pytest.warns(UserWarning, match=message) as caught:
        call()
    (warning,) = caught
    return warning.filename, warning.lineno


@pytest.mark.parametrize(
    "call",
    [
        lambda ds, out, model: geonp.infill(ds, model=model),
        lambda ds, out, model: ds.geonp.infill(model=model),
        lambda ds, out, model: ds.chunk(y=8).geonp.infill(model=model),
        lambda ds, out, model: geonp.plan(ds, model=model),
        lambda ds, out, model: geonp.fill_store(ds, out, model=model),
        lambda ds, out, model: ds.geonp.fill_store(out, model=model),
    ],
    ids=["function", "accessor", "dask", "plan", "store", "store-accessor"],
)
def test_a_warning_names_the_line_that_called(call: Callable[..., object], model: str, tmp_path: Path) -> None:
    ds = dataset()
    assert line_of(lambda: call(ds, tmp_path / "out.zarr", model)) == (__file__, call.__code__.co_firstlineno)


def test_of_a_table(model: str) -> None:
    points = pd.DataFrame({"x": np.arange(30.0), "y": np.arange(30.0) % 7, "t": [*np.arange(29.0), -9999]})
    grid = geonp.lattice((0, 0, 4, 4), 1)
    found = line_of(lambda: geonp.interpolate(points, at=grid, model=model), "column 't' holds -9999")
    assert found[0] == __file__


def test_of_the_command_line(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It prints its warnings without their line; here they are let through."""
    monkeypatch.setattr(app, "warnings_as_lines", nullcontext)
    dataset().to_netcdf(tmp_path / "in.nc", engine="netcdf4")
    with pytest.warns(UserWarning, match=MESSAGE) as caught:
        CliRunner().invoke(app.main, ["fill", f"{tmp_path}/in.nc", f"{tmp_path}/out.nc", "--model", model, "-q"])
    assert {warning.filename for warning in caught} == {__file__}
