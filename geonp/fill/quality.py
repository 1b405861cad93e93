"""Layers that say how good the values of a raster are, and that hide none of them unless a condition names them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from shlex import quote

import numpy as np
import xarray as xr

from geonp.errors import warn
from geonp.io.columns import is_quality_of
from geonp.raster.grid import Grid
from geonp.raster.kinds import is_auxiliary
from geonp.raster.metadata import ancillary_names, class_attrs, flag_meanings_of
from geonp.raster.variable import Variable


def warn_of_quality(ds: xr.Dataset, grid: Grid, variables: Sequence[Variable]) -> None:
    """Warn of quality layers beside variables, unless both are in memory and all observed values have one quality."""
    for variable in variables:
        layers = [name for name in quality_layers(ds, grid, variable.name) if _differs(ds[name], variable)]
        if layers:
            flags = ", ".join(map(str, flag_meanings_of(ds[layers[0]].attrs)))
            condition = f"{layers[0]}={'FLAG' if flags else 'NUMBER'}"
            warn(
                f"{variable.label}: {', '.join(map(repr, layers))} says how good its values are, but hides none: all "
                f"are used. To hide bad ones, say which they are: missing={condition!r} "
                f"(--gaps-where {quote(condition)})"
                f"{f', one of {flags}' if flags else ''}. If all are good, choose the variable alone: "
                f"ds[[{variable.label!r}]] (--variable {quote(variable.label)})."
            )


def quality_layers(ds: xr.Dataset, grid: Grid, name: Hashable) -> list[Hashable]:
    """The quality layers of a variable: flags that its ancillary variables name so, and those with its name."""
    linked = {
        other for other in ancillary_names(ds[name], ds.variables) if other in ds and class_attrs(ds[other].attrs)
    }
    own = {f"{name}_fill_flag", name}  # of an earlier fill
    return [
        other
        for other, da in ds.data_vars.items()
        if (other in linked and is_auxiliary(da)) or is_quality_of(str(other), str(name))
        if other not in own and grid.spans(da) and da.dtype.kind in "biuf"
    ]


def _differs(layer: xr.DataArray, variable: Variable) -> bool:
    """Whether observed values differ in quality. Lazy arrays, which are not read, are assumed to."""
    source = variable.source
    if not (layer.variable._in_memory and source.variable._in_memory):
        return True
    observed_mask = xr.Variable(source.dims, np.isfinite(variable.read(source.values)))
    found = layer.variable.where(observed_mask).values
    return bool(np.unique(found[np.isfinite(found)]).size > 1)
