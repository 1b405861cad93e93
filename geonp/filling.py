"""infill(): the one orchestration. NumPy and dask arrays, the accessor and the command line all take this path."""

from __future__ import annotations

import math
import os
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr

from geonp import checkpoint
from geonp.chunks import Job, fill_chunks
from geonp.errors import InputError
from geonp.grid import Grid
from geonp.metadata import annotate, fill_variables, observed
from geonp.prediction import resolve, tile_bytes
from geonp.tiling import chunk_side

__all__ = ["FillPlan", "infill", "plan"]

LIBRARIES_BYTES = 500 * 2**20
"""What Python, torch and the kernels that it compiles take before any raster is read."""

Raster = xr.DataArray | xr.Dataset


@dataclass(frozen=True)
class FillPlan:
    """What a fill will do; made without reading data.

    Attributes
    ----------
    variables : tuple of str
        Those that will be filled.
    shape, slices : tuple of int, int
        ``(rows, columns)``, and how many of such slices there are over all variables.
    chunk_px : tuple of int
        Rows and columns of the largest chunk.
    tile_px, halo_px, n_context : int
        Side of a tile, the farthest its context may come from, and the number of context points.
    tiles : int
        All tiles; only those with gaps are computed.
    model, device, precision : str
    batch_size : int
        Tiles in one forward pass.
    peak_bytes : int
        Predicted peak memory, beside the input and a result held in memory.
    result_bytes : int
        Size of the result.
    """

    variables: tuple[str, ...]
    shape: tuple[int, int]
    slices: int
    chunk_px: tuple[int, int]
    tile_px: int
    halo_px: int
    n_context: int
    tiles: int
    model: str
    device: str
    precision: str
    batch_size: int
    peak_bytes: int
    result_bytes: int

    def summary(self) -> dict[str, object]:
        """The attributes as plain values, for printing or JSON."""
        return asdict(self)


def infill(
    obj: Raster,
    *,
    model: str = "tnpkr-sa",
    mask: xr.DataArray | npt.NDArray[np.bool_] | None = None,
    max_distance: float | None = None,
    device: str | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    nodata: float | None = None,
) -> xr.Dataset:
    """Fill the missing cells of a raster, with a standard error for each.

    Missing are NaN, infinities and the nodata value. Each spatial slice is filled on its own; time, band and other
    dimensions are looped over. The result does not depend on the chunks of `obj` or on `batch_size`.

    Parameters
    ----------
    obj : DataArray or Dataset
        With two spatial dimensions (see :meth:`geonp.grid.Grid.from_xarray`) and any others. NumPy arrays are computed
        at once; dask arrays stay lazy and keep their chunks.
    model : str
        Name of a shipped model (``geonp models``), or the path of a ``.safetensors`` checkpoint.
    mask : DataArray or array of bool, optional
        ``(rows, columns)``, True where the raster is valid: cells outside stay empty, and serve no other as context.
    max_distance : float, optional
        Leave cells empty that are farther than this from every observation, in cells.
    device : str, optional
        ``"cpu"``, ``"cuda"``, ...; the GPU by default where there is one.
    batch_size : int, optional
        Tiles in one forward pass; chosen from the free memory by default.
    seed : int
        Of the random thinning of far context.
    nodata : float, optional
        Value of missing cells, instead of the declared one.

    Returns
    -------
    Dataset
        For each variable ``<name>``, filled, its observed cells bit-identical; ``<name>_standard_error``, in the same
        units, of a new measurement there (zero where observed); ``<name>_fill_flag``, see
        :class:`~geonp.metadata.FillFlag`. Other variables pass through. A DataArray without a name is called
        ``value``.

    Raises
    ------
    InputError
        For a raster, mask or option that cannot be used, or an array in memory without any observed cell.
    ModelError, CheckpointError
        For a model that does not exist or cannot be loaded.
    PredictionError
        When computed, if the model returns values that are not finite.
    """
    ds, names, grid = _normalise(obj)
    _check_distance(max_distance)
    domain = None if mask is None else _domain(mask, grid)
    arrays = {name: _spatial_last(observed(ds[name], nodata), grid) for name in names}
    for name, array in arrays.items():
        if array.chunks is None and not np.isfinite(array.values).any():
            raise InputError(
                f"variable {name!r} has no observed cell, so there is nothing to fill from; "
                "check the nodata value, or leave the variable out"
            )
    predictor, card = resolve(model, device, batch_size, _available_memory() // 4)
    job = Job(predictor, grid.shape, grid.periodic_x, max_distance, seed)
    out = ds.drop_vars(names)
    for name in names:
        filled = _fill_variable(ds[name], arrays[name], domain, job, card, nodata, out.attrs)
        out = out.assign(filled.data_vars).assign_attrs(filled.attrs)
    return out[_ordered(ds, out)]


def plan(
    obj: Raster,
    *,
    model: str = "tnpkr-sa",
    mask: xr.DataArray | npt.NDArray[np.bool_] | None = None,
    max_distance: float | None = None,
    device: str | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    nodata: float | None = None,
) -> FillPlan:
    """What :func:`infill` will do with the same arguments, found without reading data or filling anything.

    Raises
    ------
    InputError, ModelError, CheckpointError
        As :func:`infill`.
    """
    ds, names, grid = _normalise(obj)
    _check_distance(max_distance)
    if mask is not None:
        _domain(mask, grid)
    arrays = [_spatial_last(observed(_without_data(ds[name]), nodata), grid) for name in names]
    predictor, _ = resolve(model, device, batch_size, _available_memory() // 4)
    job = Job(predictor, grid.shape, grid.periodic_x, max_distance, seed)
    chunks = [array.data.chunks for array in arrays]
    chunk = (max(max(c[-2]) for c in chunks), max(max(c[-1]) for c in chunks))
    size, reach = predictor.neighbourhood.tile_px, job.frame
    window = (chunk[0] + 2 * (reach + 2 * size)) * (chunk[1] + 2 * (reach + 2 * size))
    itemsize = max(array.dtype.itemsize for array in arrays)
    threads = os.cpu_count() or 1
    slices = sum(int(np.prod(array.shape[:-2])) for array in arrays)
    cells = slices * grid.shape[0] * grid.shape[1]
    return FillPlan(
        variables=tuple(str(name) for name in names),
        shape=grid.shape,
        slices=slices,
        chunk_px=chunk,
        tile_px=size,
        halo_px=reach,
        n_context=predictor.neighbourhood.n_context,
        tiles=slices * -(-grid.shape[0] // size) * -(-grid.shape[1] // size),
        model=model,
        device=predictor.device,
        precision=predictor.precision,
        batch_size=predictor.batch_size,
        peak_bytes=LIBRARIES_BYTES
        + threads * (predictor.batch_size * tile_bytes(predictor.neighbourhood) + window * (4 * itemsize + 48)),
        result_bytes=cells * (2 * itemsize + 1),
    )


def _normalise(obj: Raster) -> tuple[xr.Dataset, list[Hashable], Grid]:
    """A Dataset, the variables to fill in it, and their grid."""
    if isinstance(obj, xr.DataArray):
        name = "value" if obj.name is None else obj.name
        # observed() explains what is wrong with a variable of another kind
        names = [name]
        grid = Grid.from_xarray(obj)
        return obj.to_dataset(name=name), names, grid
    return obj, fill_variables(obj), Grid.from_xarray(obj)


def _check_distance(max_distance: float | None) -> None:
    if max_distance is not None and not max_distance > 0:
        raise InputError(f"max_distance must be a positive number of cells, got {max_distance!r}")


def _spatial_last(array: xr.DataArray, grid: Grid) -> xr.DataArray:
    return array.transpose(..., grid.y_dim, grid.x_dim)


def _without_data(array: xr.DataArray) -> xr.DataArray:
    """`array` as a dask array, chunked as it will be filled, none of which is ever computed."""
    chunks = array.chunks or _chunks_in_memory(array.shape)
    return array.copy(data=da.zeros(array.shape, chunks=chunks, dtype=array.dtype))


def _chunks_in_memory(shape: tuple[int, ...]) -> tuple[int, ...]:
    side = chunk_side(math.prod(shape))
    return (*(1,) * (len(shape) - 2), *(min(n, side) for n in shape[-2:]))


def _domain(mask: xr.DataArray | npt.NDArray[np.bool_], grid: Grid) -> Any:
    """The valid domain as a boolean ``(rows, columns)`` array, NumPy or dask."""
    if isinstance(mask, xr.DataArray):
        mask_grid = Grid.from_xarray(mask)
        grid.require_same(mask_grid, "mask")
        spatial = (mask_grid.y_dim, mask_grid.x_dim)
        single = [dim for dim in mask.dims if dim not in spatial and mask.sizes[dim] == 1]
        data = mask.squeeze(single, drop=True).transpose(..., *spatial).data
    else:
        data = np.asarray(mask)
    if data.shape != grid.shape:
        raise InputError(
            f"the mask has shape {data.shape}, expected {grid.shape} (rows, columns) like the raster; "
            "cut or transpose it to the raster's grid"
        )
    if data.dtype.kind not in "biuf":
        raise InputError(f"the mask has dtype {data.dtype}, expected booleans (True = valid), or numbers (0 = invalid)")
    return data if data.dtype == bool else (data != 0) & (data == data)


def _fill_variable(
    source: xr.DataArray,
    array: xr.DataArray,
    domain: Any,
    job: Job,
    card: checkpoint.Card,
    nodata: float | None,
    attrs: Mapping[Any, Any],
) -> xr.Dataset:
    lazy = array.chunks is not None
    data = array.data if lazy else da.from_array(array.values, chunks=_chunks_in_memory(array.shape), name=False)
    if domain is not None:
        domain = da.asarray(domain).rechunk(data.chunks[-2:])
    parts = fill_chunks(data, domain, job)
    filled, error, flag = (
        array.copy(data=parts[field]).transpose(*source.dims) for field in ("value", "standard_error", "flag")
    )
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    out = annotate(
        filled,
        error,
        flag,
        source=source,
        nodata=nodata,
        model_name=card.name,
        model_version=card.version,
        weights_hash=card.sha256,
        history_line=f"{stamp} geonp infill: {source.name or 'value'} filled by {card.name} {card.version}",
        attrs=attrs,
    )
    return out if lazy else out.compute()


def _available_memory() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _ordered(ds: xr.Dataset, out: xr.Dataset) -> list[Hashable]:
    """Variables in the order of the input, each followed by its standard error and flag."""
    # filling names its outputs with strings, whatever the name of the input was
    order = (n for name in ds.data_vars for n in (name, str(name), f"{name}_standard_error", f"{name}_fill_flag"))
    return [name for name in dict.fromkeys(order) if name in out]
