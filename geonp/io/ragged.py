"""Ragged arrays: stations, profiles or drifters of different lengths along one dimension (CF section 9.3)."""

from __future__ import annotations

import numpy as np
import xarray as xr

from geonp.errors import InputError
from geonp.raster.arrays import IntArray


def by_sample(points: xr.Dataset) -> xr.Dataset:
    """A Dataset whose features lie along the dimension of their samples, and so their places beside the values.

    Variables of features are repeated for each sample: of contiguous ragged arrays by the counts in the variable with
    the attribute ``sample_dimension``, of indexed ones by that with ``instance_dimension``, for which samples without
    an index are left out. Both may follow each other, as for profiles of stations. Raises InputError for counts and
    indices that do not fit.
    """
    for name, array in points.variables.items():
        # the variable of indices lies along samples, so that those of their features have no samples any more
        if array.ndim == 1 and (feature := str(array.attrs.get("instance_dimension", ""))) in points.sizes:
            index = _whole(array, name)
            if index.max(initial=-1) >= points.sizes[feature]:
                raise InputError(
                    f"{str(name)!r} holds the index {index.max()}, expected less than the size of the dimension "
                    f"{feature!r}, {points.sizes[feature]}: the indices of its instance_dimension begin at 0"
                )
            known = np.flatnonzero(index >= 0)
            rest = points.drop_vars([name]).isel({array.dims[0]: known})
            return by_sample(_repeated(rest, feature, str(array.dims[0]), index[known]))
    for name, array in points.variables.items():
        if array.ndim == 1 and (sample := str(array.attrs.get("sample_dimension", ""))) in points.sizes:
            counts, feature = np.maximum(_whole(array, name), 0), str(array.dims[0])
            if counts.sum() != points.sizes[sample]:
                raise InputError(
                    f"{str(name)!r} holds counts that sum to {counts.sum()}, expected {points.sizes[sample]}, the size "
                    f"of its sample_dimension {sample!r}"
                )
            index = np.repeat(np.arange(counts.size), counts)
            return by_sample(_repeated(points.drop_vars([name]), feature, sample, index))
    return points


def _repeated(points: xr.Dataset, feature: str, sample: str, index: IntArray) -> xr.Dataset:
    """The Dataset with the entries `index` of the dimension `feature` along the dimension `sample`."""
    return points.isel({feature: xr.DataArray(index, dims=sample)})


def _whole(array: xr.Variable, name: object) -> IntArray:
    """Whole numbers of a variable, -1 where they are missing."""
    if array.dtype.kind not in "iuf":
        raise InputError(f"{str(name)!r} holds {array.dtype}, expected the whole numbers of a ragged array")
    values = np.asarray(array.values, np.float64)
    return np.where(np.isfinite(values), values, -1).astype(np.intp)
