"""Datasets with several grids, and grids with a repeated column: what is not filled is named."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from geonp.fill.options import FillOptions
from geonp.fill.variables import normalise

from ..commands import says

REST = {
    "time_bnds": (("time", "bnds"), np.zeros((9, 2))),
    "rotation": (("i", "j"), np.eye(3)),
    "profile": (("time", "level"), np.zeros((9, 8))),
    "mean_of_rows": (("time", "y"), np.zeros((9, 10))),
    "lat_of_corners": (("yc", "xc"), np.zeros((11, 13)), {"units": "degrees_north"}),
    "station": (("name",), np.zeros(30)),
}


def bands(**others: object) -> xr.Dataset:
    return xr.Dataset({"fine": (("time", "level", "y", "x"), np.zeros((9, 8, 10, 12))), **others})


@pytest.mark.parametrize("attrs", [{}, {"axis": "Y"}])
@pytest.mark.parametrize("dims", [("y20", "x20"), ("time", "y20", "x20"), ("y", "x_u")])
def test_variables_on_another_grid_are_named(tmp_path: Path, dims: tuple[str, ...], attrs: dict[str, str]) -> None:
    sizes = {"time": 9, "y": 10, "y20": 5, "x20": 6, "x_u": 13}
    ds = bands(coarse=(dims, np.zeros([sizes[dim] for dim in dims])), **REST)
    ds = ds.assign_coords({dim: (dim, np.arange(sizes[dim]), attrs) for dim in dims if dim == "y20"})
    with pytest.warns(
        UserWarning, match=r"^'coarse' \(.*\): not on the grid of 'fine' .*ds\[\['coarse'\]\] \(--variable"
    ):
        _, _, variables, _ = normalise(ds, FillOptions())
    assert [variable.name for variable in variables] == ["fine"]
    if not attrs:
        ds.drop_dims("name").to_netcdf(tmp_path / "a.nc")
        assert "would be filled  no, on another grid (choose it alone: --variable)" in says("info", tmp_path / "a.nc")


def test_what_is_no_grid_is_not_named() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        normalise(bands(**REST), FillOptions())


@pytest.mark.parametrize(("count", "warned"), [(36, False), (37, True), (38, False)])
def test_a_repeated_cyclic_column_is_named(count: int, warned: bool) -> None:
    for first in (0.0, -180.0):
        da = xr.DataArray(np.zeros((3, count)), {"lon": first + 10 * np.arange(count)}, ("lat", "lon"), "a")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            normalise(da, FillOptions())
        found = [str(w.message) for w in caught]
        assert bool(found) == warned
        assert all("last column of 'lon' repeats the first" in text and "slice(None, -1)" in text for text in found)
