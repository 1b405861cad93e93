"""The variables of a raster that a fill changes, and the names that their results take."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from shlex import quote

import xarray as xr

from geonp.errors import InputError, warn
from geonp.fill.kinds import names_of, results_of, variable_of
from geonp.fill.missing import Flags, flags_of, hidden
from geonp.fill.options import FillOptions
from geonp.fill.quality import quality_layers, warn_of_quality
from geonp.raster.covariates import CovariateLike, taken_by
from geonp.raster.crs import with_cf_crs
from geonp.raster.dimensions import has_coordinate, is_geolocation
from geonp.raster.grid import Grid
from geonp.raster.metadata import Kind, ancillary_names, as_dataset
from geonp.raster.places import warn_of_near_repeats, warn_of_places
from geonp.raster.positions import with_times
from geonp.raster.variable import Variable, class_variables, number_variables, off_grid, passed_classes

Raster = xr.DataArray | xr.Dataset
"""What can be filled."""


def normalise(
    obj: Raster, options: FillOptions, classes: int = 0, covariates: Sequence[CovariateLike] = ()
) -> tuple[xr.Dataset, Grid, tuple[Variable, ...], Flags]:
    """A Dataset, its grid, the variables to fill, and where they were hidden; checks that no name of a result is taken.

    With `classes`, those of a classifier, the variables are those with as many flag values, see
    :func:`geonp.raster.variable.class_variables`. Variables that are covariates or flags are not filled.
    """
    if not isinstance(obj, (xr.DataArray, xr.Dataset)):
        raise InputError(
            f"expected an xarray DataArray or Dataset, got {type(obj).__name__}; "
            "wrap an array: xr.DataArray(array, dims=('y', 'x'))"
        )
    obj = with_cf_crs(obj)
    grid = Grid.from_xarray(obj)
    if grid.repeats_x:
        warn(
            f"The last column of {grid.x_dim!r} repeats the first, 360 degrees away: both are filled separately, and "
            f"the raster is not treated as periodic. Drop it: obj.isel({{{grid.x_dim!r}: slice(None, -1)}})."
        )
    ds = _marked(with_times(as_dataset(obj)))
    flags = flags_of(options.missing, obj, ds, grid)
    ds = flags.ds
    if isinstance(obj, xr.DataArray):
        names: list[Hashable] = class_variables(ds, grid, classes) if classes else list(ds.data_vars)
    else:
        candidates = flags.candidates(grid, taken_by(covariates, ds))
        names = class_variables(candidates, grid, classes) if classes else names_of(candidates, grid, options)
        aside = [*flags.quality(names), *(other for name in names for other in quality_layers(ds, grid, name))]
        _warn_of_passed(candidates.drop_vars(set(aside) - {*names}, errors="ignore"), grid, names, classes)
        names = flags.reached(names)
        _warn_of_geolocation(ds, grid, names)
    _warn_of_versions(ds, names)
    ds, declared = hidden(flags, names, options.nodata)
    without = replace(options, nodata=None)
    variables = tuple(
        variable_of(ds[name], grid.dims, without if name in declared else options, classes) for name in names
    )
    if not isinstance(obj, xr.DataArray) and not flags.masks:
        warn_of_quality(ds, grid, variables)
    _check_labels(ds, names)
    for variable in variables:
        results = results_of(variable, options)
        if not isinstance(obj, xr.DataArray):
            _check_replaced(ds, variable.name, results)
        _check_names(ds, variable, results)
    warn_of_places(grid)
    warn_of_near_repeats(ds, grid)
    _warn_of_other_names(ds, grid)
    return ds, grid, variables, flags


def _marked(ds: xr.Dataset) -> xr.Dataset:
    """`ds` with the attribute of classes on what rioxarray has opened from files with palettes."""
    if not any("rasterio_dtype" in da.encoding for da in ds.data_vars.values()):
        return ds
    from geonp.io.bands import with_palettes

    return with_palettes(ds)


def _warn_of_passed(ds: xr.Dataset, grid: Grid, names: Sequence[Hashable], classes: int) -> None:
    """Warn of the variables of a raster that are not among those to fill."""
    if not classes and (passed := [name for name in number_variables(ds, grid) if name not in names]):
        warn(
            f"{', '.join(map(str, passed))}: integers without a declared nodata value pass through as they are. If "
            "they have missing cells, give their value with nodata= (--nodata)."
        )
    if not classes and (passed := [name for name in passed_classes(ds, grid) if name not in names]):
        warn(
            f"{', '.join(map(str, passed))}: classes pass through as they are, because other variables are numbers. To "
            f"fill them, choose them alone: ds[[{passed[0]!r}]] (--variable {quote(str(passed[0]))})."
        )
    if times := [name for name, da in ds.items() if da.dtype.kind in "mM" and grid.spans(da)]:
        warn(f"{', '.join(map(str, times))}: times pass through as they are, and are not filled.")
    if others := off_grid(ds, grid, names):
        warn(
            f"{', '.join(f'{name!r} {ds[name].dims}' for name in others)}: not on the grid of {names[0]!r} "
            f"({grid.y_dim!r}, {grid.x_dim!r}), and passed through as they are. Fill each grid on its own, for "
            f"example ds[[{others[0]!r}]] (--variable {quote(str(others[0]))})."
        )


def _warn_of_geolocation(ds: xr.Dataset, grid: Grid, names: Sequence[Hashable]) -> None:
    """Warn of longitudes and latitudes of the cells that are variables to fill, and no coordinates."""
    found = [str(name) for name in names if is_geolocation(name, ds.variables[name])]
    if found and not all(grid.placed):
        warn(
            f"{', '.join(found)}: filled as other variables, and distances are counted in cells. If they say where the "
            f"cells lie, make them coordinates: ds.set_coords({found})."
        )


def _warn_of_other_names(ds: xr.Dataset, grid: Grid) -> None:
    """Warn of latitudes of rows and longitudes of columns that are not called as these, and so are not used."""
    along = {
        dim: str(name)
        for dim in grid.dims
        for name, variable in ds.variables.items()
        if variable.dims == (dim,) and is_geolocation(name, variable) and not has_coordinate(ds, dim)
    }
    if len(along) == len(grid.dims):
        names = " ".join(f"-d {dim},{name}" for dim, name in along.items())
        warn(
            f"{', '.join(along.values())}: not used, because the dimensions of rows and columns have other names, so "
            "that distances are counted in cells, and GeoTIFFs have no place. Rename them: "
            f"ds.swap_dims({along}); in a file: ncrename {names}."
        )


def _warn_of_versions(ds: xr.Dataset, names: Sequence[Hashable]) -> None:
    """Warn of final and preliminary data of ERA5 along a dimension: each time has values in one of them."""
    along = next((dim for name in names for dim in ds[name].dims if str(dim).lower() == "expver"), None)
    if along is None or ds.sizes[along] < 2:
        return
    labels = ds[along].values.tolist()[:2] if along in ds.coords else [1, 5]
    first, second = (f"ds.sel({along}={label!r})" for label in labels)
    if along not in ds.coords:
        first, second = (f"ds.isel({along}={number})" for number in (0, 1))
    warn(
        f"{', '.join(map(str, names))}: {along!r} separates final and preliminary data of ERA5, of which each time has "
        f"one, and both are filled on their own. Merge them before: {first}.combine_first({second}). To fill the final "
        f"data alone: {first} (--select {quote(f'{along}={labels[0]}')})."
    )


def _check_labels(ds: xr.Dataset, names: Sequence[Hashable]) -> None:
    """Check that no two names are equal as text, such as 1 and "1": the names of results are text."""
    for name in names:
        if not isinstance(name, str) and str(name) in ds.variables:
            raise InputError(
                f"the Dataset has variables {name!r} and {str(name)!r}, but names of results are texts: rename one of "
                "them"
            )


def _check_replaced(ds: xr.Dataset, name: Hashable, results: Sequence[str]) -> None:
    """Check that no other variable is called as a result will be, unless it is ancillary to `name`."""
    ancillary = ancillary_names(ds[name], ds.variables)
    for output in (f"{name}_{result}" for result in results):
        if output in ds.data_vars and output not in ancillary:
            raise InputError(
                f"the Dataset has a variable {output!r} already, which the result needs for {name!r}; "
                f"rename it, or name it in the attribute ancillary_variables of {name!r} to have it replaced"
            )


def _check_names(ds: xr.Dataset, variable: Variable, results: Sequence[str]) -> None:
    """Check that nothing has the name of a dimension of a result, and no coordinate that of a result."""
    taken = [output for result in results if (output := f"{variable.name}_{result}") in ds.coords]
    along = {"quantile": "quantile", "exceedance": "threshold", "sample": "sample", "warping": "warping"}
    along["class_probability" if variable.kind is Kind.CLASSES else "probability"] = "category"
    taken += [along[result] for result in results if along.get(result) in {*ds.dims, *ds.variables}]
    if taken:
        raise InputError(
            f"the raster has a variable, coordinate or dimension {', '.join(map(repr, taken))} already, which the "
            f"result needs for {variable.name!r}: rename it"
        )
