"""infill(): the one orchestration. NumPy and dask arrays, the accessor and the command line all take this path."""

from __future__ import annotations

import math
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from numbers import Integral, Real
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr

from geonp import checkpoint, student
from geonp.chunks import Job, fill_chunks
from geonp.errors import InputError
from geonp.grid import Grid
from geonp.metadata import annotate, fill_variables, observed
from geonp.prediction import resolve, tile_bytes
from geonp.tiling import Window, chunk_side

__all__ = ["FillPlan", "domain_of", "infill", "normalise", "plan", "spatial_last"]

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
    model: str | os.PathLike[str] = "tnpkr-sa",
    mask: xr.DataArray | npt.NDArray[np.bool_] | None = None,
    max_distance: float | None = None,
    device: str | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    nodata: float | None = None,
    quantiles: Sequence[float] = (),
    tails: bool = False,
) -> xr.Dataset:
    """Fill the missing cells of a raster, with a standard error for each.

    Missing are NaN, infinities and the nodata value. Each spatial slice is filled on its own; time, band and other
    dimensions are looped over. The result does not depend on the chunks of `obj` or on `batch_size`, but for rounding:
    some 1e-5 standard errors in float32, at most a few hundredths in bfloat16.

    Parameters
    ----------
    obj : DataArray or Dataset
        With two spatial dimensions (see :meth:`geonp.grid.Grid.from_xarray`) and any others. NumPy arrays are computed
        at once; dask arrays stay lazy and keep their chunks.
    model : str or path
        Name of a shipped model (``geonp models``), or the path of a ``.safetensors`` checkpoint.
    mask : DataArray or array of bool, optional
        ``(rows, columns)``, True where the raster is valid. Missing cells outside stay empty; observed ones keep their
        value but serve no other as context.
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
    quantiles : sequence of float, optional
        Probabilities between 0 and 1 whose quantiles are added: ``[0.05, 0.95]`` are the ends of the 90 % interval.
    tails : bool
        Add the tails, which with mean and standard error make the whole distribution: see :mod:`geonp.student`.

    Returns
    -------
    Dataset
        For each variable ``<name>``, filled, its observed cells bit-identical; ``<name>_standard_error``, in the same
        units, of a new measurement there (zero where observed); ``<name>_quantile`` along the dimension ``quantile``;
        ``<name>_tail``; ``<name>_fill_flag``, see :class:`~geonp.metadata.FillFlag`. Some 95 of 100 truths lie within
        1.96 standard errors of the filled value; for intervals of other levels ask for quantiles: errors may have
        heavier tails than a normal distribution. Other variables pass through. A DataArray without a name is called
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
    results = _results(quantiles, tails)
    ds, names, grid = normalise(obj, results)
    domain = None if mask is None else domain_of(mask, grid)
    arrays = {name: spatial_last(observed(ds[name], nodata), grid) for name in names}
    for name, array in arrays.items():
        if array.chunks is None and not np.isfinite(array.values).any():
            raise InputError(
                f"variable {name!r} has no observed cell, so there is nothing to fill from; "
                "check the nodata value, or leave the variable out"
            )
    job, card = _job(grid, model, max_distance, device, batch_size, seed)
    out = ds.drop_vars(names)
    for name in names:
        filled = _fill_variable(ds[name], arrays[name], domain, job, card, nodata, quantiles, tails, out.attrs)
        out = out.assign(filled.data_vars).assign_attrs(filled.attrs)
    return out[_ordered(ds, out, results)]


def plan(
    obj: Raster,
    *,
    model: str | os.PathLike[str] = "tnpkr-sa",
    mask: xr.DataArray | npt.NDArray[np.bool_] | None = None,
    max_distance: float | None = None,
    device: str | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    nodata: float | None = None,
    quantiles: Sequence[float] = (),
    tails: bool = False,
) -> FillPlan:
    """What :func:`infill` will do with the same arguments, found without reading data or filling anything.

    Raises
    ------
    InputError, ModelError, CheckpointError
        As :func:`infill`.
    """
    ds, names, grid = normalise(obj, _results(quantiles, tails))
    if mask is not None:
        domain_of(mask, grid)
    arrays = [spatial_last(observed(_without_data(ds[name]), nodata), grid) for name in names]
    job, _ = _job(grid, model, max_distance, device, batch_size, seed)
    predictor, size = job.predictor, job.predictor.neighbourhood.tile_px
    largest = [tuple(max(sizes) for sizes in array.data.chunks) for array in arrays]
    chunk = (max(sizes[-2] for sizes in largest), max(sizes[-1] for sizes in largest))
    itemsize = max(array.dtype.itemsize for array in arrays)
    slices = sum(int(np.prod(array.shape[:-2])) for array in arrays)
    cells = slices * grid.shape[0] * grid.shape[1]
    return FillPlan(
        variables=tuple(str(name) for name in names),
        shape=grid.shape,
        slices=slices,
        chunk_px=chunk,
        tile_px=size,
        halo_px=job.frame,
        n_context=predictor.neighbourhood.n_context,
        tiles=slices * -(-grid.shape[0] // size) * -(-grid.shape[1] // size),
        model=predictor.model,
        device=predictor.device,
        precision=predictor.precision,
        batch_size=predictor.batch_size,
        peak_bytes=LIBRARIES_BYTES + (os.cpu_count() or 1) * max(_task_bytes(c, job, itemsize) for c in largest),
        result_bytes=cells * ((2 + len(quantiles)) * itemsize + 4 * tails + 1),
    )


def _task_bytes(chunk: tuple[int, ...], job: Job, itemsize: int) -> int:
    """Bytes that the task of a chunk takes, an upper bound: its window, its neighbours, its result and a batch."""
    slices, (rows, cols) = math.prod(chunk[:-2]), chunk[-2:]
    window = math.prod(job.window(Window(0, rows, 0, cols)).shape)
    held = min(9 * rows * cols, window) if slices > 1 else 0
    result = slices * rows * cols * (2 * itemsize + 5)
    model = job.predictor.batch_size * tile_bytes(job.predictor.neighbourhood)
    return window * (4 * itemsize + 68) + slices * held * itemsize + result + model


def _job(
    grid: Grid,
    model: str | os.PathLike[str],
    max_distance: float | None,
    device: str | None,
    batch_size: int | None,
    seed: int,
) -> tuple[Job, checkpoint.Card]:
    """Check the options that do not depend on the values, and load the model."""
    if max_distance is not None and not (isinstance(max_distance, Real) and max_distance > 0):
        raise InputError(f"max_distance must be a positive number of cells, got {max_distance!r}")
    if not isinstance(seed, Integral):
        raise InputError(f"seed must be an integer, got {seed!r}")
    if not isinstance(model, (str, os.PathLike)):
        raise InputError(f"model must be a name or the path of a .safetensors file, got {model!r}")
    predictor, card = resolve(os.fspath(model), device, batch_size)
    return Job(predictor, grid.shape, grid.periodic_x, max_distance, int(seed)), card


def _results(quantiles: Sequence[float], tails: bool) -> list[str]:
    """Endings of the names of what is made for each variable, the filled one aside."""
    levels = list(quantiles) if isinstance(quantiles, (Sequence, np.ndarray)) else [None]
    if not all(isinstance(q, Real) and 0 < q < 1 for q in levels):
        raise InputError(
            f"quantiles must be a sequence of numbers between 0 and 1, like [0.05, 0.95], got {quantiles!r}"
        )
    return ["standard_error", *["quantile"] * bool(levels), *["tail"] * tails, "fill_flag"]


def normalise(
    obj: Raster, results: Sequence[str] = ("standard_error", "fill_flag")
) -> tuple[xr.Dataset, list[Hashable], Grid]:
    """A Dataset, the variables to fill in it, and their grid; no other variable may be called as a result of theirs."""
    if not isinstance(obj, (xr.DataArray, xr.Dataset)):
        raise InputError(
            f"expected an xarray DataArray or Dataset, got {type(obj).__name__}; "
            "wrap an array: xr.DataArray(array, dims=('y', 'x'))"
        )
    if isinstance(obj, xr.DataArray):
        name = "value" if obj.name is None else obj.name
        # observed() explains what is wrong with a variable of another kind
        names = [name]
        grid = Grid.from_xarray(obj)
        return obj.to_dataset(name=name), names, grid
    names = fill_variables(obj)
    for name in names:
        ancillary = str(obj[name].attrs.get("ancillary_variables", "")).split()
        for output in (f"{name}_{result}" for result in results):
            if output in obj.data_vars and output not in ancillary:
                raise InputError(
                    f"the Dataset has a variable {output!r} already, which the result needs for {name!r}; "
                    f"rename it, or name it in the attribute ancillary_variables of {name!r} to have it replaced"
                )
    return obj, names, Grid.from_xarray(obj)


def spatial_last(array: xr.DataArray, grid: Grid) -> xr.DataArray:
    """`array` with its rows and columns as the last two dimensions."""
    return array.transpose(..., grid.y_dim, grid.x_dim)


def _without_data(array: xr.DataArray) -> xr.DataArray:
    """`array` as a dask array, chunked as it will be filled, none of which is ever computed."""
    chunks = array.chunks or _chunks_in_memory(array.shape)
    return array.copy(data=da.zeros(array.shape, chunks=chunks, dtype=array.dtype))


def _chunks_in_memory(shape: tuple[int, ...]) -> tuple[int, ...]:
    side = chunk_side(math.prod(shape))
    return (*(1,) * (len(shape) - 2), *(min(n, side) for n in shape[-2:]))


def domain_of(mask: xr.DataArray | npt.NDArray[np.bool_], grid: Grid) -> Any:
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
    quantiles: Sequence[float],
    tails: bool,
    attrs: Mapping[Any, Any],
) -> xr.Dataset:
    lazy = array.chunks is not None
    data = array.data if lazy else da.from_array(array.values, chunks=_chunks_in_memory(array.shape), name=False)
    if domain is not None:
        domain = da.asarray(domain).rechunk(data.chunks[-2:])
    parts = fill_chunks(data, domain, job)
    extra = {"tail": array.copy(data=parts["tail"]).transpose(*source.dims)} if tails else {}
    if len(quantiles):
        levels = [array.copy(data=da.map_blocks(_quantile_of, parts, q, dtype=data.dtype)) for q in quantiles]
        along = xr.Variable("quantile", np.asarray(quantiles, np.float64))
        extra["quantile"] = xr.concat(levels, along, coords="minimal").transpose("quantile", *source.dims)
    filled, error, flag = (
        array.copy(data=parts[field]).transpose(*source.dims) for field in ("value", "standard_error", "flag")
    )
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    out = annotate(
        filled,
        error,
        flag,
        source=source,
        extra=extra,
        nodata=nodata,
        model_name=card.name,
        model_version=card.version,
        weights_hash=card.sha256,
        history_line=f"{stamp} geonp infill: {source.name or 'value'} filled by {card.name} {card.version}",
        attrs=attrs,
    )
    return out if lazy else out.compute()


def _quantile_of(parts: npt.NDArray[np.void], level: float) -> npt.NDArray[Any]:
    found = student.quantile(level, parts["value"], parts["standard_error"], parts["tail"])
    return found.astype(parts["value"].dtype)


def _ordered(ds: xr.Dataset, out: xr.Dataset, results: Sequence[str]) -> list[Hashable]:
    """Variables in the order of the input, each followed by its `results`."""
    # filling names its outputs with strings, whatever the name of the input was
    order = (n for name in ds.data_vars for n in (name, str(name), *(f"{name}_{result}" for result in results)))
    return [name for name in dict.fromkeys(order) if name in out]
