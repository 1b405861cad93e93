"""Ragged arrays of CF section 9.3: stations, profiles and drifters whose samples lie one behind the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from geonp.errors import InputError
from geonp.io.measurements import read_table
from geonp.io.ragged import by_sample
from geonp.io.tables import read_points

LON, LAT = [5.0, 6.0, 7.0], [50.0, 51.0, 52.0]
STATIONS = {"lon": ("station", LON), "lat": ("station", LAT), "code": ("station", [10, 20, 30])}
TEMP = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def contiguous(counts: object = (3, 0, 3)) -> xr.Dataset:
    size = ("station", np.asarray(counts), {"sample_dimension": "obs"})
    return xr.Dataset({"temp": ("obs", TEMP), "row_size": size, **STATIONS})


def indexed(index: object = (2, 0, 1, 1, 0, 2)) -> xr.Dataset:
    of = ("obs", np.asarray(index), {"instance_dimension": "station"})
    return xr.Dataset({"temp": ("obs", TEMP), "station_index": of, **STATIONS})


@pytest.mark.parametrize("ending", ["nc", "zarr"])
def test_samples_have_the_places_of_their_features(tmp_path: Path, ending: str) -> None:
    for ds, expected in ((contiguous(), [0, 0, 0, 2, 2, 2]), (indexed(), [2, 0, 1, 1, 0, 2])):
        file = tmp_path / f"{len(expected)}{expected[0]}.{ending}"
        _ = ds.to_netcdf(file, engine="netcdf4") if ending == "nc" else ds.to_zarr(file)
        for given in (ds, read_points(file)):
            table = read_table(given, "temp", None, None, ["code"], crossed=True)
            assert table.xy.tolist() == [[LON[k], LAT[k]] for k in expected]
            assert table.values["temp"].tolist() == TEMP
            assert table.covariates["code"].tolist() == [10 * k + 10 for k in expected]


def test_samples_without_a_feature_are_left_out() -> None:
    table = read_table(indexed([2, -1, 1, 1, 0, 2]), "temp", None, None)
    assert table.values["temp"].tolist() == [1, 3, 4, 5, 6]
    assert table.xy[:, 0].tolist() == [7, 6, 6, 5, 7]
    # as xarray reads indices that have a _FillValue
    again = read_table(indexed([2, np.nan, 1, 1, 0, 2]), "temp", None, None)
    assert again.xy.tolist() == table.xy.tolist()


def test_profiles_of_stations_are_repeated_twice() -> None:
    """The places of two stations, the times of three profiles, and the depths of six samples."""
    of = ("profile", [1, 0, 1], {"instance_dimension": "station"})
    size = ("profile", [1, 2, 3], {"sample_dimension": "obs"})
    profiles = {"time": ("profile", [10, 20, 30]), "station_index": of, "row_size": size}
    ds = xr.Dataset({"temp": ("obs", TEMP), "depth": ("obs", [0, 0, 5, 0, 5, 9]), **profiles, **STATIONS})
    table = read_table(ds, "temp", None, None, ["time", "depth"])
    assert table.xy[:, 0].tolist() == [6, 5, 5, 6, 6, 6]
    assert table.covariates["time"].tolist() == [10, 20, 20, 30, 30, 30]
    assert table.covariates["depth"].tolist() == [0, 0, 5, 0, 5, 9]


def test_counts_and_indices_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="'row_size' holds counts that sum to 5, expected 6, the size of its sample_d"):
        by_sample(contiguous([3, 0, 2]))
    with pytest.raises(InputError, match="'station_index' holds the index 3, expected less than the size of the dim"):
        by_sample(indexed([3, 0, 1, 1, 0, 2]))
    with pytest.raises(InputError, match="'row_size' holds object, expected the whole numbers of a ragged array"):
        by_sample(contiguous(np.array(["a", "b", "c"], object)))


def test_values_without_the_dimensions_of_their_places_are_refused() -> None:
    """Without the counts, each value would be at each station."""
    ds = contiguous().drop_vars(["row_size", "code"])
    with pytest.raises(InputError, match=r"'temp' has dimensions \('obs',\), but its places, 'lon' and 'lat', lie alo"):
        read_table(ds, None, None, None, crossed=True)
    # values of stations and times, and of a swath, have
    both = xr.Dataset({"temp": (("obs", "station"), np.ones((2, 3))), **STATIONS})
    assert len(read_table(both, "temp", None, None, crossed=True).xy) == 6
